"""Errors in Google's form, as a response and within a stream: `google.rpc.Status`, with details.

Source: AIP-193; what Gemini CLI reads of it (`googleQuotaErrors.ts`).
"""

from __future__ import annotations

from typing import Any

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request, Response
from gateway.core.messages import Op
from gateway.dialects._shared.api import Errors
from gateway.dialects._shared.faults import cannot_count, in_own_words, refusal
from gateway.dialects.gemini.fields import FIELDS
from gateway.wire.json import encode_line
from gateway.wire.openai.replies import refusals

_WORDS = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""HTTP status -> status of gRPC; for any other one it is `INVALID_ARGUMENT`."""

ERRORS: Errors = {
    kind: (status, _WORDS.get(status, "INVALID_ARGUMENT"), kind.value)
    for kind, (status, _, _) in refusals.ERRORS.items()
}
"""Kind -> (HTTP status, status of gRPC, code). The code is the `reason` of an error's details, in capitals."""

_TYPE = "type.googleapis.com/google.rpc."
_REASONS = {Kind.UNAUTHENTICATED: "API_KEY_INVALID"}
_FIELDS = (Kind.BAD_REQUEST, Kind.UNSUPPORTED, Kind.CONTEXT_LENGTH)


def error_object(error: GatewayError, request: Request | None, op: Op | None, status: int) -> dict[str, Any]:
    """The error body. It calls the invalid field by the client's name."""
    message, field = in_own_words(error, error.param, FIELDS, request, op)
    code = error.code or ERRORS[error.kind][2]
    reason = _REASONS.get(error.kind, code.upper()) if error.code is None else code.upper()
    about = {"@type": f"{_TYPE}ErrorInfo", "reason": reason, "domain": "dragoman", "metadata": {"code": code}}
    details: list[dict[str, Any]] = [about]
    if field is not None and error.kind in _FIELDS:
        violation = {"field": field, "description": message}
        details.append({"@type": f"{_TYPE}BadRequest", "fieldViolations": [violation]})
    if status in (429, 503) and error.retry_after is not None:
        details.append({"@type": f"{_TYPE}RetryInfo", "retryDelay": f"{refusals.wait_ms(error) / 1000:.3f}s"})
    word = _WORDS.get(status, "INVALID_ARGUMENT")
    return {"error": {"code": status, "message": message, "status": word, "details": details}}


def error_line(error: GatewayError, op: Op) -> bytes:
    """The error of a failed stream, as JSON on one line. Google's own servers do not make it an event of a stream of
    events either, and `@google/genai` before 2.0 reads it only so."""
    return encode_line(error_object(error, None, op, ERRORS[error.kind][0]))


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    """(the answer, its code). A worker's own 4xx keeps its status. If no worker can count tokens, the status is 404."""
    status = refusals.status_of(error, ERRORS)
    if error.param is None and cannot_count(error, request):
        status = 404
    return refusal(error, status, error_object(error, request, op, status)), error.code or ERRORS[error.kind][2]
