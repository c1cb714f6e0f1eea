"""Errors of TGI's API, as a body or as the last event of a stream. Clients choose their class by `error_type`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import own_words
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.messages import Op
from gateway.dialects.tgi.fields import FIELDS
from gateway.wire import sse
from gateway.wire.json import encode, encode_line, sent_names
from gateway.wire.openai.replies import refusals

ERRORS: Mapping[Kind, tuple[int, str, str]] = {
    kind: (status, type_, kind.value)
    for kind, status, type_ in (
        (Kind.BAD_REQUEST, 422, "validation"),
        (Kind.UNSUPPORTED, 422, "validation"),
        (Kind.UNAUTHENTICATED, 401, "unauthorized"),
        (Kind.FORBIDDEN, 403, "forbidden"),
        (Kind.NO_ROUTE, 404, "not_found"),
        (Kind.NO_METHOD, 405, "not_found"),
        (Kind.NO_MODEL, 404, "not_found"),
        (Kind.MEDIA_TYPE, 415, "validation"),
        (Kind.TOO_LARGE, 413, "validation"),
        (Kind.CONTEXT_LENGTH, 422, "validation"),
        (Kind.LIMITED, 429, "overloaded"),
        (Kind.OVERLOADED, 503, "overloaded"),
        (Kind.NO_WORKER, 503, "healthcheck"),
        (Kind.DRAINING, 503, "healthcheck"),
        (Kind.TIMEOUT, 504, "generation"),
        (Kind.UPSTREAM, 424, "generation"),
        (Kind.TRUNCATED, 500, "incomplete_generation"),
        (Kind.CLIENT_GONE, 499, "generation"),
        (Kind.INTERNAL, 500, "generation"),
    )
}
"""Kind -> (status, error_type, code)."""

# What TGI says before the cause.
_BEFORE = {"validation": "Input validation error: ", "generation": "Request failed during generation: "}


def error_object(error: GatewayError, request: Request | None = None) -> dict[str, Any]:
    """The error; a field by the name that the client knows."""
    _, type_, code = ERRORS[error.kind]
    message = error.message
    if request is not None:
        fields = FIELDS["chat" if request.route == "chat" else "complete"]
        sent = sent_names(request.body)
        message = own_words(error, fields, sent)
        if error.param == "tokens":  # canonical; a client asks for them by one of these
            own = "parameters.details" if "parameters.details" in sent else "stream"
            message = message.replace("'tokens'", f"'{own}'")
        elif error.param == "n" and request.route != "chat":
            message = message.replace("'n'", "'parameters.best_of'")
    return {"error": _BEFORE.get(type_, "") + message, "error_type": type_, "code": error.code or code}


def error_event(error: GatewayError) -> bytes:
    """The last event of a stream that failed."""
    return sse.frame(encode_line(error_object(error)))


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    """(the answer, its code)."""
    status = ERRORS[error.kind][0]
    told = error_object(error, request)
    return Response(status, [JSON_TYPE, *refusals.error_headers(error, status)], encode(told)), told["code"]
