"""Errors of the Ollama-style API, in a body and in both kinds of stream."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from gateway.core.errors import GatewayError
from gateway.core.fields import own_words
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.messages import Chat, Op
from gateway.dialects.ollama.fields import FIELDS
from gateway.wire.json import encode, find, sent_names
from gateway.wire.openai import writing

ERRORS = writing.ERRORS


def error_object(error: GatewayError, request: Request | None = None) -> dict[str, Any]:
    """The error object: message, type and code. It has no member for the field at fault, so the message names the field
    as the client does."""
    _, type_, code = ERRORS[error.kind]
    message = own_words(error, FIELDS["chat"], sent_names(request.body)) if request is not None else error.message
    return {"message": message, "type": type_, "code": error.code or code}


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    """(the answer, its code). If the client asked for lines of JSON, the answer is like a stream's last line."""
    status = ERRORS[error.kind][0]
    told = error_object(error, request)
    body = encode({"error": told, "done": True}) + b"\n" if _asked_for_lines(request, op) else encode({"error": told})
    return Response(status, [JSON_TYPE, *writing.error_headers(error, status)], body), told["code"]


def _asked_for_lines(request: Request | None, op: Op | None) -> bool:
    """True if the client asked for lines of JSON. Also works for a request that could not be read."""
    if request is None or request.route != "chat":
        return False
    return op.stream if isinstance(op, Chat) else find(request.body, "stream") == Raw(b"true")
