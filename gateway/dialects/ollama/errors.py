"""Errors of the Ollama-style API, in a body and in both kinds of stream."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from gateway.core.errors import GatewayError
from gateway.core.fields import own_words
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.messages import Chat, Op
from gateway.dialects.ollama.fields import FIELDS
from gateway.wire import sse
from gateway.wire.json import encode, encode_line, find, sent_names
from gateway.wire.openai.replies import refusals

ERRORS = refusals.ERRORS
END = b"data: [END]\n\n"
"""Ends every stream of events."""


def error_object(error: GatewayError, request: Request | None = None) -> dict[str, Any]:
    """The error object: message, type and code. It has no member for the field at fault, so the message names the field
    as the client does."""
    _, type_, code = ERRORS[error.kind]
    message = own_words(error, FIELDS["chat"], sent_names(request.body)) if request is not None else error.message
    return {"message": message, "type": type_, "code": error.code or code}


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    """(the answer, its code). A refusal has an error's status and the form of the reply that the client asked for: a
    stream of events, the last line of a stream of lines, or a whole body."""
    status = ERRORS[error.kind][0]
    headers = refusals.error_headers(error, status)
    told = error_object(error, request)
    if request is not None and request.route == "sse":
        return Response(status, [*sse.HEADERS, *headers], error_events(told)), told["code"]
    body = encode({"error": told, "done": True}) + b"\n" if _asked_for_lines(request, op) else encode({"error": told})
    return Response(status, [JSON_TYPE, *headers], body), told["code"]


def error_events(told: dict[str, Any]) -> bytes:
    """The end of a stream of events that failed. `[END]` also ends a stream that succeeded."""
    return sse.frame(encode_line(told), b"error") + END


def _asked_for_lines(request: Request | None, op: Op | None) -> bool:
    """True if the client asked for lines of JSON. Also works for a request that could not be read."""
    if request is None or request.route != "chat":
        return False
    return op.stream if isinstance(op, Chat) else find(request.body, "stream") == Raw(b"true")
