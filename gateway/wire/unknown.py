"""Members inside the objects of a request that a typed view does not know: found, named, and kept or left out.

The views forbid unknown members in what they nest, so that an ordinary request pays nothing. Only a request that they
refuse comes here: it is taken apart by the views' own fields, and what is left of it is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType
from typing import Any, get_args

import msgspec
from msgspec import Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import Extra
from gateway.wire.json import NULL, check_depth, encode, valid

Tree = dict[str | int, "Raw | Tree"]
"""Members where they stood, items of arrays by their index: `{"messages": {0: {"x": 1}}}`."""

View = type[Struct]
KnownMembers = Mapping[str, View | None]
"""The members that are known of an object, and the view of each that is looked into."""
Form = Callable[[Mapping[str, Raw]], KnownMembers | None]
"""What is known of an object whose own members decide on that; None: it is kept whole."""

# So many are looked into and so many taken out, for each takes its time, in which nobody else is served.
MOST_OBJECTS = 1 << 14
MOST_FOUND = 1 << 13
# Members of one object that is looked into, and distinct places of unknown members in all: loops over them hold the
# interpreter's lock, and each place is a name that clients may be told.
MOST_NAMES = 1000

_NOTHING: Tree = {}
# What an array begins with if its first item may be an object; b"" is much space.
_OF_OBJECTS = (b"{", b"]", b"")
_object = msgspec.json.Decoder(dict[str, Raw])
_array = msgspec.json.Decoder(list[Raw])


class Unknown(Struct, frozen=True):
    """What was found in a body.

    body     the body without it
    changed  the top-level members that it was found in, without it
    found    it, where it stood
    places   by name, without indices and each once (`messages[].cache_control`), where it first stood
             (`messages.0.cache_control`)
    """

    body: bytes
    changed: Extra
    found: Tree
    places: Mapping[str, str]


def find_unknown(body: bytes, view: View, forms: Mapping[str, Form]) -> Unknown | None:
    """What `view` does not know inside the top-level members of `body`; None if there is nothing, if the body is not
    even JSON, or if there are more than `MOST_OBJECTS` to look into. Members that are null are taken out too, and count
    as absent. `forms` is about objects by the name of the member they stand in, alone or in an array.

    Raises GatewayError(BAD_REQUEST) when more than `MOST_FOUND` objects hold something unknown, when one of them or all
    together have more than `MOST_NAMES` names, or when a value is not valid JSON.
    """
    splitter = _Splitter(forms)
    changed: Extra = {}
    found: Tree = {}
    try:
        top = _object.decode(body)
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
    places: dict[str, str] = {}
    _note(found, "", None, places)
    return Unknown(encode(top), changed, found, places)


class _Splitter:
    """Takes objects apart. A value of another form than its view's is left as it is, to be refused by its reader."""

    def __init__(self, forms: Mapping[str, Form]) -> None:
        self._forms = forms
        self._objects = 0
        self._found = 0

    def value(self, name: str, raw: Raw, view: View | None) -> tuple[Raw, Tree]:
        """(the value of the member `name` without what is unknown in it, or in the objects of its array, and that).
        The first is `raw` itself where there is nothing."""
        form = self._forms.get(name)
        if view is None and form is None:
            return raw, {}
        if not _begins(raw, b"["):
            self._count(1)
            return self._object(raw, view, form)
        if bytes(memoryview(raw)[1:64]).lstrip()[:1] not in _OF_OBJECTS:
            return raw, _NOTHING
        items = _array.decode(raw)
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
        if not _begins(raw, b"{"):
            return raw, _NOTHING
        members = _object.decode(raw)
        known = form(members) if form is not None else known_to(view) if view is not None else None
        if known is None:
            return raw, _NOTHING
        if len(members) > MOST_NAMES:
            raise _too_many(f"an object of the request has more than {MOST_NAMES} members")
        found: Tree = {}
        left: dict[str, Raw | None] = {}  # what is there instead; None: nothing
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
        if not left:
            return raw, _NOTHING
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


def _begins(raw: Raw, mark: bytes) -> bool:
    return bytes(memoryview(raw)[:1]) == mark


@cache
def known_to(view: View) -> KnownMembers:
    """What `view` knows. Members that may only be null are none."""
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


_Path = tuple["_Path | None", str | int]
"""(that of the object or array around, key): a text is made of it only where it is shown."""


def _note(tree: Tree, name: str, around: _Path | None, places: dict[str, str]) -> None:
    """Enters every member found into `places`. Raises GatewayError(BAD_REQUEST) if its value is not valid JSON, or if
    there are more than `MOST_NAMES` places."""
    for key, value in tree.items():
        here = f"{name}[]" if isinstance(key, int) else f"{name}.{key}" if name else key
        path = (around, key)
        if isinstance(value, dict):
            _note(value, here, path, places)
            continue
        if here not in places:
            if len(places) == MOST_NAMES:
                raise _too_many(f"the request has more than {MOST_NAMES} different unknown members")
            places[here] = _place(path)
        if not valid(value):
            check_depth({_place(path): value})


def _place(path: _Path | None) -> str:
    keys: list[str] = []
    while path is not None:
        path, key = path
        keys.append(str(key))
    return ".".join(reversed(keys))
