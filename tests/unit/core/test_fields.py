"""Field tables: checks of values, and what becomes of fields that no table knows."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.errors import Kind
from gateway.core.fields import Field, Range, body_members, own_name, sort_extras, validate, with_field
from tests.support.raised import raised


@pytest.mark.parametrize(
    ("allowed", "value", "fault"),
    [
        (Range(0, 2), 0, None),
        (Range(0, 2), 1.5, None),
        (Range(0, 2), 2, None),
        (Range(0, 2), True, "must be a number"),
        (Range(0, 2), "1", "must be a number"),
        (Range(0, 2), -0.1, "must be at least 0"),
        (Range(0, 2), 2.1, "must be at most 2"),
        (Range(0, 2, above=True), 0, "must be greater than 0"),
        (Range(0, 2, above=True), 0.1, None),
        (Range(1, 4, whole=True), 3.0, None),
        (Range(1, 4, whole=True), 3.5, "must be an integer"),
        (Range(1, 4, whole=True), False, "must be an integer"),
        (Range(1, 4, whole=True), "3", "must be an integer"),
        (Range(1, 4, whole=True), 0, "must be at least 1"),
        (Range(1, 4, whole=True), 5, "must be at most 4"),
    ],
)
def test_range(allowed: Range, value: Any, fault: str | None) -> None:
    assert allowed.fault(value) == fault


def test_validate_names_the_first_wrong_field() -> None:
    ranges = {"a": Range(0, 9), "b": Range(0, 9, whole=True)}
    validate({}, ranges)
    validate({"a": None, "b": 1, "unknown": object()}, ranges)
    error = raised(validate, {"b": "x", "a": -1}, ranges)
    assert (error.kind, error.param, error.code) == (Kind.BAD_REQUEST, "a", "invalid_value")
    assert error.message == "'a' must be at least 0"


def test_unknown_fields_under_each_policy() -> None:
    assert sort_extras("pass", ["x", "y"]) == (("x", "y"), ())
    assert sort_extras("drop", iter(["x", "y"])) == ((), ("x", "y"))
    assert sort_extras("error", []) == ((), ())
    error = raised(sort_extras, "error", ["x", "y"])
    assert (error.kind, error.param, error.code) == (Kind.BAD_REQUEST, "x", "unknown_parameter")
    assert "'x', 'y'" in error.message
    assert raised(sort_extras, "error", ["x"], kind=Kind.UNSUPPORTED).kind is Kind.UNSUPPORTED


FIELDS = (
    Field("prompt", "mapped"),
    Field("tokens", "renamed", to="prompt", sample=[1], beside={"prompt": None}),
    Field("options", "consumed"),
    Field("options.stop", "renamed", to="stop"),
    Field("stop", "mapped"),
    Field("beams", "renamed", to="use_beam_search, n"),
    Field("form", "renamed", to="a or b"),
    Field("X-Team", "ignored", where="header"),
)


@pytest.mark.parametrize(
    ("param", "sent", "own"),
    [
        ("prompt", (), "prompt"),
        ("prompt", ("tokens",), "tokens"),
        ("prompt", ("prompt", "tokens"), "prompt"),
        ("stop", (), "stop"),
        ("stop", ("options", "options.stop"), "options.stop"),
        ("n", (), "beams"),
        ("a", (), "form"),
        ("b.c.0", ("form",), "form.c.0"),
        ("options.temperature", (), "options.temperature"),
        ("unknown.0", (), "unknown.0"),
    ],
)
def test_a_parameter_has_the_name_that_the_client_gave_it(param: str, sent: tuple[str, ...], own: str) -> None:
    assert own_name(param, FIELDS, sent) == own


def test_a_field_is_put_where_it_belongs() -> None:
    least = {"prompt": "x"}
    assert with_field(least, FIELDS[1], [2]) == {"tokens": [2]}
    assert with_field(least, FIELDS[3], "y") == {"prompt": "x", "options": {"stop": "y"}}
    assert least == {"prompt": "x"}
    assert body_members({"chat": FIELDS})["chat"] == {"prompt", "tokens", "options", "stop", "beams", "form"}
