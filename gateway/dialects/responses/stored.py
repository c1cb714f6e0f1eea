"""Stored responses: the values that are stored, references of a request to them, and requests about one by its id.

A response is stored by its id, whole, with all items that led to it, so that the next one needs no other; each of its
items is stored by its own id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

import msgspec
from msgspec import Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import JSON_TYPE, NeedsStored, Request, Response
from gateway.core.messages import AnsweredFromStore
from gateway.wire.bulk import refuse_bulk
from gateway.wire.json import NULL, bad_value, decoded, encode, encode_line, members_of, objects_of
from gateway.wire.unknown import begins

ROUTES = ("stored", "asked", "forget", "cancel")
"""The names of the routes of a stored response."""
_MOST_LISTED, _LISTED = 100, 20
# A longer id is not one of ours.
_LONGEST = 256
_REASONING = "rs_"
_COMPACTION = b'"compaction"'


class _Output(Struct):
    output: list[Raw]


class Past(Struct):
    """The stored value of a response. input: the items that led to it; response: itself, as its client got it."""

    input: list[Raw]
    response: Raw

    @property
    def output(self) -> list[Raw]:
        """Its own items."""
        return _output.decode(self.response).output


class _Head(Struct):
    type: str | None = None
    id: str | None = None
    role: str | None = None

    @property
    def stays(self) -> bool:
        """Whether a later summary does not stand for it."""
        if self.type in (None, "message"):
            return self.role in ("user", "system", "developer")
        return self.type == "additional_tools"


_past = msgspec.json.Decoder(Past)
_output = msgspec.json.Decoder(_Output)
_head = msgspec.json.Decoder(_Head)
_kind = msgspec.json.Decoder(str | None)


def with_past(
    found: str | list[Raw], previous: str | None, stored: Mapping[str, bytes | None] | None
) -> str | list[Raw]:
    """The input with what it refers to. stored: what is stored under the names that were asked for so far; None where
    nothing is stored. A reference to reasoning that is gone is left in place.

    Raises NeedsStored for names that were not asked for, GatewayError(BAD_REQUEST) for what is not stored (any more),
    for an item that is referred to twice, and for more values than a body may have.
    """
    if stored is None:
        return found
    items = found if isinstance(found, list) else []
    references = {index: name for index, raw in enumerate(items) if (name := _referred(raw)) is not None}
    names = [*([previous] if previous else []), *references.values()]
    unknown = [name for name in dict.fromkeys(names) if name not in stored and len(name) <= _LONGEST]
    if unknown:
        raise NeedsStored(tuple(unknown))
    refuse_bulk(b",".join(text for name in dict.fromkeys(names) if (text := stored.get(name)) is not None))
    resolved = list(items)
    once: set[str] = set()
    for index, name in references.items():
        text = stored.get(name)
        if text is not None:
            if name in once:  # a small request could else stand for any number of bytes
                message = f"Duplicate item found with id {name[:64]}. Remove duplicate items from your input."
                raise bad_value(f"input.{index}", message)
            once.add(name)
            resolved[index] = Raw(text)
        elif not name.startswith(_REASONING):
            raise _gone(f"input.{index}", f"Item with id '{name[:64]}' not found.", "item_not_found")
    if not previous:
        return resolved if references else found
    text = stored.get(previous)
    past = past_of(text) if text is not None else None
    if past is None:
        gone = f"Previous response with id '{previous[:64]}' not found."
        message = gone if text is None else f"'{previous[:64]}' is not a response."
        raise _gone("previous_response_id", message, "previous_response_not_found")
    own = resolved if isinstance(found, list) else as_items(found)
    return [*_standing([*past.input, *past.output]), *own]


def _standing(items: list[Raw]) -> list[Raw]:
    """The items of a history without those that its last summary stands for. Messages of users and developers stay."""
    if not any(_COMPACTION in bytes(item) for item in items):
        return items
    # A head that cannot be read is that of an item of a type that is left out.
    read = [decoded(_head.decode, item) or _Head("unknown") for item in items]
    last = max((index for index, item in enumerate(read) if item.type == "compaction"), default=0)
    earlier = zip(items[:last], read[:last], strict=True)
    return [*(raw for raw, item in earlier if item.stays), *items[last:]]


def beside_summary(items: list[Raw], request_id: str) -> list[bytes]:
    """The items that a summary of `items` does not stand for, in their full form as JSON text."""
    read = ((item, decoded(_head.decode, item)) for item in items)
    standing = [(item, head.id) for item, head in read if head is not None and head.stays]
    return [encode_line(_shown(item, own or f"msg_{request_id}_{at}")) for at, (item, own) in enumerate(standing)]


def as_items(found: str | list[Raw]) -> list[Raw]:
    """An input as items."""
    return found if isinstance(found, list) else [Raw(encode({"type": "message", "role": "user", "content": found}))]


def values_to_store(response_id: str, items: list[Raw], response: bytes, output: Sequence[bytes]) -> dict[str, bytes]:
    """The values to store of a response, by name. response: itself as JSON text; output: its own items."""
    return {response_id: encode(Past(items, Raw(response))), **{id_of(item) or "": item for item in output}}


def id_of(item: Raw | bytes) -> str | None:
    """An item's own id, if it has one."""
    found = decoded(_head.decode, item)
    return found.id if found is not None else None


def past_of(text: bytes) -> Past | None:
    """A response from its stored value; None if the value is that of an item."""
    return decoded(_past.decode, text)


def _referred(raw: Raw) -> str | None:
    """The id that an item refers to, if it is a reference."""
    if b"item_reference" not in bytes(memoryview(raw)[: _LONGEST * 4]):
        return None
    found = decoded(_head.decode, raw)
    return found.id or "" if found is not None and found.type == "item_reference" else None


def _gone(param: str, message: str, code: str) -> GatewayError:
    return GatewayError(Kind.BAD_REQUEST, message, param=param, code=code)


# -- requests about one stored response -------------------------------------------------------------------------------


def read_stored(request: Request) -> AnsweredFromStore:
    """Answers a request about one stored response. Raises NeedsStored for it, and GatewayError: NO_ROUTE (404) for one
    that is not stored, BAD_REQUEST for what cannot be done with it: only a background response can be cancelled, and
    there is none here."""
    name = request.params["response"]
    past = _found(name, request)
    query = parse_qs(request.query.decode("latin-1"))
    forgets: tuple[str, ...] = ()
    match request.route:
        case "forget":
            body = encode({"id": name, "object": "response", "deleted": True})
            forgets = (name, *filter(None, map(id_of, past.output)))
        case "cancel":
            message = "Cannot cancel a synchronous response."
            raise GatewayError(Kind.BAD_REQUEST, message, code="response_not_in_background")
        case "asked":
            body = _page(name, past, query)
        case _:
            if query.get("stream", ["false"])[-1].lower() == "true":
                raise GatewayError(Kind.UNSUPPORTED, "a stored response is not streamed again", param="stream")
            body = bytes(past.response)
    return AnsweredFromStore(Response(200, [JSON_TYPE], body), forgets)


def _found(name: str, request: Request) -> Past:
    stored = request.stored
    if stored is not None and name not in stored and len(name) <= _LONGEST:
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
    limit = query.get("limit", [str(_LISTED)])[-1]
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= _MOST_LISTED):
        raise GatewayError(Kind.BAD_REQUEST, f"'limit' must be a number from 1 to {_MOST_LISTED}", param="limit")
    order = query.get("order", ["desc"])[-1]
    if order not in ("asc", "desc"):
        raise GatewayError(Kind.BAD_REQUEST, "'order' must be asc or desc", param="order")
    # Clients need not send ids. An item without one gets one that is always the same.
    without = f"item_{name.removeprefix('resp_')}_"
    items = [(id_of(raw) or f"{without}{index}", raw) for index, raw in enumerate(past.input)]
    if order == "desc":
        items.reverse()
    after = query.get("after", [None])[-1]
    if after is not None:
        indices = [index for index, (item_id, _) in enumerate(items) if item_id == after]
        if not indices:
            raise GatewayError(Kind.BAD_REQUEST, f"'after' names no item: '{after[:64]}'", param="after")
        items = items[indices[0] + 1 :]
    shown = [_shown(raw, item_id) for item_id, raw in items[: int(limit)]]
    page = {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(items) > len(shown),
    }
    return encode(page)


# The members that the API has in every item and part of a type, with the value for a client that left them out.
_ENDED = {"status": Raw(b'"completed"')}
_IN_FULL: Mapping[str, Mapping[str, Raw]] = {
    **dict.fromkeys(("message", "reasoning"), _ENDED),
    **dict.fromkeys(("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"), _ENDED),
    "output_text": {"annotations": Raw(b"[]"), "logprobs": Raw(b"[]")},
    "input_image": {"detail": Raw(b'"auto"')},
}


def _in_full(members: Mapping[str, Raw], kind: str) -> dict[str, Raw]:
    return {**members, **{name: value for name, value in _IN_FULL.get(kind, {}).items() if _gives_none(members, name)}}


def _gives_none(members: Mapping[str, Raw], name: str) -> bool:
    return members.get(name, NULL) == NULL


def _shown(raw: Raw, item_id: str) -> dict[str, Any]:
    """An item in its full form: with a type, an id and a status, and parts instead of a text."""
    head = _head.decode(raw)
    members = members_of(raw)
    item: dict[str, Any] = {"type": "message", **_in_full(members, head.type or "message"), "id": item_id}
    content = members.get("content", NULL)
    parts: list[dict[str, Raw]] = []
    if begins(content, b'"'):
        kind = b'"output_text"' if head.role == "assistant" else b'"input_text"'
        parts = [{"type": Raw(kind), "text": content}]
    elif begins(content, b"["):
        parts = objects_of(content)
    if parts:
        item["content"] = [_in_full(part, _kind.decode(part.get("type", NULL)) or "") for part in parts]
    return item
