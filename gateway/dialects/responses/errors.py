"""Errors of the Responses API: as a response, and as the last two events of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import own_name
from gateway.core.http import JSON_TYPE, Headers, Request, Response
from gateway.core.messages import CountTokens, Op
from gateway.dialects.responses.fields import FIELDS
from gateway.wire.json import encode, sent_names
from gateway.wire.openai.replies import refusals

ERRORS: Mapping[Kind, tuple[int, str, str]] = refusals.ERRORS
"""Kind -> OpenAI's (status, type, code)."""
NO_SOCKET = "websocket_unsupported"
"""The code of the reply to a web socket request. The client then uses POST."""
NO_DEPLOYMENT = "DeploymentNotFound"
"""Azure's code for a model that the path names."""


def error_object(error: GatewayError, request: Request | None = None, op: Op | None = None) -> dict[str, Any]:
    """{message, type, param, code}, a field by the name that the caller knows."""
    _, type_, code = ERRORS[error.kind]
    message, param = error.message, error.param
    if param is not None:
        fields = FIELDS["count" if isinstance(op, CountTokens) else "chat"]
        # Items and messages have different indices.
        canonical = "messages" if param.startswith("messages.") else param
        param = own_name(canonical, fields, sent_names(request.body) if request is not None else ())
        message = message.replace(f"'{error.param}'", f"'{param}'")
        if param not in message:
            message = f"{param}: {message}"
    return {"message": message, "type": type_, "param": param, "code": error.code or code}


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    """The answer, and its code. A worker's own 4xx keeps its status. Where no worker can count tokens, the path is not
    there."""
    told, param = error_object(error, request, op), error.param
    if error.kind is Kind.NO_MODEL and request is not None and request.params.get("deployment"):
        told["code"] = NO_DEPLOYMENT
    status = refusals.status_of(error)
    if error.code == NO_SOCKET:
        status = 426
    elif error.kind is Kind.UNSUPPORTED and param is None and request is not None and request.route == "count":
        status = 404
    headers: Headers = refusals.error_headers(error, status)
    return Response(status, [JSON_TYPE, *headers], encode({"error": told})), told["code"]
