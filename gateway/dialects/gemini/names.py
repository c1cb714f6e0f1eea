"""The two spellings of names in protobuf's JSON: `maxOutputTokens` and `max_output_tokens` are one member.

Most clients write camelCase, as the views have it. Only a body that the views refuse is searched for the other
spelling. Arguments and schemas belong to the user: nothing in them is renamed.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from functools import cache
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import fields

from gateway.core.errors import GatewayError
from gateway.core.fields import ExtrasPolicy
from gateway.core.messages import Extra
from gateway.dialects._shared.objects import members_of
from gateway.wire.json import NULL, bad_value, decoded, encode, items_of, typed
from gateway.wire.unknown import View, begins, known_to, read_known

Body = TypeVar("Body", bound=Struct)
_LETTER = re.compile(r"_([a-z0-9])")


def in_camel_case(found: Mapping[str, Raw], known: Container[str]) -> Extra:
    """`found` with the names in `known` for their other spelling. Raises GatewayError(BAD_REQUEST) for a member that
    stands there in both."""
    renamed: Extra = {}
    for name, raw in found.items():
        own = name
        if "_" in name:
            camel = _LETTER.sub(lambda match: match[1].upper(), name)
            own = camel if camel in known else name
        if own != name and renamed.get(own, found.get(own, NULL)) != NULL:
            raise bad_value(own, f"'{name}' and '{own}' are the same: send one of them")
        if raw != NULL or own not in renamed:
            renamed[own] = raw
    return renamed


@cache
def _raw_members(view: View) -> tuple[tuple[str, str], ...]:
    """(attribute, name) of each member that is kept as JSON text."""
    return tuple((one.name, one.encode_name) for one in fields(view) if one.type is Raw)


def unread_in(found: Struct, *read: str) -> list[str]:
    """The names of the given members that are kept as JSON text, but for the attributes that are `read`."""
    return [name for own, name in _raw_members(type(found)) if own not in read and getattr(found, own) != NULL]


def read_named(raw: Extra, decoder: msgspec.json.Decoder[Body], policy: ExtrasPolicy) -> tuple[Body, tuple[str, ...]]:
    """As `read_known`, for a body whose inner members may have either spelling."""
    try:
        return typed(encode(raw), decoder), ()
    except GatewayError:
        return read_known(_object(raw, decoder.type), decoder, policy)


def _object(found: Mapping[str, Raw], view: View) -> Extra:
    known = known_to(view)
    renamed = in_camel_case(found, known)
    for name, raw in renamed.items():
        inner = known.get(name)
        if inner is not None:
            renamed[name] = _value(raw, inner)
    return renamed


def _value(raw: Raw, view: View) -> Raw:
    """A member with the names of `view` in it or in the objects of its array; whatever else it is, as it is. No array
    of this API is an item of another one."""
    if not begins(raw, b"["):
        return _item(raw, view)
    items = decoded(items_of, raw)
    return raw if items is None else Raw(encode([_item(item, view) for item in items]))


def _item(raw: Raw, view: View) -> Raw:
    found = members_of(raw) if begins(raw, b"{") else None
    return raw if found is None else Raw(encode(_object(found, view)))
