"""Finds members of nested objects that a typed view does not know, so that they can be named, and kept or dropped.

The views forbid unknown members in nested objects, so an ordinary request has no extra cost. Only a request that a view
refuses comes here. Its unknown members are taken out by the views' fields, and the rest is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType
from typing import Any, TypeVar, cast, get_args

import msgspec
from msgspec import Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import ExtrasPolicy, sort_extras
from gateway.core.messages import Extra, Nested
from gateway.wire.json import NULL, check_depth, encode, items_of, members_of, typed, valid

Body = TypeVar("Body", bound=Struct)
Tree = dict[str | int, "Raw | Tree"]
"""Members at their paths, with items of arrays by index: `{"messages": {0: {"x": 1}}}`."""

View = type[Struct]
KnownMembers = Mapping[str, View | None]
"""The known members of an object, each with the view to search its value by, or None to keep the value as it is."""
Form = Callable[[Mapping[str, Raw]], KnownMembers | None]
"""Returns the known members of an object whose content decides them. None: the object is kept whole."""


class Object(Struct, forbid_unknown_fields=True, gc=False):
    """The base of views of objects inside a body. A member of type `None` may only be null: clients that send a reply
    back include it so. Any other value is unknown."""


# The most objects searched, and the most objects with unknown members: each costs time on the event loop.
MOST_OBJECTS = 1 << 14
MOST_FOUND = 1 << 13
# The most members of one searched object, and the most distinct names of unknown members in a body. Loops over them
# hold the interpreter's lock.
MOST_NAMES = 1000

# The most objects around one that is searched. Each is decoded once more for every object around it.
_DEEPEST = 16

NOTHING: Tree = {}
# The first byte after `[` if the first item may be an object. b"" means that much whitespace follows.
_OF_OBJECTS = (b"{", b"]", b"")


class Unknown(Struct, frozen=True):
    """The unknown members of a body.

    body     the body without the unknown members
    changed  the top-level members that had unknown members, without these
    found    the unknown members, at their paths
    params   each name once, without indices (`messages[].cache_control`) -> its first param
             (`messages.0.cache_control`)
    """

    body: bytes
    changed: Extra
    found: Tree
    params: Mapping[str, str]


def inside(unknown: Tree, key: str | int) -> Tree:
    """The unknown members found inside the member or item `key`."""
    inner = unknown.get(key) if unknown else None
    return inner if isinstance(inner, dict) else NOTHING


def as_extra(unknown: Tree) -> Nested | None:
    """The unknown members found in an object, as the `extra` of its canonical object."""
    return cast("Nested", unknown) or None


def find_unknown(body: bytes, view: View, forms: Mapping[str, Form]) -> Unknown | None:
    """The members inside the top-level members of `body` that `view` does not know. None if there are none, if the body
    is not JSON, or if it has more than `MOST_OBJECTS` objects to search. Objects in more than 16 others are kept whole:
    their reader refuses what it does not know. Null members are taken out too, and count as
    absent. `forms` gives the known members of objects by the name of the member that holds them, alone or in an array.

    Raises GatewayError(BAD_REQUEST) when more than `MOST_FOUND` objects hold something unknown, when one of them or all
    together have more than `MOST_NAMES` names, or when a value is not valid JSON.
    """
    splitter = _Splitter(forms)
    changed: Extra = {}
    found: Tree = {}
    try:
        top = members_of(body)
        for name, inner in known_to(view).items():
            if name in top:
                left, taken = splitter.value(name, top[name], inner)
                if left is not top[name]:
                    top[name] = changed[name] = left
                if taken:
                    found[name] = taken
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not changed:
        return None
    params: dict[str, str] = {}
    _note(found, "", "", params)
    return Unknown(encode(top), changed, found, params)


class _Splitter(Struct):
    """Separates unknown members from objects. A value that does not fit its view is left as it is: its reader refuses
    it."""

    _forms: Mapping[str, Form]
    _objects: int = 0
    _found: int = 0
    _depth: int = 0

    def value(self, name: str, raw: Raw, view: View | None) -> tuple[Raw, Tree]:
        """(the value of the member `name` without the unknown members in it or in the objects of its array, those
        members). The value is `raw` itself if there are none."""
        form = self._forms.get(name)
        if view is None and form is None:
            return raw, {}
        if not begins(raw, b"["):
            self._count(1)
            return self._object(raw, view, form)
        if bytes(memoryview(raw)[1:64]).lstrip()[:1] not in _OF_OBJECTS:
            return raw, NOTHING
        items = items_of(raw)
        self._count(len(items))
        found: Tree = {}
        changed = False
        for index, item in enumerate(items):
            left, taken = self._object(item, view, form)
            if left is not item:
                items[index] = left
                changed = True
                if taken:
                    found[index] = taken
        return (Raw(encode(items)) if changed else raw), found

    def _object(self, raw: Raw, view: View | None, form: Form | None) -> tuple[Raw, Tree]:
        if self._depth > _DEEPEST or not begins(raw, b"{"):
            return raw, NOTHING
        members = members_of(raw)
        known = form(members) if form is not None else known_to(view) if view is not None else None
        if known is None:
            return raw, NOTHING
        if len(members) > MOST_NAMES:
            raise _too_many(f"an object of the request has more than {MOST_NAMES} members")
        found: Tree = {}
        left: dict[str, Raw | None] = {}  # the new value; None: removed
        self._depth += 1
        for name, value in members.items():
            if name not in known:
                left[name] = None
                if value != NULL:
                    found[name] = value
            elif known[name] is not None or name in self._forms:
                inner, taken = self.value(name, value, known[name])
                if inner is not value:
                    left[name] = inner
                    if taken:
                        found[name] = taken
        self._depth -= 1
        if not left:
            return raw, NOTHING
        self._found += 1
        if self._found > MOST_FOUND:
            raise _too_many(f"more than {MOST_FOUND} objects of the request have unknown members")
        for name, instead in left.items():
            if instead is None:
                del members[name]
            else:
                members[name] = instead
        return Raw(encode(members)), found

    def _count(self, more: int) -> None:
        self._objects += more
        if self._objects > MOST_OBJECTS:
            raise ValueError("too many objects")


def _too_many(message: str) -> GatewayError:
    return GatewayError(Kind.BAD_REQUEST, message, code="too_many_values")


def begins(raw: Raw, mark: bytes) -> bool:
    """Whether the first byte of a member or item is `mark`: `{` of an object, `[` of an array."""
    return bytes(memoryview(raw)[:1]) == mark


@cache
def known_to(view: View) -> KnownMembers:
    """The known members of `view`, without those that may only be null."""
    tag = view.__struct_config__.tag_field
    known: dict[str, View | None] = {tag: None} if tag is not None else {}
    for field in msgspec.structs.fields(view):
        if field.type is not NoneType:
            known[field.encode_name] = _view_in(field.type)
    return known


def _view_in(annotation: Any) -> View | None:
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return annotation
    return next((view for part in get_args(annotation) if (view := _view_in(part)) is not None), None)


def _note(tree: Tree, name: str, param: str, params: dict[str, str]) -> None:
    """Enters every member of `tree`, which is at `param`, into `params`. Raises GatewayError(BAD_REQUEST) if a value is
    not valid JSON, or if there are more than `MOST_NAMES` names."""
    for key, value in tree.items():
        here = f"{name}[]" if isinstance(key, int) else f"{name}.{key}" if name else key
        inner = f"{param}.{key}" if param else str(key)
        if isinstance(value, dict):
            _note(value, here, inner, params)
            continue
        if here not in params:
            if len(params) == MOST_NAMES:
                raise _too_many(f"the request has more than {MOST_NAMES} different unknown members")
            params[here] = inner
        if not valid(value):
            check_depth({inner: value})


def read_known(
    raw: Extra, decoder: msgspec.json.Decoder[Body], policy: ExtrasPolicy, kind: Kind = Kind.BAD_REQUEST
) -> tuple[Body, tuple[str, ...]]:
    """(the body in `raw`, the names of unknown members inside its objects), for bodies of which no worker reads such
    members. Raises GatewayError: BAD_REQUEST for a malformed body, `kind` for members that `policy` refuses."""
    body = encode(raw)
    try:
        return typed(body, decoder), ()
    except GatewayError:
        unknown = find_unknown(body, decoder.type, {})
        if unknown is None:
            raise
    found = typed(unknown.body, decoder)
    if policy == "error":
        sort_extras(policy, unknown.params.values(), kind=kind)
    return found, tuple(unknown.params)
