"""Members that a view does not know: found wherever they stand inside a body, and taken out of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from msgspec import Raw, Struct

from gateway.core.errors import Kind
from gateway.wire import unknown
from gateway.wire.unknown import Form, Unknown, find_unknown, known_to
from tests.support.raised import raised


class Inner(Struct):
    a: int = 0


class Item(Struct):
    inner: Inner | None = None
    loose: str | list[Raw] = ""
    gone: None = None


class Tagged(Struct, tag_field="kind", tag="t"):
    x: int = msgspec.field(name="ex", default=0)


class Body(Struct):
    items: list[Item]
    one: Inner | str | None = None
    free: dict[str, Any] = {}
    tagged: Tagged | None = None


def find(body: Any, forms: Mapping[str, Form] | None = None) -> Unknown | None:
    return find_unknown(body if isinstance(body, bytes) else json.dumps(body).encode(), Body, forms or {})


def test_what_a_view_knows() -> None:
    assert known_to(Body) == {"items": Item, "one": Inner, "free": None, "tagged": Tagged}
    assert known_to(Item) == {"inner": Inner, "loose": None}
    assert known_to(Tagged) == {"kind": None, "ex": None}


@pytest.mark.parametrize(
    "body",
    [
        {"items": [{}]},
        {"items": [{"inner": {"a": 1}, "loose": "x"}], "one": {"a": 1}, "tagged": {"kind": "t", "ex": 1}},
        {"items": [], "unknown at the top": {"b": 1}},
        {"items": [], "free": {"anything": {"b": 1}}},
        {"items": [{"loose": [{"b": 1}]}]},
        # Of another form: whoever reads them says so.
        {"items": {"loose": 1}},
        {"items": [[{"b": 1}], 7, "x", None]},
        {"items": "x"},
        {"one": [7]},
        [],
        b"",
        b"{",
        b'{"items":[{"inner":{"a":1,}}]}',
        b"[" * 100_000,
    ],
)
def test_nothing_is_found_where_nothing_is(body: Any) -> None:
    assert find(body) is None


def test_what_is_found_is_named_and_taken_out() -> None:
    body = b"""{"model": "m",
        "items": [{"inner": {"a": 1, "b": 1.0}}, {"b": [1e2], "inner": {"b": 2}}, {"b": "\\u00e9"}],
        "one": {"c": {"a": null}}, "free": {"b": 1}, "tagged": {"kind": "t", "ex": 1, "x": 2}}"""
    met = find(body)
    assert met is not None
    assert met.found == {
        "items": {
            0: {"inner": {"b": Raw(b"1.0")}},
            1: {"b": Raw(b"[1e2]"), "inner": {"b": Raw(b"2")}},
            2: {"b": Raw(b'"\\u00e9"')},
        },
        "one": {"c": Raw(b'{"a": null}')},
        "tagged": {"x": Raw(b"2")},
    }
    assert list(met.params.items()) == [
        ("items[].inner.b", "items.0.inner.b"),
        ("items[].b", "items.1.b"),
        ("one.c", "one.c"),
        ("tagged.x", "tagged.x"),
    ]
    left = json.loads(met.body)
    assert left == {
        "model": "m",
        "items": [{"inner": {"a": 1}}, {"inner": {}}, {}],
        "one": {},
        "free": {"b": 1},
        "tagged": {"kind": "t", "ex": 1},
    }
    assert {name: json.loads(bytes(raw)) for name, raw in met.changed.items()} == {
        name: left[name] for name in ("items", "one", "tagged")
    }


def test_null_is_absent() -> None:
    met = find({"items": [{"b": None, "gone": None}]})
    assert met is not None
    assert (met.found, met.params, json.loads(met.body)) == ({}, {}, {"items": [{}]})


def test_what_may_only_be_null_is_unknown_with_a_value() -> None:
    met = find({"items": [{"gone": 1}]})
    assert met is not None
    assert met.params == {"items[].gone": "items.0.gone"}


def test_an_object_may_say_itself_what_is_known_of_it() -> None:
    def form(members: Mapping[str, Raw]) -> unknown.KnownMembers | None:
        return None if "whole" in members else {"b": None, "deeper": Inner}

    body = {"items": [{"loose": [{"b": 1, "c": 2}, {"whole": 1, "c": 2}, {"deeper": {"a": 1, "c": 2}}]}]}
    met = find(body, {"loose": form})
    assert met is not None
    assert list(met.params) == ["items[].loose[].c", "items[].loose[].deeper.c"]
    assert met.params["items[].loose[].deeper.c"] == "items.0.loose.2.deeper.c"


def test_more_objects_than_can_be_looked_into_are_left_to_their_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who refuses the first unknown member by its name, or whatever else is wrong."""
    monkeypatch.setattr(unknown, "MOST_OBJECTS", 3)
    assert find({"items": [{"b": 1}, {}, {}]}) is not None
    assert find({"items": [{"b": 1}, {}, {}, {}]}) is None


def test_more_objects_than_can_be_changed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown, "MOST_FOUND", 2)
    assert find({"items": [{"b": 1}, {}, {"b": None}, {}]}) is not None
    error = raised(find, {"items": [{"b": 1}, {"b": 1}, {"b": 1}]})
    assert (error.kind, error.code) == (Kind.BAD_REQUEST, "too_many_values")


MANY = {f"z{number}": 1 for number in range(unknown.MOST_NAMES + 1)}


@pytest.mark.parametrize(
    "body",
    [
        {"items": [MANY]},
        {"items": [{"inner": MANY}]},
        {"items": [], "one": MANY},
        {"items": [], "tagged": {"kind": "t", **MANY}},
        {"items": [{name: 1} for name in MANY]},
        {"items": [{"inner": {name: 1}} for name in MANY]},
    ],
    ids=["item", "inside an item", "object", "tagged", "one of each", "one of each inside"],
)
def test_more_names_than_can_be_told_are_refused(body: Any) -> None:
    error = raised(find, body)
    assert (error.kind, error.code) == (Kind.BAD_REQUEST, "too_many_values")


def test_as_many_names_as_are_allowed_are_found_and_free_objects_may_have_more() -> None:
    names = list(MANY)[1:]
    met = find({"items": [dict.fromkeys(names, 1)] * 2, "free": MANY})
    assert met is not None
    assert list(met.params) == [f"items[].{name}" for name in names]


@pytest.mark.parametrize("space", ["", " ", "\n" * 100])
def test_an_array_is_looked_into_wherever_its_first_item_stands(space: str) -> None:
    met = find(b'{"items":[%b{"b":1}]}' % space.encode())
    assert met is not None
    assert met.params == {"items[].b": "items.0.b"}


def test_an_array_of_no_objects_is_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reader refuses it at its first item, however many there are."""
    monkeypatch.setattr(unknown, "MOST_OBJECTS", 3)
    assert find({"items": [1] * 100}) is None
