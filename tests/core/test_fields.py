"""Field tables: checks of values, and what becomes of fields that no table knows."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import (
    Check,
    boolean,
    either,
    integer,
    list_of,
    number,
    one_of,
    sort_extras,
    string,
    validate,
)

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
        (boolean, True, None),
        (boolean, 1, "must be true or false"),
        (string, "", None),
        (string, b"", "must be a string"),
        (one_of("a", "b"), "b", None),
        (one_of("a", "b"), "c", "must be one of a, b"),
        (one_of("a", "b"), ["a"], "must be one of a, b"),
        (list_of(string), [], None),
        (list_of(string), ["a", "b"], None),
        (list_of(string), "ab", "must be an array"),
        (list_of(string), ["a", 1], "item 1 must be a string"),
        (list_of(string, most=1), ["a", "b"], "must have at most 1 items"),
        (list_of(list_of(integer())), [[1], [1, "x"]], "item 1 item 1 must be an integer"),
        (either(string, list_of(string)), ["a"], None),
        (either(string, list_of(string)), 1, "must be a string or must be an array"),
    ],
)
def test_check(check: Check, value: Any, wrong: str | None) -> None:
    assert check(value) == wrong


def test_validate_names_the_first_wrong_field() -> None:
    checks = {"a": number(0), "b": boolean}
    validate({}, checks)
    validate({"a": None, "b": True, "unknown": object()}, checks)
    with pytest.raises(GatewayError) as caught:
        validate({"b": 1, "a": -1}, checks)
    assert caught.value.kind is Kind.BAD_REQUEST
    assert caught.value.param in ("a", "b")
    assert f"'{caught.value.param}'" in caught.value.message


def test_unknown_fields_under_each_policy() -> None:
    assert sort_extras("pass", ["x", "y"]) == (("x", "y"), ())
    assert sort_extras("drop", iter(["x", "y"])) == ((), ("x", "y"))
    assert sort_extras("error", []) == ((), ())
    with pytest.raises(GatewayError) as caught:
        sort_extras("error", ["x", "y"])
    assert (caught.value.kind, caught.value.param, caught.value.code) == (Kind.BAD_REQUEST, "x", "unknown_parameter")
    assert "'x', 'y'" in caught.value.message
    with pytest.raises(GatewayError) as caught:
        sort_extras("error", ["x"], kind=Kind.UNSUPPORTED)
    assert caught.value.kind is Kind.UNSUPPORTED
