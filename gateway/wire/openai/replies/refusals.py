"""Errors in OpenAI's form: the status, the headers and the body of a response, and the event of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import JSON_TYPE, Headers, Response
from gateway.wire import sse
from gateway.wire.json import encode, encode_line

ERRORS: Mapping[Kind, tuple[int, str, str]] = {
    kind: (status, type_, kind.value)
    for kind, status, type_ in (
        (Kind.BAD_REQUEST, 400, "invalid_request_error"),
        (Kind.UNSUPPORTED, 400, "invalid_request_error"),
        (Kind.UNAUTHENTICATED, 401, "authentication_error"),
        (Kind.FORBIDDEN, 403, "permission_error"),
        (Kind.NO_ROUTE, 404, "invalid_request_error"),
        (Kind.NO_METHOD, 405, "invalid_request_error"),
        (Kind.NO_MODEL, 404, "invalid_request_error"),
        (Kind.MEDIA_TYPE, 415, "invalid_request_error"),
        (Kind.TOO_LARGE, 413, "invalid_request_error"),
        (Kind.CONTEXT_LENGTH, 400, "invalid_request_error"),
        (Kind.LIMITED, 429, "rate_limit_error"),
        (Kind.QUOTA, 429, "insufficient_quota"),
        (Kind.OVERLOADED, 503, "server_error"),
        (Kind.NO_WORKER, 503, "server_error"),
        (Kind.DRAINING, 503, "server_error"),
        (Kind.TIMEOUT, 504, "server_error"),
        (Kind.UPSTREAM, 502, "server_error"),
        (Kind.TRUNCATED, 502, "server_error"),
        (Kind.CLIENT_GONE, 499, "server_error"),
        (Kind.INTERNAL, 500, "server_error"),
    )
}
"""Kind -> OpenAI's (status, type, code)."""


_LONGEST_WAIT_S = 10_000_000.0
"""Seconds: two windows of the longest that a limit may have, with room to spare."""


def wait_ms(error: GatewayError, longest_s: float = _LONGEST_WAIT_S) -> int:
    """The milliseconds after which a client shall come back, for errors with `retry_after`: the same number for all
    headers and bodies of one answer. See `error_headers`."""
    known = error.kind in (Kind.LIMITED, Kind.NO_WORKER) and error.upstream is None
    return max(1, -int(-min(error.retry_after or 0.0, longest_s if known else 60.0) * 1000 // 1))


def error_headers(error: GatewayError, status: int, longest_s: float = _LONGEST_WAIT_S) -> Headers:
    """Retry-After in seconds and in milliseconds, on 429 and 503, and on what is held because workers died of it. For a
    limit, and for a model that loads, it is the exact wait, rounded up: after a shorter one comes another refusal.
    `longest_s` cuts it for clients that give up instead of waiting. For what is held it is the exact rest; no client
    should try by itself. For anything else it is at most 60 s, because openai-python 1.x ignores longer waits."""
    headers: Headers = []
    if error.kind is Kind.UPSTREAM and error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, ceil(error.retry_after))))
        headers.append((b"x-should-retry", b"false"))
    elif status in (429, 503) and error.retry_after is not None:
        wait = wait_ms(error, longest_s)
        headers.append((b"retry-after", b"%d" % -(-wait // 1000)))
        headers.append((b"retry-after-ms", b"%d" % wait))
    elif error.kind in (Kind.LIMITED, Kind.QUOTA) and error.upstream is None:
        # The request can never fit the limit, or the money is spent. This header stops the retries of OpenAI's clients.
        headers.append((b"x-should-retry", b"false"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def error_object(error: GatewayError, errors: Mapping[Kind, tuple[int, str, str]] = ERRORS) -> dict[str, Any]:
    """The error object in OpenAI's form."""
    _, type_, code = errors[error.kind]
    return {"error": {"message": error.message, "type": type_, "param": error.param, "code": error.code or code}}


def error_event(error: GatewayError, errors: Mapping[Kind, tuple[int, str, str]] = ERRORS) -> bytes:
    return sse.frame(encode_line(error_object(error, errors)))


def status_of(error: GatewayError, errors: Mapping[Kind, tuple[int, str, str]] = ERRORS) -> int:
    """The status by a dialect's table. A worker's own 4xx keeps its status."""
    status = errors[error.kind][0]
    if error.upstream is not None and 400 <= error.upstream < 500 and status < 500:
        return error.upstream
    return status


def refusal(
    error: GatewayError,
    errors: Mapping[Kind, tuple[int, str, str]] = ERRORS,
    longest_s: float = _LONGEST_WAIT_S,
) -> tuple[Response, str]:
    """(the response for `error`, its code). errors and longest_s are a dialect's own: its table, and the longest wait
    that it names."""
    status = status_of(error, errors)
    body = error_object(error, errors)
    response = Response(status, [JSON_TYPE, *error_headers(error, status, longest_s)], encode(body))
    return response, body["error"]["code"]
