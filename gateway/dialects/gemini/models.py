"""The list of models, in pages, and the card of one model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.messages import ListModels, ModelCard
from gateway.dialects._shared.queries import query, read_page
from gateway.wire.json import encode

_USUAL, _MOST = 50, 1000
_CHATS = ("generateContent", "countTokens")
_EMBEDDINGS = ("embedContent", "batchEmbedContents")


def read_list(request: Request) -> ListModels:
    """Reads the query of a list: `pageSize` models from index `pageToken` on, or one model. Raises
    GatewayError(BAD_REQUEST)."""
    parent = request.params.get("place")
    if request.route == "model":
        return ListModels(write=partial(_write_one, parent=parent), model=request.params["model"])
    asked = query(request)
    for name, snake in (("pageSize", "page_size"), ("pageToken", "page_token")):
        asked.setdefault(name, asked.get(snake, ""))
    first, most = read_page(asked, "pageSize", "pageToken", _USUAL, _MOST)
    return ListModels(write=partial(_write_page, parent=parent, first=first, most=most))


def _write_page(cards: Sequence[ModelCard], parent: str | None, first: int, most: int) -> Response:
    page = [_card(card, parent) for card in cards[first : first + most]]
    body: dict[str, Any] = {"models" if parent is None else "publisherModels": page}
    if first + most < len(cards):
        body["nextPageToken"] = str(first + most)
    return Response(200, [JSON_TYPE], encode(body))


def _write_one(cards: Sequence[ModelCard], parent: str | None) -> Response:
    return Response(200, [JSON_TYPE], encode(_card(cards[0], parent)))


def _card(card: ModelCard, parent: str | None) -> dict[str, Any]:
    """parent: the publisher on Vertex AI, or what ends with it; None for the Gemini API."""
    if parent is not None:
        publisher = parent.rpartition("/")[2]
        return {"name": f"publishers/{publisher}/models/{card.name}", "versionId": "default", "launchStage": "GA"}
    features = card.features or frozenset()
    methods: tuple[str, ...] = () if features == {"embeddings"} else _CHATS
    methods += _EMBEDDINGS if "embeddings" in features else ()
    body: dict[str, Any] = {
        "name": f"models/{card.name}",
        "baseModelId": card.name,
        "version": "default",
        "displayName": card.name,
        "supportedGenerationMethods": methods,
    }
    if card.max_context is not None:
        body["inputTokenLimit"] = body["outputTokenLimit"] = card.max_context
    if "reasoning" in features:
        body["thinking"] = True
    return body
