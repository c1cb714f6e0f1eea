"""References of a request to stored responses and items, and the values that are stored for them.

A response is kept by its id, whole, with all items that led to it, so that the next one needs no other; each of its
items is kept by its own id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import NeedsStored
from gateway.dialects._shared.faults import decoded
from gateway.wire.bulk import refuse_bulk
from gateway.wire.json import bad_value, encode

LONGEST = 256
"""A longer id is not one of ours."""
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
    unknown = [name for name in dict.fromkeys(names) if name not in stored and len(name) <= LONGEST]
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
    kept = zip(items[:last], read[:last], strict=True)
    return [*(raw for raw, item in kept if item.stays), *items[last:]]


def as_items(found: str | list[Raw]) -> list[Raw]:
    """An input as items."""
    return found if isinstance(found, list) else [Raw(encode({"type": "message", "role": "user", "content": found}))]


def kept(response_id: str, items: list[Raw], response: bytes, output: Sequence[bytes]) -> dict[str, bytes]:
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
    if b"item_reference" not in bytes(memoryview(raw)[: LONGEST * 4]):
        return None
    found = decoded(_head.decode, raw)
    return found.id or "" if found is not None and found.type == "item_reference" else None


def _gone(param: str, message: str, code: str) -> GatewayError:
    return GatewayError(Kind.BAD_REQUEST, message, param=param, code=code)
