"""Field tables: every field of every dialect has a declared handling, and a test measures it on the wire.

A dialect's `fields` lists one `Field` per field of its specification; `docs/fidelity.md` is made from them. Its
`examples` are the least requests that it reads: `dragoman check`, the fidelity test and the tests that go through every
dialect start from these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
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


Place = Literal["body", "header", "query"]


class Field(Struct, frozen=True):
    """One field of a dialect.

    name    in the dialect; of a member of an object, dotted
    to      its name on vLLM's wire, when renamed; where it may have several, joined by " or ", where it becomes
            several, by ", "
    note    what a reader of the table must know
    sample  a JSON-able value that a valid request may carry
    where   a top-level member of the body, a header or a parameter in the query
    beside  what else the body must hold for the field to have a meaning; None takes a member away
    probe   another value, which shows that the field is read where `sample` asks for nothing that is not so anyway
    names_model  it chooses the model
    """

    name: str
    handling: Handling
    to: str | None = None
    note: str = ""
    sample: Any = None
    where: Place = "body"
    beside: Mapping[str, Any] = {}
    probe: Any = None
    names_model: bool = False

    @property
    def targets(self) -> tuple[str, ...]:
        """The names on vLLM's wire that it may reach a worker under."""
        return tuple(re.split(", | or ", self.to)) if self.to is not None else (self.name,)


WORDS = "hello"
"""The text of every prompt in an `Example`: who sends one may put another text in its place."""


class Example(Struct, frozen=True):
    """The least request that one route of a dialect reads for one operation.

    route    the route's name
    body     its members, without a model
    query    what every request must have there, raw
    streams  when the reply is a stream: "asked" where the member `stream` says so, else "always" or "never"
    ends     bytes of every stream that is whole; alike: a stream that failed ends with them too
    """

    route: str
    body: Mapping[str, Any]
    query: bytes = b""
    streams: Literal["asked", "always", "never"] = "asked"
    ends: bytes = b""
    alike: bool = False


Examples = Mapping[str, Sequence[Example]]
"""By operation: one example for each route that reads it, the usual route first."""


def body_members(fields: Mapping[str, Sequence[Field]]) -> Mapping[str, frozenset[str]]:
    """The names of the top-level members that each operation's table has."""
    return {
        operation: frozenset(field.name for field in found if field.where == "body" and "." not in field.name)
        for operation, found in fields.items()
    }


def with_field(body: Mapping[str, Any], field: Field, value: Any) -> dict[str, Any]:
    """`body` with `value` for a field of the body, and with what must stand beside it."""
    outer, _, inner = field.name.partition(".")
    found = {**body, **field.beside, outer: {inner: value} if inner else value}
    return {name: value for name, value in found.items() if value is not None}


def own_name(param: str, fields: Sequence[Field], sent: Container[str] = ()) -> str:
    """What a client calls the parameter that is canonically called `param`: by vLLM's name for it, dotted inside.

    sent: the names of the fields that the client's request holds, which decide where there are several.
    """
    head, dot, rest = param.partition(".")
    names = [field.name for field in fields if field.name == head]
    names += [field.name for field in fields if field.name != head and head in field.targets]
    name = next((name for name in names if name in sent), names[0] if names else head)
    return name + dot + rest


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
