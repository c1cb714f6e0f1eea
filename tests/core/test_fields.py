"""Field tables: checks of values, and what becomes of fields that no table knows."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.errors import Kind
from gateway.core.fields import Check, Field, body_members, integer, number, own_name, sort_extras, validate, with_field
from tests.raised import raised

INFINITE, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("check", "value", "wrong"),
    [
        (number(), 1.5, None),
        (number(), 0, None),
        (number(), True, "must be a number"),
        (number(), "1", "must be a number"),
        (number(), NAN, "must be a finite number"),
        (number(), INFINITE, "must be a finite number"),
        (number(), -INFINITE, "must be a finite number"),
        (number(0, 2), 0, None),
        (number(0, 2), 2, None),
        (number(0, 2), -0.1, "must be at least 0"),
        (number(0, 2), 2.1, "must be at most 2"),
        (number(0, above=True), 0, "must be greater than 0"),
        (number(0, above=True), 0.1, None),
        (integer(), 3, None),
        (integer(), 3.0, None),
        (integer(), 3.5, "must be an integer"),
        (integer(), False, "must be an integer"),
        (integer(), "3", "must be an integer"),
        (integer(), INFINITE, "must be an integer"),
        (integer(1), 0, "must be at least 1"),
        (integer(high=4), 5, "must be at most 4"),
    ],
)
def test_check(check: Check, value: Any, wrong: str | None) -> None:
    assert check(value) == wrong


def test_validate_names_the_first_wrong_field() -> None:
    checks = {"a": number(0), "b": integer()}
    validate({}, checks)
    validate({"a": None, "b": 1, "unknown": object()}, checks)
    error = raised(validate, {"b": "x", "a": -1}, checks)
    assert error.kind is Kind.BAD_REQUEST
    assert error.param in ("a", "b")
    assert f"'{error.param}'" in error.message


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
