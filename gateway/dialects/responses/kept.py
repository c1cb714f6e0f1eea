"""Stored responses as clients ask for them by their ids: to read, to list what they were asked, to delete.

Only a background response can be cancelled, and there is none here.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import msgspec
from msgspec import Raw

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import JSON_TYPE, NeedsStored, Request, Response
from gateway.core.messages import AnsweredFromStore
from gateway.dialects.responses.stored import LONGEST, Past, id_of, past_of
from gateway.wire.json import encode

ROUTES = ("stored", "asked", "forget", "cancel")
"""The names of the routes of a stored response."""
_MOST_LISTED, _LISTED = 100, 20


_members = msgspec.json.Decoder(dict[str, Raw])


def read(request: Request) -> AnsweredFromStore:
    """Answers a request about one stored response. Raises NeedsStored for it, and GatewayError: NO_ROUTE (404) for one
    that is not stored, BAD_REQUEST for what cannot be done with it."""
    name = request.params["response"]
    past = _found(name, request)
    if request.route == "forget":
        told = {"id": name, "object": "response", "deleted": True}
        return _told(encode(told), (name, *filter(None, map(id_of, past.output))))
    if request.route == "cancel":
        message = "Cannot cancel a synchronous response."
        raise GatewayError(Kind.BAD_REQUEST, message, code="response_not_in_background")
    query = parse_qs(request.query.decode("latin-1"))
    if request.route == "asked":
        return _told(_page(name, past, query))
    if query.get("stream", ["false"])[-1].lower() == "true":
        raise GatewayError(Kind.UNSUPPORTED, "a stored response is not streamed again", param="stream")
    return _told(bytes(past.response))


def _told(body: bytes, forgets: tuple[str, ...] = ()) -> AnsweredFromStore:
    return AnsweredFromStore(Response(200, [JSON_TYPE], body), forgets)


def _found(name: str, request: Request) -> Past:
    stored = request.stored
    if stored is not None and name not in stored and len(name) <= LONGEST:
        raise NeedsStored((name,))
    text = stored.get(name) if stored is not None else None
    past = past_of(text) if text is not None else None
    if past is None:
        why = "" if stored is not None else ": nothing is stored here"
        message = f"Response with id '{name[:64]}' not found{why}."
        raise GatewayError(Kind.NO_ROUTE, message, code="response_not_found")
    return past


def _page(name: str, past: Past, query: dict[str, list[str]]) -> bytes:
    """The items that led to the response, the latest first unless asked otherwise."""
    told = query.get("limit", [str(_LISTED)])[-1]
    if not (told.isascii() and told.isdigit() and len(told) < 4 and 1 <= int(told) <= _MOST_LISTED):
        raise GatewayError(Kind.BAD_REQUEST, f"'limit' must be a number from 1 to {_MOST_LISTED}", param="limit")
    order = query.get("order", ["desc"])[-1]
    if order not in ("asc", "desc"):
        raise GatewayError(Kind.BAD_REQUEST, "'order' must be asc or desc", param="order")
    items = [(_id_of(raw, name, index), raw) for index, raw in enumerate(past.input)]
    if order == "desc":
        items.reverse()
    after = query.get("after", [None])[-1]
    if after is not None:
        places = [place for place, (item_id, _) in enumerate(items) if item_id == after]
        if not places:
            raise GatewayError(Kind.BAD_REQUEST, f"'after' names no item: '{after[:64]}'", param="after")
        items = items[places[0] + 1 :]
    shown = [_shown(raw, item_id) for item_id, raw in items[: int(told)]]
    page = {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(items) > len(shown),
    }
    return encode(page)


def _id_of(raw: Raw, name: str, index: int) -> str:
    """An item's own id, or one that is always the same: clients need not send any."""
    return id_of(raw) or f"item_{name.removeprefix('resp_')}_{index}"


def _shown(raw: Raw, item_id: str) -> dict[str, Any]:
    """An item in its full form: with a type, an id, and parts instead of a text."""
    item: dict[str, Any] = {"type": "message", **_members.decode(raw), "id": item_id}
    content = item.get("content")
    if content is not None and bytes(memoryview(content)[:1]) == b'"':
        spoken = bytes(item.get("role", b"")) == b'"assistant"'
        item["content"] = [{"type": "output_text" if spoken else "input_text", "text": content}]
    return item
