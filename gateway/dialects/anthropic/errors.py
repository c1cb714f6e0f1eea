"""Errors of the Messages API: as a response, and as the last event of a stream."""

from __future__ import annotations

from typing import Any

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import JSON_TYPE, Headers, Request, Response
from gateway.core.messages import Op
from gateway.dialects._shared.api import Errors
from gateway.dialects._shared.faults import cannot_count, in_own_words
from gateway.dialects.anthropic.fields import FIELDS
from gateway.wire import sse, too_long
from gateway.wire.json import encode, encode_line
from gateway.wire.openai.replies import refusals

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Status -> type. The other types are `invalid_request_error` up to 415, and `api_error` above."""


def _row(kind: Kind, status: int) -> tuple[int, str, str]:
    status = 529 if kind is Kind.OVERLOADED else status
    if kind is Kind.QUOTA:
        return status, "billing_error", kind.value
    return status, _TYPES.get(status, "invalid_request_error" if status <= 415 else "api_error"), kind.value


ERRORS: Errors = {kind: _row(kind, status) for kind, (status, _, _) in refusals.ERRORS.items()}
"""The code is the `error_code` in an error's details."""


def message_of(message: str) -> str:
    """The message for a prompt that does not fit, in one of the two forms that Claude Code recognises. After "prompt is
    too long" it compacts its session. After "input length and `max_tokens` exceed context limit" it asks again with a
    smaller `max_tokens`; an engine that has not counted the prompt counts as none here, and the next refusal has its
    length."""
    found = too_long.read(message)
    if found is not None and found.most is not None:
        prompt, output, most = found.prompt, found.output or 0, found.most
        if output and (prompt or 0) < most <= (prompt or 0) + output:
            return (
                f"input length and `max_tokens` exceed context limit: {prompt or 0} + {output} > {most}, "
                "decrease input length or `max_tokens` and try again"
            )
        if prompt is not None:
            return f"prompt is too long: {prompt} tokens > {most} maximum"
    return f"prompt is too long: {message}"


def error_object(error: GatewayError, request: Request | None = None, op: Op | None = None) -> dict[str, Any]:
    """The error body. It calls the invalid field by the client's name."""
    if error.kind is Kind.CONTEXT_LENGTH:
        message = message_of(error.message)
    else:
        message, _ = in_own_words(error, error.param, FIELDS, request, op)
    _, type_, code = ERRORS[error.kind]
    details = {"error_code": error.code or code}
    body: dict[str, Any] = {"type": "error", "error": {"type": type_, "message": message, "details": details}}
    if request is not None and request.id:
        body["request_id"] = request.id
    return body


def error_event(error: GatewayError, op: Op) -> bytes:
    """The last event of a failed stream."""
    return sse.frame(encode_line(error_object(error, None, op)), b"error")


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    """(the answer, its code). If the workers cannot count tokens, the counting path is a 404: clients then estimate."""
    status = ERRORS[error.kind][0]
    body = error_object(error, request, op)
    if cannot_count(error, request):
        status, body["error"]["type"] = 404, "not_found_error"
    headers: Headers = refusals.error_headers(error, 503 if status == 529 else status)
    if status == 401:
        headers.append((b"x-should-retry", b"false"))
    return Response(status, [JSON_TYPE, *headers], encode(body)), error.code or ERRORS[error.kind][2]
