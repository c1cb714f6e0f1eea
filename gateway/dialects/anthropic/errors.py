"""Errors of the Messages API: as a response, and as the last event of a stream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import own_name
from gateway.core.http import JSON_TYPE, Headers, Request, Response
from gateway.core.messages import CountTokens, Op
from gateway.dialects.anthropic.fields import FIELDS
from gateway.wire import sse
from gateway.wire.json import encode, encode_line, sent_names
from gateway.wire.openai.replies.refusals import error_headers

_INVALID = "invalid_request_error"
ERRORS: Mapping[Kind, tuple[int, str, str]] = {
    kind: (status, type_, kind.value)
    for kind, status, type_ in (
        (Kind.BAD_REQUEST, 400, _INVALID),
        (Kind.UNSUPPORTED, 400, _INVALID),
        (Kind.UNAUTHENTICATED, 401, "authentication_error"),
        (Kind.FORBIDDEN, 403, "permission_error"),
        (Kind.NO_ROUTE, 404, "not_found_error"),
        (Kind.NO_METHOD, 405, _INVALID),
        (Kind.NO_MODEL, 404, "not_found_error"),
        (Kind.MEDIA_TYPE, 415, _INVALID),
        (Kind.TOO_LARGE, 413, "request_too_large"),
        (Kind.CONTEXT_LENGTH, 400, _INVALID),
        (Kind.LIMITED, 429, "rate_limit_error"),
        (Kind.OVERLOADED, 529, "overloaded_error"),
        (Kind.NO_WORKER, 503, "overloaded_error"),
        (Kind.DRAINING, 503, "overloaded_error"),
        (Kind.TIMEOUT, 504, "timeout_error"),
        (Kind.UPSTREAM, 502, "api_error"),
        (Kind.TRUNCATED, 502, "api_error"),
        (Kind.CLIENT_GONE, 499, "api_error"),
        (Kind.INTERNAL, 500, "api_error"),
    )
}
"""Kind -> (status, type, code); the code is the `error_code` in an error's details."""

# The messages by which engines refuse a prompt that is too long: our own, vLLM's, llama.cpp's and TGI's.
_NUMBERS = tuple(
    re.compile(text)
    for text in (
        r"the prompt has (?P<n>\d+) tokens; this model's context is (?P<m>\d+)",
        r"maximum context length is (?P<m>\d+) tokens.*?requested (?P<o>\d+) output tokens"
        r".*?contains (?:at least )?(?P<n>\d+) input tokens",
        r"maximum context length is (?P<m>\d+) tokens and your request has (?P<n>\d+) input tokens \((?P<o>\d+) >",
        r"maximum context length is (?P<m>\d+) tokens.*?requested \d+ tokens \((?P<n>\d+) in the messages, "
        r"(?P<o>\d+) in the completion",
        r"maximum context length is (?P<m>\d+) tokens.*?(?:has|contains|requested) (?P<n>\d+) (?:input )?tokens",
        r"prompt \(length (?P<n>\d+)\) is longer than the maximum model length of (?P<m>\d+)",
        r"request \((?P<n>\d+) tokens\) exceeds the available context size \((?P<m>\d+) tokens\)",
        r"must be <= (?P<m>\d+)\. Given: (?P<n>\d+) `inputs` tokens and (?P<o>\d+) `max_new_tokens`",
        r"must have less than (?P<m>\d+) tokens\. Given: (?P<n>\d+)",
    )
)
# Longer texts are not searched.
_MOST_TEXT = 2000


def too_long(message: str) -> str:
    """The message for a prompt that does not fit, in one of the two forms that Claude Code recognises. After "prompt is
    too long" it compacts its session. After "input length and `max_tokens` exceed context limit" it asks again with a
    smaller `max_tokens`."""
    for pattern in _NUMBERS:
        found = pattern.search(message[:_MOST_TEXT])
        if found is not None:
            prompt, most = int(found["n"]), int(found["m"])
            output = int(found.groupdict().get("o") or 0)
            if prompt < most and prompt + output > most:
                return (
                    f"input length and `max_tokens` exceed context limit: {prompt} + {output} > {most}, "
                    "decrease input length or `max_tokens` and try again"
                )
            return f"prompt is too long: {prompt} tokens > {most} maximum"
    return f"prompt is too long: {message}"


def error_object(error: GatewayError, request: Request | None = None, op: Op | None = None) -> dict[str, Any]:
    """The error body. It calls the invalid field by the client's name."""
    message = error.message
    if error.kind is Kind.CONTEXT_LENGTH:
        message = too_long(message)
    elif error.param is not None:
        fields = FIELDS["count" if isinstance(op, CountTokens) else "chat"]
        name = own_name(error.param, fields, sent_names(request.body) if request is not None else ())
        message = message.replace(f"'{error.param}'", f"'{name}'")
        if name not in message:
            message = f"{name}: {message}"
    _, type_, code = ERRORS[error.kind]
    details = {"error_code": error.code or code}
    told: dict[str, Any] = {"type": "error", "error": {"type": type_, "message": message, "details": details}}
    if request is not None and request.id:
        told["request_id"] = request.id
    return told


def error_event(error: GatewayError, op: Op) -> bytes:
    """The last event of a failed stream."""
    return sse.frame(encode_line(error_object(error, None, op)), b"error")


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    """(the answer, its code). If the workers cannot count tokens, the counting path is a 404: clients then estimate."""
    status = ERRORS[error.kind][0]
    told = error_object(error, request, op)
    if error.kind is Kind.UNSUPPORTED and request is not None and request.route == "count":
        status, told["error"]["type"] = 404, "not_found_error"
    headers: Headers = error_headers(error, 503 if status == 529 else status)
    if status == 401:
        headers.append((b"x-should-retry", b"false"))
    return Response(status, [JSON_TYPE, *headers], encode(told)), error.code or ERRORS[error.kind][2]
