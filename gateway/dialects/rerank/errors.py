"""Errors: one body that Cohere's, Jina's and OpenAI's clients read, and TEI's for its own requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import own_name, own_words
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.messages import Op
from gateway.dialects.rerank.fields import FIELDS
from gateway.dialects.rerank.requests import OPERATIONS
from gateway.wire.json import encode, sent_names
from gateway.wire.openai.replies import refusals

ERRORS: Mapping[Kind, tuple[int, str, str]] = refusals.ERRORS

TEI_ERRORS: Mapping[Kind, tuple[int, str]] = {
    Kind.BAD_REQUEST: (422, "Validation"),
    Kind.UNSUPPORTED: (422, "Validation"),
    Kind.CONTEXT_LENGTH: (413, "Validation"),
    Kind.TOO_LARGE: (413, "Validation"),
    Kind.LIMITED: (429, "Overloaded"),
    Kind.OVERLOADED: (429, "Overloaded"),
    Kind.NO_WORKER: (503, "Unhealthy"),
    Kind.DRAINING: (503, "Unhealthy"),
    Kind.TIMEOUT: (424, "Backend"),
    Kind.UPSTREAM: (424, "Backend"),
    Kind.TRUNCATED: (424, "Backend"),
    Kind.INTERNAL: (500, "Backend"),
}
"""Kind -> (status, error_type) for a client of TEI. Others have our status, and are "Validation"."""


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    """(the answer, its code). A field has the name that the client knows."""
    operation = OPERATIONS.get(request.route, request.route) if request is not None else ""
    fields, sent = FIELDS.get(operation, ()), frozenset[str]()
    if request is not None:
        sent = sent_names(request.body)
    message = own_words(error, fields, sent)
    if operation == "rerank" and "texts" in sent:
        return _in_teis_form(error, message)
    told: dict[str, Any] = refusals.error_object(error, ERRORS)
    told["error"]["message"] = told["message"] = told["detail"] = message
    if error.param is not None:
        told["error"]["param"] = own_name(error.param, fields, sent)
    if request is not None and request.route == "rerank_v2":
        told["id"] = request.id
    status = refusals.status_of(error, ERRORS)
    return Response(status, [JSON_TYPE, *refusals.error_headers(error, status)], encode(told)), told["error"]["code"]


def _in_teis_form(error: GatewayError, message: str) -> tuple[Response, str]:
    status, word = TEI_ERRORS.get(error.kind, (ERRORS[error.kind][0], "Validation"))
    body = encode({"error": message, "error_type": word})
    return Response(status, [JSON_TYPE, *refusals.error_headers(error, status)], body), error.code or error.kind.value
