"""Ids of requests: the client's own where it may be logged, else a new one; and the ids that workers get."""

from __future__ import annotations

import itertools
import os
import random
import re

from gateway.auth import KnownKeys
from gateway.core.http import Headers, header_value
from gateway.core.trace_context import trace_context

_HARMLESS = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")
# vLLM turns a request's id into that of a sequence, so no worker may see one twice; a client may repeat its own.
_SERIAL = itertools.count(int.from_bytes(os.urandom(3), "big"))


def request_id(headers: Headers, known: KnownKeys) -> str:
    """The client's own id, else a new one."""
    return given_id(headers, known) or new_id()


def given_id(headers: Headers, known: KnownKeys) -> str | None:
    """The client's own X-Request-Id if it is 1 to 128 letters, digits and `._:-`, and holds no key: ids are logged, and
    sent to workers."""
    given = header_value(headers, b"x-request-id")
    if given is None or not _HARMLESS.match(given) or known.in_id(given.decode(), headers):
        return None
    return given.decode()


def given_context(headers: Headers, known: KnownKeys) -> Headers:
    """The headers of the client's trace that hold no key: they are sent to workers, and a trace's id is logged."""
    found = trace_context(headers)
    for index, (_, value) in enumerate(found):
        text = value.decode()
        if known.masked(text, headers) != text:
            return found[:index]  # without the first, which is the trace's parent, the second means nothing
    return found


def new_id() -> str:
    """32 hexadecimal digits."""
    return f"{random.getrandbits(128):032x}"


def worker_request_id(request_id: str) -> bytes:
    """The X-Request-Id of a request to a worker: `request_id` and a serial number."""
    return b"%b-%d" % (request_id.encode(), next(_SERIAL))
