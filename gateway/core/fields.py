"""Field tables: every field of every dialect has a declared handling, and a test measures it on the wire.

A dialect's `fields` lists one `Field` per field of its specification; `docs/fidelity.md` is made from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from gateway.core.errors import GatewayError, Kind

Handling = Literal["mapped", "renamed", "emulated", "consumed", "ignored", "refused"]
"""
mapped    reaches the worker under its own name          renamed   reaches it under `to`
emulated  the gateway itself does what it says           consumed  read here (model, stream, deadlines)
ignored   accepted, and named in the dropped header      refused   a clear error, always
"""

ExtrasPolicy = Literal["pass", "drop", "error"]
"""What becomes of a field that no table knows: forwarded as is, dropped (and said so), or a 400."""

_MOST_LISTED = 32


class Field(Struct, frozen=True):
    """name in the dialect; to is the vLLM name when renamed; note says what a reader of the table must know;
    sample is a JSON-able value that a valid request may carry, used by the fidelity test."""

    name: str
    handling: Handling
    to: str | None = None
    note: str = ""
    sample: Any = None


Check = Callable[[Any], str | None]
"""Returns what is wrong with a value, or None."""


def number(low: float | None = None, high: float | None = None, *, above: bool = False) -> Check:
    """A JSON number within [low, high]; with `above`, low itself is excluded. Booleans are no numbers."""

    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return "must be a number"
        if value != value or value in (float("inf"), float("-inf")):
            return "must be a finite number"
        if low is not None and (value <= low if above else value < low):
            return f"must be {'greater than' if above else 'at least'} {low:g}"
        if high is not None and value > high:
            return f"must be at most {high:g}"
        return None

    return check


def integer(low: int | None = None, high: int | None = None) -> Check:
    """A JSON integer within [low, high]. Booleans are no integers; 1.0 is one."""
    within = number(low, high)

    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
            return "must be an integer"
        return within(value)

    return check


def boolean(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def string(value: Any) -> str | None:
    return None if isinstance(value, str) else "must be a string"


def one_of(*words: str) -> Check:
    def check(value: Any) -> str | None:
        return None if value in words else "must be one of " + ", ".join(words)

    return check


def list_of(item: Check, most: int | None = None) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, list):
            return "must be an array"
        if most is not None and len(value) > most:
            return f"must have at most {most} items"
        for index, one in enumerate(value):
            wrong = item(one)
            if wrong:
                return f"item {index} {wrong}"
        return None

    return check


def either(*checks: Check) -> Check:
    def check(value: Any) -> str | None:
        wrongs = [one(value) for one in checks]
        return None if None in wrongs else " or ".join(str(wrong) for wrong in wrongs)

    return check


def validate(body: Mapping[str, Any], checks: Mapping[str, Check]) -> None:
    """Raises GatewayError(BAD_REQUEST) naming the first field whose value is wrong. None counts as absent."""
    for name, check in checks.items():
        value = body.get(name)
        if value is not None:
            wrong = check(value)
            if wrong:
                raise GatewayError(Kind.BAD_REQUEST, f"'{name}' {wrong}", param=name, code="invalid_value", value=value)


def sort_extras(
    policy: ExtrasPolicy, unknown: Iterable[str], *, kind: Kind = Kind.BAD_REQUEST
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(kept, dropped) names among `unknown` under `policy`; raises GatewayError(kind) naming them under "error"."""
    names = tuple(unknown)
    if not names:
        return (), ()
    if policy == "pass":
        return names, ()
    if policy == "drop":
        return (), names
    listed = ", ".join(f"'{name}'" for name in names[:_MOST_LISTED])
    if len(names) > _MOST_LISTED:
        listed += f" and {len(names) - _MOST_LISTED} more"
    raise GatewayError(kind, f"unknown parameter {listed}", param=names[0], code="unknown_parameter")
