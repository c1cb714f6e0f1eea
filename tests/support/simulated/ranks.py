"""The endpoints that rank: documents for a query, and scores of pairs."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from tests.support.simulated import requests as wire
from tests.support.simulated import tokenizer
from tests.support.simulated.answers import Worker, check_model, fault_of, identify, launch
from tests.support.simulated.http import Connection, Request
from tests.support.simulated.jobs import Plain
from tests.support.simulated.ledger import Entry
from tests.support.simulated.plan import Plan, script_of

_SIDES = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))


def score_of(query: str, document: str) -> float:
    """Between 0 and 1, drawn from the texts alone: the more of the query's words a document has, the higher."""
    words = query.lower().split()
    found = set(document.lower().split())
    drawn = zlib.crc32(f"{query}\0{document}".encode("utf-8", "surrogatepass")) / 2**32
    return (sum(word in found for word in words) + 0.1 + 0.8 * drawn) / (len(words) + 1)


def rerank(worker: Worker, connection: Connection, request: Request, entry: Entry) -> None:
    """POST /rerank, /v1/rerank, /v2/rerank: documents in the order of their scores, with their texts."""
    asked = wire.decode(wire.rerank_decoder, request.body)
    check_model(worker, asked.model)
    documents = [asked.documents] if isinstance(asked.documents, str) else asked.documents
    if not documents:
        raise wire.bad("At least one text_pair element must be given")
    texts = [_text(one) for one in documents]
    query = _text(asked.query)
    scores, tokens = _scores(worker, asked, [query] * len(texts), texts)
    best = sorted(range(len(texts)), key=lambda index: -scores[index])[: asked.top_n or None]
    body: dict[str, Any] = {
        "id": identify(request, "rerank", None),
        "model": worker.options.models[0],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "results": [
            {"index": at, "document": {"text": texts[at], "multi_modal": None}, "relevance_score": scores[at]}
            for at in best
        ],
    }
    script = script_of(query, None)
    _answer(worker, connection, request, entry, asked, body, tokens, script.fault if script else None)


def score(worker: Worker, connection: Connection, request: Request, entry: Entry) -> None:
    """POST /score, /v1/score: one query of all documents, or one of each."""
    asked = wire.decode(wire.score_decoder, request.body)
    check_model(worker, asked.model)
    sides = [(getattr(asked, first), getattr(asked, second)) for first, second in _SIDES]
    given = next((pair for pair in sides if None not in pair), None)
    if given is None:
        raise wire.schema("Field required", "queries", "'body', 'queries'")
    queries, documents = ([side] if isinstance(side, str) else side for side in given)
    if not queries or not documents:
        raise wire.bad("At least one text element must be given")
    if len(queries) not in (1, len(documents)):
        raise wire.bad("Input lengths must be either 1:1, 1:N or N:N")
    scores, tokens = _scores(worker, asked, queries * (len(documents) // len(queries)), documents)
    body = {
        "id": identify(request, "score", None),
        "object": "list",
        "created": int(time.time()),
        "model": worker.options.models[0],
        "data": [{"index": at, "object": "score", "score": one} for at, one in enumerate(scores)],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    }
    _answer(worker, connection, request, entry, asked, body, tokens)


def _text(given: str | wire.Content) -> str:
    if isinstance(given, str):
        return given
    return "".join(str(part.get("text") or "") for part in given.content)


def _scores(
    worker: Worker, asked: wire.Scoring, queries: Sequence[str], documents: Sequence[str]
) -> tuple[list[float], int]:
    """(the scores of the pairs, the tokens that the model reads). Raises Refused for a pair beyond the context."""
    scores, tokens = [], 0
    for query, document in zip(queries, documents, strict=True):
        if asked.max_tokens_per_doc:
            document = tokenizer.decode(tokenizer.encode(document)[: asked.max_tokens_per_doc])
        pair = tokenizer.count(query) + tokenizer.count(document)
        wire.check_context(pair, None, worker.options.max_model_len, False)
        tokens += pair
        found = score_of(query, document)
        scores.append(math.log(found / (1 - found)) if asked.use_activation is False else found)
    return scores, tokens


def _answer(
    worker: Worker,
    connection: Connection,
    request: Request,
    entry: Entry,
    asked: wire.Scoring,
    body: dict[str, Any],
    tokens: int,
    fault: str | None = None,
) -> None:
    """fault: that of the query's script."""
    exchange = Plain(worker, connection, entry, fault_of(worker, request, asked.sim_fault, fault))
    exchange.body = msgspec.json.encode(body)
    launch(worker, exchange, [Plan(eos=False)], tokens, 0)
