"""Canonical replies and errors to Azure's bodies, and errors to the last event of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.lifecycle import Embeddings, Reply, ReplyChoice
from gateway.core.messages import Embed, Generate, ModelCard, Op
from gateway.dialects._shared.api import Errors
from gateway.wire import clock, sse
from gateway.wire.json import decoded, encode, encode_line, find, missing
from gateway.wire.openai.replies import refusals, writing


def info(cards: Sequence[ModelCard]) -> Response:
    """The card of the only model in `cards`. Raises GatewayError (NO_MODEL, BAD_REQUEST) for none or several."""
    if not cards:
        raise GatewayError(Kind.NO_MODEL, "no model is served here")
    found = [card for card in cards if card.alias_of is None] or cards
    if len(found) != 1:
        header = "azureml-model-deployment"
        raise missing(header, f"several models are served here: name one in the header '{header}'")
    features = found[0].features or frozenset()
    kind = "embeddings" if features == {"embeddings"} else "chat_completion"
    body = {"model_name": found[0].name, "model_type": kind, "model_provider_name": "dragoman"}
    return Response(200, [JSON_TYPE], encode(body))


def write_embeddings(reply: Embeddings, op: Op) -> Response:
    vectors = [
        {"index": index, "object": "embedding", "embedding": vector} for index, vector in enumerate(reply.vectors)
    ]
    body = {
        "id": clock.new_id("embd-"),
        "object": "list",
        "data": vectors,
        "model": writing.shown(op, reply.model),
        "usage": writing.write_usage(reply.usage) if reply.usage is not None else None,
    }
    return Response(200, [JSON_TYPE], encode(body))


def write(reply: Reply, op: Generate) -> Response:
    body: dict[str, Any] = {
        "id": reply.start.id,
        "model": writing.shown(op, reply.start.model),
        "choices": [_write_choice(choice) for choice in reply.choices],
        "created": reply.start.created,
        "object": "chat.completion",
    }
    if reply.start.fingerprint is not None:
        body["system_fingerprint"] = reply.start.fingerprint
    body["usage"] = writing.write_usage(reply.usage) if reply.usage is not None else None
    return Response(200, [JSON_TYPE], encode(body))


def _write_choice(choice: ReplyChoice) -> dict[str, Any]:
    """One choice. The specification's content is always a string, also with tool calls."""
    message = writing.write_message(choice)
    message["content"] = message["content"] or ""
    if message["refusal"] is None:
        del message["refusal"]
    body: dict[str, Any] = {"index": choice.index, "finish_reason": choice.reason, "message": message}
    if choice.logprobs:
        body["logprobs"] = {"content": writing.join_logprobs(choice.logprobs)}
    return body


# -- errors -----------------------------------------------------------------------------------------------------------

_PHRASES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    499: "Client Closed Request",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


def _row(kind: Kind, status: int) -> tuple[int, str, str]:
    status = 422 if kind in (Kind.UNSUPPORTED, Kind.CONTEXT_LENGTH) else status
    code = "parameter_not_supported" if kind is Kind.UNSUPPORTED else kind.value
    return status, _PHRASES[status], code


ERRORS: Errors = {kind: _row(kind, status) for kind, (status, _, _) in refusals.ERRORS.items()}
"""Here the second member is the body's `error`, the description. The code is also in x-ms-error-code."""
# NotFoundError, TooManyRequestsError and UnauthorizedError have only three keys.
_BRIEF = frozenset({401, 404, 429})
# The specification allows any number here, and promises a 422 if the model accepts only a smaller range.
_RANGED = frozenset({"temperature", "top_p", "frequency_penalty", "presence_penalty"})
_LONGEST_VALUE = 1024
_IMAGES = "/images/embeddings"
"""The path of the specification's operation that no model here has."""


def error_event(error: GatewayError) -> bytes:
    """The error event of a stream. azure-ai-inference silently skips it; its caller sees only the cut connection."""
    code = error.code or ERRORS[error.kind][2]
    return sse.frame(encode_line({"error": {"code": code, "message": error.message}}))


def refuse(error: GatewayError, request: Request | None, op: Op | None) -> tuple[Response, str]:
    kind, message = _kind(error, request, op), error.message
    if kind is Kind.NO_ROUTE and (error.kind is not kind or (request is not None and request.path.endswith(_IMAGES))):
        why = "it makes no embeddings" if isinstance(op, Embed) and error.kind is not kind else message
        message = f"Modality not supported by the model: {why}"
    status, phrase, code = ERRORS[kind]
    if kind not in (Kind.NO_ROUTE, Kind.UNSUPPORTED):  # the specification has exactly one code for each of these
        code = error.code or code
    body: dict[str, Any] = {"error": phrase, "message": message, "status": status}
    if status == 422:
        body["code"] = code
        body["detail"] = _detail(error, request, op)
    elif status not in _BRIEF:
        body = {"code": code, "error": phrase, "message": message, "param": error.param or "", "status": status}
    headers = [JSON_TYPE, (b"x-ms-error-code", code.encode())]
    if error.kind is not Kind.UPSTREAM:  # the SDK retries any status that has Retry-After, whatever else is said
        headers += refusals.error_headers(error, status)
    return Response(status, headers, encode(body)), code


def _kind(error: GatewayError, request: Request | None, op: Op | None) -> Kind:
    """The row of the error table: finer than `error.kind` where the specification is.

    A 400 is a request that the specification does not allow. A 422 is one that it allows and the model cannot do. So a
    worker's 400 that names a field the client sent becomes a 422, and so does a number outside the gateway's own range.
    """
    if _beyond_modality(error):
        return Kind.NO_ROUTE
    if error.kind is not Kind.BAD_REQUEST or error.param is None:
        return error.kind
    found, value = _look_up(request, error.param)
    if error.upstream is not None and found:
        return Kind.UNSUPPORTED
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if error.param in _RANGED and number and not (error.param == "temperature" and value < 0):
        return Kind.UNSUPPORTED
    return error.kind


def _beyond_modality(error: GatewayError) -> bool:
    """True if the model cannot do this operation at all: by its configured or advertised features, or by its worker's
    answer."""
    return error.kind is Kind.UNSUPPORTED and error.param is None and error.upstream is None


def _detail(error: GatewayError, request: Request | None, op: Op | None) -> dict[str, Any]:
    """The specification's Detail; `input` is what Microsoft's example and its Python sample call the value."""
    param = error.param or ""
    if error.kind is Kind.CONTEXT_LENGTH:
        param = "input" if isinstance(op, Embed) else "messages"
    value = error.value if error.value is not None else _look_up(request, param)[1]
    text = value if isinstance(value, str) else encode(value).decode()
    text = text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…"
    return {"loc": ["body", *(param.split(".") if param else ())], "value": text, "input": text}


def _look_up(request: Request | None, param: str) -> tuple[bool, Any]:
    """(whether the client sent its top-level member, the value at dotted `param` or None)."""
    if request is None or not param:
        return False, None
    sent = find(request.body, param.partition(".")[0]) is not None
    raw = find(request.body, param) if sent else None
    return sent, decoded(msgspec.json.decode, raw) if raw is not None else None
