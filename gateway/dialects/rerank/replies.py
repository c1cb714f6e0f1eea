"""Scores, tokens and texts as their clients read them: one body for Cohere's and Jina's, a bare list for TEI's."""

from __future__ import annotations

from typing import Any

from gateway.core.http import JSON_TYPE, Response
from gateway.core.lifecycle import Detokenized, Scores, Tokens
from gateway.core.messages import Op
from gateway.core.usage import Usage
from gateway.dialects.rerank.requests import Ranking
from gateway.wire.json import encode
from gateway.wire.openai.replies import writing
from gateway.wire.openai.replies.defaults import DEFAULTS

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
    body = _ranked(reply, op, op.memo) if isinstance(op.memo, Ranking) else _scored(reply, op)
    return Response(200, [JSON_TYPE], encode(body))


def _ranked(reply: Scores, op: Op, asked: Ranking) -> Any:
    """The best first; of equals the one that was sent first."""
    scores = reply.scores
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: asked.top]
    documents = asked.documents
    if asked.texts:
        return [
            {"index": index, "score": scores[index]} | ({"text": documents[index]["text"]} if documents else {})
            for index in order
        ]
    results = [
        {"index": index, "relevance_score": scores[index]} | ({"document": documents[index]} if documents else {})
        for index in order
    ]
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


def _scored(reply: Scores, op: Op) -> dict[str, Any]:
    return {
        "id": f"score-{op.memo}",
        "object": "list",
        "created": int(DEFAULTS.now()),
        "model": writing.shown(op, reply.model),
        "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(reply.scores)],
        "usage": {**_usage(reply.usage), "completion_tokens": 0},
    }
