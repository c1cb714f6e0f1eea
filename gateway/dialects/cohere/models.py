"""The list of models, in pages, and the card of one model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.messages import ListModels, ModelCard
from gateway.dialects._shared.queries import query, read_page
from gateway.wire.json import encode

_USUAL, _MOST = 20, 1000
# The gateway's feature -> the endpoint of a model that has no others.
_ENDPOINTS = {"embeddings": "embed", "scores": "rerank"}


def read_list(request: Request) -> ListModels:
    """Reads the query of a list: `page_size` models from index `page_token` on, those for one `endpoint`, or the
    default one alone. Raises GatewayError(BAD_REQUEST)."""
    asked = query(request)
    first, most = read_page(asked, "page_size", "page_token", _USUAL, _MOST)
    write = partial(_write_page, first=first, most=most, endpoint=asked.get("endpoint"))
    return ListModels(write=write, one=asked.get("default_only", "").lower() == "true")


def _write_page(cards: Sequence[ModelCard], first: int, most: int, endpoint: str | None) -> Response:
    found = [card for card in map(_card, cards) if endpoint is None or endpoint in card["endpoints"]]
    body: dict[str, Any] = {"models": found[first : first + most]}
    if first + most < len(found):
        body["next_page_token"] = str(first + most)
    return Response(200, [JSON_TYPE], encode(body))


def write_one(cards: Sequence[ModelCard]) -> Response:
    return Response(200, [JSON_TYPE], encode(_card(cards[0])))


def _card(card: ModelCard) -> dict[str, Any]:
    pooling = [name for feature, name in _ENDPOINTS.items() if feature in (card.features or ())]
    only = card.features is not None and card.features <= _ENDPOINTS.keys()
    body: dict[str, Any] = {
        "name": card.name,
        "endpoints": pooling if only else ["chat", *pooling],
        "default_endpoints": [],
        "finetuned": False,
        "is_deprecated": False,
    }
    if card.max_context is not None:
        body["context_length"] = card.max_context
    if card.features is not None:
        body["features"] = sorted(card.features)
    return body
