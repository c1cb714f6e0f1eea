"""The list of models, in pages, and the card of one model."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from gateway.core.http import JSON_TYPE, Request, Response
from gateway.core.messages import ListModels, ModelCard
from gateway.dialects._shared.faults import wrong_at
from gateway.dialects._shared.queries import query
from gateway.wire.json import encode

_USUAL, _MOST = 20, 1000


def read_list(request: Request) -> ListModels:
    """Reads the query of a list: `limit` models behind `after_id`, or before `before_id`. Raises
    GatewayError(BAD_REQUEST)."""
    asked = query(request)
    text = asked.get("limit", str(_USUAL))
    if not (text.isdecimal() and len(text) < 6 and 1 <= int(text) <= _MOST):
        raise wrong_at("limit", f"must be a number from 1 to {_MOST}")
    after, before = asked.get("after_id"), asked.get("before_id")
    return ListModels(write=partial(_write_page, limit=int(text), after=after, before=before))


def _write_page(cards: Sequence[ModelCard], limit: int, after: str | None, before: str | None) -> Response:
    names = [card.name for card in cards]
    first = _index_of(names, after, "after_id") + 1 if after is not None else 0
    last = _index_of(names, before, "before_id") if before is not None else len(cards)
    more = last - first > limit
    page = cards[first:last]
    page = page[-limit:] if before is not None else page[:limit]
    body = {
        "data": [_card(card) for card in page],
        "has_more": more,
        "first_id": page[0].name if page else None,
        "last_id": page[-1].name if page else None,
    }
    return Response(200, [JSON_TYPE], encode(body))


def _index_of(names: list[str], name: str, param: str) -> int:
    if name not in names:
        raise wrong_at(param, "there is no such model")
    return names.index(name)


def write_one(cards: Sequence[ModelCard]) -> Response:
    return Response(200, [JSON_TYPE], encode(_card(cards[0])))


def _card(card: ModelCard) -> dict[str, Any]:
    body: dict[str, Any] = {
        "type": "model",
        "id": card.name,
        "display_name": card.name,
        "created_at": datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
    }
    if card.max_context is not None:
        body["max_input_tokens"] = card.max_context
    return body
