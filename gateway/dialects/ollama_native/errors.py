"""Errors of Ollama's API: one text, in a body or as the last line of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import Field, own_words
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.messages import Op
from gateway.dialects.ollama_native.fields import FIELDS
from gateway.dialects.ollama_native.requests import OPERATIONS
from gateway.wire.json import encode, encode_line, find, sent_names
from gateway.wire.openai.replies import refusals

ERRORS: Mapping[Kind, tuple[int, str, str]] = refusals.ERRORS

# vLLM's name of a parameter that the model cannot do -> Ollama's message, which clients look for.
_CANNOT = {"reasoning_effort": "does not support thinking", "tools": "does not support tools"}
_MOST_NAME = 128


def told(error: GatewayError, request: Request | None = None) -> str:
    """The text of the error: Ollama's own message if clients look for it; else ours, with the client's name of the
    field."""
    if request is None:
        return error.message
    operation = OPERATIONS.get(request.route)
    if error.kind is Kind.NO_MODEL:
        return f"model '{_asked(request)}' not found"
    if error.kind is Kind.CONTEXT_LENGTH and operation == "embed":
        return f"the input length exceeds the context length: {error.message}"
    if error.kind is Kind.UNSUPPORTED and error.param in _CANNOT:
        return f'"{_asked(request)}" {_CANNOT[error.param]}'
    fields: Sequence[Field] = FIELDS[operation] if operation is not None else ()
    return own_words(error, fields, sent_names(request.body))


def _asked(request: Request) -> str:
    """The model named in the body."""
    for member in ("model", "name"):
        raw = find(request.body, member)
        if raw is not None and bytes(memoryview(raw)[:1]) == b'"':
            return str(msgspec.json.decode(raw))[:_MOST_NAME]
    return ""


def error_line(error: GatewayError) -> bytes:
    """The last line of a failed stream."""
    return encode_line({"error": told(error), "code": error.code or ERRORS[error.kind][2]}) + b"\n"


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    """(the answer, its code). Clients read the text; the code stands beside it."""
    status, _, code = ERRORS[error.kind]
    code = error.code or code
    body = encode({"error": told(error, request), "code": code})
    return Response(status, [JSON_TYPE, *refusals.error_headers(error, status)], body), code
