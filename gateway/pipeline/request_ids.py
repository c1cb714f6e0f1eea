"""Ids of requests: the client's own where it may be logged, else a new one; and the ids that workers get."""

from __future__ import annotations

import itertools
import os
import random
import re

from gateway.auth.headers import KEY_HEADERS
from gateway.core.http import Headers, header_value

_HARMLESS = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")
# Ids are logged and sent to workers, so a key in the wrong header must not become one. These are the forms in which
# vendors issue keys and tokens; UUIDs and other hexadecimal ids have none of them.
_KEY = re.compile(
    rb"(?:\A|[._:-])"  # a key may stand behind a word: `key:sk-...`
    rb"(?:"
    rb"dgm_"  # our own
    rb"|(?:sk|rk|pk)[_-]"  # OpenAI, Anthropic (sk-ant-), DeepSeek, OpenRouter (sk-or-), LiteLLM, Stripe
    rb"|(?:hf|flp|gsk|fw|r8|jina|lsv2|pcsk|vck|tgp_v1|nvapi|xai|pplx|tvly|glpat|github_pat|gh[opsur]|xox[abeoprs])[_-]"
    rb"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12}"  # AWS access key ids
    rb"|AIza[A-Za-z0-9_-]{30}|ya29\."  # Google
    rb"|eyJ[A-Za-z0-9_-]{8}"  # JSON in base64: a JWT
    rb"|(?i:bearer)[._:-]"
    rb")"
    # An unbroken run that mixes capitals, small letters and digits: AWS secret keys (40), Azure OpenAI keys (84).
    rb"|(?=[A-Za-z0-9]{0,127}[A-Z])(?=[A-Za-z0-9]{0,127}[a-z])(?=[A-Za-z0-9]{0,127}[0-9])[A-Za-z0-9]{40}"
)
# A key of no vendor's form is known by its place: it is also where keys are sent. A shorter one (`none`) keeps nothing.
_CREDENTIALS = KEY_HEADERS | {b"authorization"}
_SHORTEST_KEY = 16
# vLLM turns a request's id into that of a sequence, so no worker may see one twice; a client may repeat its own.
_SERIAL = itertools.count(int.from_bytes(os.urandom(3), "big"))


def request_id(headers: Headers) -> str:
    """The client's own id, else a new one."""
    return given_id(headers) or new_id()


def given_id(headers: Headers) -> str | None:
    """The client's own X-Request-Id if it is 1 to 128 letters, digits and `._:-`, does not look like a key and holds
    none of this request's keys."""
    given = header_value(headers, b"x-request-id")
    if given is None or not _HARMLESS.match(given) or _KEY.search(given) or _holds_key(given, headers):
        return None
    return given.decode()


def _holds_key(given: bytes, headers: Headers) -> bool:
    for name, value in headers:
        if name in _CREDENTIALS:
            key = value.split()[-1:]  # `Bearer K`, and `K` alone
            if key and len(key[0]) >= _SHORTEST_KEY and key[0] in given:
                return True
    return False


def new_id() -> str:
    """32 hexadecimal digits."""
    return f"{random.getrandbits(128):032x}"


def worker_request_id(request_id: str) -> bytes:
    """The X-Request-Id of a request to a worker: `request_id` and a serial number."""
    return b"%b-%d" % (request_id.encode(), next(_SERIAL))
