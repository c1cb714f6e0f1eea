"""Field tables: every field of every dialect has a declared handling, and a test measures it on the wire.

A dialect's `fields` has one `Field` per field of its specification; `make docs` writes the pages of fidelity from them.
Its `examples` are the smallest requests that it accepts: `dragoman check`, the fidelity test and the tests over all
dialects start from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.upload import File, Form, InMemory

Handling = Literal["mapped", "renamed", "emulated", "consumed", "ignored", "refused"]
"""
mapped    reaches the worker under its own name          renamed   reaches it under `to`
emulated  the gateway itself does what it says           consumed  read here (model, stream, deadlines)
ignored   accepted, and named in the dropped header      refused   a clear error, always
"""

ExtrasPolicy = Literal["pass", "drop", "error"]
"""The handling of a field that is in no table: forwarded unchanged, dropped (and named to the client), or a 400. A
member that constrains the answer (`wire.openai.requests.constraints`) is never dropped."""

_MOST_LISTED = 32


Location = Literal["body", "header", "query", "message", "file"]


class Field(Struct, frozen=True):
    """One field of a dialect.

    name    its name in the dialect; dotted for a member of an object
    sample  a JSON-able value that a valid request may have
    note    a remark for readers of the table
    to      its name on vLLM's wire, if renamed. Alternatives are joined by " or ", several names by ", "
    where   its location: a top-level member of the body or a text of an upload, a header, a query parameter, a file of
            an upload, or a member that messages of a web socket alone have
    beside  other members that the body needs for the field to have a meaning; None removes a member
    probe   another value, which shows that the field is read if `sample` is the same as the default
    names_model  True if it chooses the model
    """

    name: str
    handling: Handling
    sample: Any = None
    note: str = ""
    to: str | None = None
    where: Location = "body"
    beside: Mapping[str, Any] = {}
    probe: Any = None
    names_model: bool = False

    @property
    def targets(self) -> tuple[str, ...]:
        """The names on vLLM's wire under which it may reach a worker."""
        return tuple(re.split(", | or ", self.to)) if self.to is not None else (self.name,)


Tables = Mapping[str, Sequence[Field]]
"""By operation."""
NO_TARGET = "nothing behind us has a place for it"
"""The note of most ignored fields."""


def rows(handling: Handling, note: str, **samples: Any) -> tuple[Field, ...]:
    """A row for each of `samples`, all with the same handling and note."""
    return tuple(Field(name, handling, sample, note) for name, sample in samples.items())


def model_row(note: str) -> Field:
    """The row of the member that names the model."""
    return Field("model", "consumed", "m", note, names_model=True)


def renamed(name: str, to: str, sample: Any, note: str = "", beside: Mapping[str, Any] = {}) -> Field:
    """The row of a field that reaches the worker under another name."""
    return Field(name, "renamed", sample, note, to, beside=beside)


WORDS = "hello"
"""The text of every prompt in an `Example`. A test may replace it with another text."""


class Example(Struct, frozen=True):
    """The smallest request that one route of a dialect accepts for one operation.

    route    the route's name
    body     its members, without a model
    query    the query string that every request needs, raw
    streams  when the reply is a stream: "asked" (the member `stream` decides), "always" or "never"
    ends     the last bytes of every complete stream; alike: a failed stream ends with them too
    files    of an upload, by field: the name of each. `body` then has the texts
    """

    route: str
    body: Mapping[str, Any]
    query: bytes = b""
    streams: Literal["asked", "always", "never"] = "asked"
    ends: bytes = b""
    alike: bool = False
    files: Mapping[str, str] = {}

    def form(self, body: Mapping[str, Any], files: Mapping[str, bytes] = {}) -> Form | None:
        """An upload like this with other texts and, by field, other files; None if it has no files."""
        if not self.files:
            return None
        texts = tuple((name, value if isinstance(value, str) else json.dumps(value)) for name, value in body.items())
        found: list[File] = []
        data = b""
        for name in {**self.files, **files}:
            content = files.get(name, b"sample")
            found.append(File(name, self.files.get(name, "file"), "application/octet-stream", len(data), len(content)))
            data += content
        return Form(texts, tuple(found), InMemory(data))


Examples = Mapping[str, Sequence[Example]]
"""By operation: one example for each route that reads it, the usual route first."""


def body_members(fields: Tables) -> Mapping[str, frozenset[str]]:
    """The names of the top-level members that each operation's table has. A dotted name counts as its first part."""
    return {
        operation: frozenset(field.name.partition(".")[0] for field in found if field.where == "body")
        for operation, found in fields.items()
    }


def ignored_members(fields: Tables) -> Mapping[str, tuple[str, ...]]:
    """The names of the top-level members that each operation accepts and reports as dropped."""
    members = body_members(fields)
    return {
        name: tuple(field.name for field in found if field.handling == "ignored" and field.name in members[name])
        for name, found in fields.items()
    }


def with_field(body: Mapping[str, Any], field: Field, value: Any) -> dict[str, Any]:
    """`body` with `value` for a field of the body, and with the other members that the field needs."""
    outer, _, inner = field.name.partition(".")
    found = {**body, **field.beside, outer: {inner: value} if inner else value}
    return {name: value for name, value in found.items() if value is not None}


def own_name(param: str, fields: Sequence[Field], sent: Container[str] = ()) -> str:
    """The client's name for the canonical parameter `param`, which is vLLM's name, dotted for nested members.

    sent: the names of the fields in the client's request, which decide if several fields match.
    """
    head, dot, rest = param.partition(".")
    names = [field.name for field in fields if field.name == head]
    names += [field.name for field in fields if field.name != head and head in field.targets]
    name = next((name for name in names if name in sent), names[0] if names else head)
    return name + dot + rest


def own_names(names: Sequence[str], fields: Tables) -> tuple[str, ...]:
    """The client's names for members of a worker's request, by all tables of its dialect."""
    every = [field for found in fields.values() for field in found]
    return tuple([own_name(name, every) for name in names])


def own_words(error: GatewayError, fields: Sequence[Field], sent: Container[str] = ()) -> str:
    """The message of `error` with the client's name for the parameter at fault. For wires whose errors have no member
    for the parameter."""
    if error.param is None:
        return error.message
    own, quoted = own_name(error.param, fields, sent), f"'{error.param}'"
    if quoted in error.message:
        return error.message.replace(quoted, f"'{own}'")
    return f"'{own}': {error.message}" if error.kind is Kind.UNSUPPORTED else error.message


class Range(Struct, frozen=True):
    """The JSON numbers from low to high that a field may have. above excludes `low` itself; whole: integers only, of
    which 1.0 is one. Booleans are not numbers."""

    low: float
    high: float
    above: bool = False
    whole: bool = False

    def fault(self, value: Any) -> str | None:
        """The fault of `value`; None if it has none."""
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or (self.whole and value % 1 != 0):
            return "must be an integer" if self.whole else "must be a number"
        if value <= self.low if self.above else value < self.low:
            return f"must be {'greater than' if self.above else 'at least'} {self.low:g}"
        return f"must be at most {self.high:g}" if value > self.high else None


def validate(body: Mapping[str, Any], ranges: Mapping[str, Range]) -> None:
    """Raises GatewayError(BAD_REQUEST), which names the first field with an invalid value. None counts as absent."""
    for name, allowed in ranges.items():
        value = body.get(name)
        fault = allowed.fault(value) if value is not None else None
        if fault is not None:
            raise GatewayError(Kind.BAD_REQUEST, f"'{name}' {fault}", param=name, code="invalid_value", value=value)


def sort_extras(
    policy: ExtrasPolicy, unknown: Iterable[str], *, kind: Kind = Kind.BAD_REQUEST, binding: Container[str] = ()
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(kept, dropped) names among `unknown` under `policy`; raises GatewayError(kind) naming them under "error". Names
    in `binding` are kept under "drop" too."""
    names = tuple(unknown)
    if not names:
        return (), ()
    if policy == "pass":
        return names, ()
    if policy == "drop":
        return tuple(name for name in names if name in binding), tuple(name for name in names if name not in binding)
    listed = ", ".join(f"'{name}'" for name in names[:_MOST_LISTED])
    if len(names) > _MOST_LISTED:
        listed += f" and {len(names) - _MOST_LISTED} more"
    raise GatewayError(kind, f"unknown parameter {listed}", param=names[0], code="unknown_parameter")
