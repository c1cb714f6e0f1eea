"""Scores of documents: requests as Jina, vLLM and llama.cpp read them, and replies in any of their forms.

Sources: vLLM 0.33.0 `entrypoints/pooling/scoring/protocol.py`, llama.cpp's `tools/server`, Jina's reference.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import msgspec
from msgspec import Struct

from gateway.core.http import Response
from gateway.core.lifecycle import Scores
from gateway.core.messages import Score
from gateway.core.ports import Capabilities
from gateway.core.usage import Usage
from gateway.wire.openai.replies import views as wire
from gateway.wire.openai.replies.excess import refuse_longer
from gateway.wire.openai.requests.parts import put
from gateway.wire.openai.requests.unsupported import unsupported

RERANK, SCORE = "/v1/rerank", "/v1/score"
"""Never the same paths without the version: vLLM answers those without a key."""


class _ResultIn(Struct):
    """One pair, in the form of a reranking (`relevance_score`) or of a list of scores (`score`)."""

    index: wire.Index
    relevance_score: float | None = None
    score: float | None = None


class _UsageIn(Struct):
    prompt_tokens: wire.Count | None = None
    total_tokens: wire.Count | None = None


class _ScoresIn(Struct):
    results: list[_ResultIn] | None = None
    data: list[_ResultIn] | None = None
    model: str | None = None
    usage: _UsageIn | None = None
    error: wire.ErrorIn | str | None = None


_scores = msgspec.json.Decoder(_ScoresIn)


def rerank_body(op: Score, can: Capabilities, backend: str) -> dict[str, Any]:
    """The members of a request to rank documents. There is no `top_n`: with all scores, the dialect makes the order.

    Raises GatewayError(UNSUPPORTED) for several queries.
    """
    if len(op.queries) != 1:
        raise unsupported("text_1", backend, "it takes one query for all documents")
    body: dict[str, Any] = {**op.extra, "model": can.upstream_model, "query": op.queries[0], "documents": op.documents}
    put(body, user=op.user)
    return body


def pairs_body(op: Score, can: Capabilities) -> dict[str, Any]:
    """The members of vLLM's request for the scores of pairs, in the names that all of its versions have."""
    body = {**op.extra, "model": can.upstream_model, "text_1": op.queries, "text_2": op.documents}
    put(body, user=op.user)
    return body


def read_scores(response: Response, op: Score) -> Scores:
    """The reply to `op`, with scores in the order of its documents. Raises GatewayError(UPSTREAM) for a reply that is
    not whole: an error, a document left out or named twice, or a score that is not finite."""
    refuse_longer(response.body, len(op.documents))
    found = wire.decoded(response.body, _scores)
    if found.error is not None:
        raise wire.late_fault(found.error)
    results = found.results if found.results is not None else found.data
    if results is None or len(results) != len(op.documents):
        raise wire.malformed()
    scores: list[float | None] = [None] * len(results)
    for one in results:
        score = one.relevance_score if one.relevance_score is not None else one.score
        if score is None or not isfinite(score) or one.index >= len(scores) or scores[one.index] is not None:
            raise wire.malformed()
        scores[one.index] = score
    return Scores(found.model or "", tuple(one for one in scores if one is not None), _used(found.usage))


def _used(found: _UsageIn | None) -> Usage | None:
    if found is None:
        return None
    tokens = found.prompt_tokens if found.prompt_tokens is not None else found.total_tokens
    return Usage(tokens, 0) if tokens is not None else None
