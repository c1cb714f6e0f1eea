"""Scores, tokens and texts as their clients read them: one body for Cohere's and Jina's, a bare list for TEI's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import own_name, own_words
from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.lifecycle import Detokenized, Scores, Tokens
from gateway.core.messages import Op
from gateway.core.usage import Usage
from gateway.dialects._shared.faults import refusal
from gateway.dialects.rerank.fields import FIELDS
from gateway.dialects.rerank.requests import OPERATIONS, Ranking
from gateway.wire import clock
from gateway.wire.json import encode, sent_names
from gateway.wire.openai.replies import refusals, writing

_A_SEARCH = 100
"""Documents that Cohere bills as one search."""


def write_tokens(reply: Tokens) -> Response:
    body = {
        "count": len(reply.tokens),
        "max_model_len": reply.max_context,
        "tokens": reply.tokens,
        "token_strs": reply.texts,
    }
    return Response(200, [JSON_TYPE], encode(body))


def write_text(reply: Detokenized) -> Response:
    return Response(200, [JSON_TYPE], encode({"prompt": reply.text}))


def write_scores(reply: Scores, op: Op) -> Response:
    if isinstance(op.memo, Ranking):
        return Response(200, [JSON_TYPE], encode(_ranked(reply, op, op.memo)))
    body = {
        "id": f"score-{op.memo}",
        "object": "list",
        "created": int(clock.seconds()),
        "model": writing.shown(op, reply.model),
        "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(reply.scores)],
        "usage": {**_usage(reply.usage), "completion_tokens": 0},
    }
    return Response(200, [JSON_TYPE], encode(body))


def _ranked(reply: Scores, op: Op, asked: Ranking) -> Any:
    """The best first; of equals the one that was sent first."""
    scores = reply.scores
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: asked.top]
    score = "score" if asked.texts else "relevance_score"
    results = [{"index": index, score: scores[index], **(asked.shown[index] if asked.shown else {})} for index in order]
    if asked.texts:
        return results
    return {
        "id": asked.id,
        "object": "list",
        "model": writing.shown(op, reply.model),
        "results": results,
        "usage": _usage(reply.usage),
        "meta": {
            "api_version": {"version": asked.version},
            "billed_units": {"search_units": -(-len(scores) // _A_SEARCH)},
        },
    }


def _usage(usage: Usage | None) -> dict[str, int]:
    tokens = (usage.input or 0) if usage is not None else 0
    return {"prompt_tokens": tokens, "total_tokens": tokens}


# -- errors -----------------------------------------------------------------------------------------------------------

TEI_ERRORS: Mapping[Kind, tuple[int, str]] = {
    **dict.fromkeys((Kind.BAD_REQUEST, Kind.UNSUPPORTED), (422, "Validation")),
    **dict.fromkeys((Kind.CONTEXT_LENGTH, Kind.TOO_LARGE), (413, "Validation")),
    **dict.fromkeys((Kind.LIMITED, Kind.QUOTA, Kind.OVERLOADED), (429, "Overloaded")),
    **dict.fromkeys((Kind.NO_WORKER, Kind.DRAINING), (503, "Unhealthy")),
    **dict.fromkeys((Kind.TIMEOUT, Kind.UPSTREAM, Kind.TRUNCATED), (424, "Backend")),
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
    body: dict[str, Any] = refusals.error_object(error)
    body["error"]["message"] = body["message"] = body["detail"] = message
    if error.param is not None:
        body["error"]["param"] = own_name(error.param, fields, sent)
    if request is not None and request.route == "rerank_v2":
        body["id"] = request.id
    status = refusals.status_of(error)
    return refusal(error, status, body), body["error"]["code"]


def _in_teis_form(error: GatewayError, message: str) -> tuple[Response, str]:
    status, word = TEI_ERRORS.get(error.kind, (refusals.ERRORS[error.kind][0], "Validation"))
    return refusal(error, status, {"error": message, "error_type": word}), error.code or error.kind.value
