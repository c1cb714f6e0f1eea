"""The meaning of workers' failures: one table of causes, for retries, fallbacks, breakers, and all that names a cause.

A `Cause` is a word of a closed set. Events of the log, `/status.json`, the console, `dragoman check --probe` and the
labels of metrics have the same words. docs/reliability.md has this table, and a test compares them.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Literal, NamedTuple

Word = Literal["unavailable", "overloaded", "account"]
"""Why a request goes to a fallback, because of its workers; see `models.NAME.fallback_on`."""
TRANSIENT: tuple[Word, Word] = ("unavailable", "overloaded")
"""The words of failures that may be over soon."""


class Cause(Enum):
    """Why a worker failed, or is not ready."""

    # no connection
    NAME_UNKNOWN = "name_unknown"
    NAME_SERVER_SILENT = "name_server_silent"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    CONNECT_TIMEOUT = "connect_timeout"
    PROXY_UNREACHABLE = "proxy_unreachable"
    CA_UNKNOWN = "ca_unknown"
    HOST_NOT_IN_CERTIFICATE = "host_not_in_certificate"
    CERTIFICATE_EXPIRED = "certificate_expired"
    CERTIFICATE_INVALID = "certificate_invalid"
    NOT_TLS = "not_tls"
    NEEDS_TLS = "needs_tls"
    TLS_FAILED = "tls_failed"
    # no answer, or none in form
    BROKE_OFF = "broke_off"
    SILENT = "silent"
    STALLED = "stalled"
    MALFORMED = "malformed"
    NO_DESCRIPTORS = "no_descriptors"
    # the account, or the configuration
    KEY_REFUSED = "key_refused"
    PROXY_KEY_REFUSED = "proxy_key_refused"
    PROXY_REFUSED = "proxy_refused"
    NO_CREDIT = "no_credit"
    FORBIDDEN = "forbidden"
    WRONG_PATH = "wrong_path"
    UNKNOWN_MODEL = "unknown_model"
    REDIRECTED = "redirected"
    REJECTED = "rejected"
    # the worker, for now
    OVERLOADED = "overloaded"
    NOT_NOW = "not_now"
    GAVE_UP = "gave_up"
    FAILED = "failed"


class Meaning(NamedTuple):
    """The consequences of a failure.

    word     the reason in `fallback_on` that it is
    budget   another worker is asked only if the retry budget allows it
    on_worker  "counts": towards an ejection; "rests": others are preferred for a while; "marks": only its state says so
    text     for operators; it continues "the worker"
    """

    word: Word
    budget: bool
    on_worker: Literal["counts", "rests", "marks"]
    text: str


def _broken(text: str) -> Meaning:
    return Meaning("unavailable", True, "counts", text)


def _account(on_worker: Literal["counts", "rests", "marks"], text: str) -> Meaning:
    return Meaning("account", False, on_worker, text)


MEANINGS: dict[Cause, Meaning] = {
    Cause.NAME_UNKNOWN: _broken("has a host name that no name server knows"),
    Cause.NAME_SERVER_SILENT: _broken("has a host name that no name server answered for"),
    Cause.REFUSED: _broken("refuses connections: nothing listens at its port"),
    Cause.UNREACHABLE: _broken("cannot be reached over the network"),
    Cause.CONNECT_TIMEOUT: _broken("did not accept a connection in time"),
    Cause.PROXY_UNREACHABLE: _broken("has a proxy that takes no connection"),
    Cause.CA_UNKNOWN: _broken("has a certificate of an authority that is not trusted here (`ca_file`)"),
    Cause.HOST_NOT_IN_CERTIFICATE: _broken("has a certificate for other host names than its address"),
    Cause.CERTIFICATE_EXPIRED: _broken("has a certificate that has expired"),
    Cause.CERTIFICATE_INVALID: _broken("has a certificate that is not valid"),
    Cause.NOT_TLS: _broken("speaks plain HTTP at an address that begins with https"),
    Cause.NEEDS_TLS: _broken("speaks TLS at an address that begins with http"),
    Cause.TLS_FAILED: _broken("and the gateway could not agree on TLS"),
    Cause.BROKE_OFF: _broken("closed the connection before its answer was whole"),
    Cause.SILENT: _broken("did not answer in time"),
    Cause.STALLED: _broken("has an engine that makes no progress"),
    Cause.MALFORMED: _broken("answered what its API does not promise"),
    Cause.NO_DESCRIPTORS: Meaning(
        "overloaded", True, "marks", "was not asked: the gateway has no file descriptor left"
    ),
    Cause.KEY_REFUSED: _account("counts", "refuses the gateway's key"),
    Cause.PROXY_KEY_REFUSED: _account("counts", "has a proxy that refuses the gateway's user or password"),
    Cause.PROXY_REFUSED: _account("counts", "has a proxy that refuses to connect to it"),
    Cause.NO_CREDIT: _account("counts", "has no credit or quota left for the gateway's account"),
    Cause.FORBIDDEN: _account("rests", "forbids this to the gateway's key"),
    Cause.WRONG_PATH: _account("marks", "has nothing at the path that was asked"),
    Cause.UNKNOWN_MODEL: _account("rests", "does not serve the model by the name that it was sent (`upstream_model`)"),
    Cause.REDIRECTED: _account("rests", "redirects to another address"),
    Cause.REJECTED: _account("rests", "rejects the gateway's requests"),
    Cause.OVERLOADED: Meaning("overloaded", True, "rests", "is overloaded, or still loads its model"),
    Cause.NOT_NOW: Meaning("overloaded", True, "rests", "cannot take the request now"),
    Cause.GAVE_UP: _broken("gave up on the request"),
    Cause.FAILED: _broken("answers with an error of its own"),
}
"""Cause -> what it means. A failure is transient (`TRANSIENT`), or one of the account or the configuration. A fault
of the request has no cause: the client gets the error at once."""

_STATUSES: dict[int, Cause] = {
    401: Cause.KEY_REFUSED,
    402: Cause.NO_CREDIT,
    403: Cause.FORBIDDEN,
    404: Cause.WRONG_PATH,
    405: Cause.WRONG_PATH,
    407: Cause.PROXY_KEY_REFUSED,
    408: Cause.GAVE_UP,
    409: Cause.NOT_NOW,
    410: Cause.UNKNOWN_MODEL,
    423: Cause.NOT_NOW,
    424: Cause.GAVE_UP,
    425: Cause.NOT_NOW,
    429: Cause.OVERLOADED,
    498: Cause.NOT_NOW,
    503: Cause.OVERLOADED,
    529: Cause.OVERLOADED,
}
"""The status of an answer -> its cause. 400, 413, 422 and 501 are about the request; 498 is Groq's for a full tier, 529
Anthropic's for a full service."""

_NO_CREDIT = re.compile(
    r"your credit balance is too low|insufficient (?:credits?|quota|balance|funds)\b"
    r"|billing hard limit has been reached|you exceeded your current quota, please check your plan"
    r"|this request requires more credits"
    r"|you have (?:run out of|no) credits?\b|quota exhausted\b|account balance is (?:insufficient|too low)",
    re.IGNORECASE,
)
"""The beginnings of 400s and 403s by which providers refuse an account without credit: Anthropic, OpenAI, OpenRouter,
DeepSeek, Together. Beginnings only: a message may quote what a client sent."""
_KEY_REFUSED = re.compile(
    r"api[ _]key (?:not valid|expired|not found|is invalid)|(?:incorrect|invalid|missing|no) api[ _-]?key\b"
    r"|invalid x-api-key|invalid authentication|your api key is (?:invalid|disabled)",
    re.IGNORECASE,
)
"""The same for keys: Gemini (400), xAI (400), Anthropic, Mistral."""
_CODES: dict[str, Cause] = {
    "insufficient_quota": Cause.NO_CREDIT,
    "insufficient_credits": Cause.NO_CREDIT,
    "billing_hard_limit_reached": Cause.NO_CREDIT,
    "billing_not_active": Cause.NO_CREDIT,
    "invalid_api_key": Cause.KEY_REFUSED,
    "api_key_invalid": Cause.KEY_REFUSED,
    "account_deactivated": Cause.KEY_REFUSED,
}
"""Codes of error objects, whatever their status."""
_NO_MODEL = re.compile(
    r"\bmodel\b.{0,200}\b(?:not exist|not found|unknown|not (?:available|supported|loaded|deployed))"
    r"|\b(?:unknown|no such|invalid) model\b|\bmodel_not_found\b",
    re.IGNORECASE | re.DOTALL,
)
_MOST_READ = 2_000


def cause_of(status: int, message: str | None, code: str | None = None) -> Cause | None:
    """The cause of an answer with this status, and an error object with this message and code; None if the request is
    at fault."""
    text = (message or "")[:_MOST_READ].strip()
    if code is not None and (known := _CODES.get(code.lower())) is not None:
        return known
    if status in (400, 403, 422):
        if _NO_CREDIT.match(text):
            return Cause.NO_CREDIT
        if _KEY_REFUSED.match(text):
            return Cause.KEY_REFUSED
    if status in (400, 413, 422, 501):
        return None
    if status == 404 and (code == "model_not_found" or _NO_MODEL.search(text)):
        return Cause.UNKNOWN_MODEL
    if status >= 500:
        return _STATUSES.get(status, Cause.FAILED)
    if status >= 400:
        return _STATUSES.get(status, Cause.REJECTED)
    return Cause.REDIRECTED if status >= 300 else Cause.MALFORMED


def needs_tls(data: bytes) -> bool:
    """Whether the beginning of an answer to plain HTTP shows that the server speaks TLS: a TLS alert, or the text of
    a server that reports it (nginx, Go, Apache, Node)."""
    return data[:2] == b"\x15\x03" or bool(_WANTS_TLS.search(data[:4096]))


_WANTS_TLS = re.compile(
    rb"plain HTTP request was sent to HTTPS port|HTTP request to an HTTPS server|speaking plain HTTP to an SSL-enabled",
    re.IGNORECASE,
)
