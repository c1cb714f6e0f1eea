"""Faults of a configuration: file, line, key, and a message."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

Path = tuple[str | int, ...]
"""The place of a value in the configuration: mapping keys and list indices from the root."""

ENVIRONMENT = "environment"
"""The environment's name in faults, in place of a file's."""

WHOLE = "(file)"
"""The key of a fault that concerns a file as a whole."""

MOST_FAULTS = 100
"""How many faults an error holds. The rest is counted."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]+\Z")
# Our own keys, and what the best known services hand out: pasted where a name belongs, they must not reach a log.
_SECRET = re.compile(r"\b(dgm_|sk-|hf_|flp_)[A-Za-z0-9_-]{12,}")
_LONGEST_NAME = 200
# Comparing a name takes some 10 µs for each other name.
_MOST_COMPARED = 1000


def shown(path: Path) -> str:
    """The dotted form of `path`. A name with other characters than letters, digits, _ and - is quoted, a very long
    one is cut."""
    return ".".join(map(_part, path))


def _part(part: str | int) -> str:
    text = str(part)
    if len(text) > _LONGEST_NAME:
        text = masked(text)[:_LONGEST_NAME] + "..."
    return text if isinstance(part, int) or _PLAIN.match(text) else f'"{text}"'


def masked(text: str) -> str:
    """`text` on one line and fit for a terminal, with whatever looks like a key replaced."""
    text = "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))
    return _SECRET.sub(lambda found: found[1] + "***", text)


@dataclass(frozen=True, slots=True)
class Unknown:
    """A message about a name that is none of `names`. As text it ends with the nearest one, if there is one.

    The names are compared only when the text is read: few of thousands of faults are shown.

    what       the message itself
    form       how the nearest name is written: "{}" stands for it
    otherwise  the end of the message if none is near
    """

    what: str
    name: str
    names: Collection[str]
    form: str = "{}"
    otherwise: str = ""

    def __str__(self) -> str:
        few = len(self.names) <= _MOST_COMPARED and len(self.name) <= _LONGEST_NAME
        near = get_close_matches(self.name, list(self.names), 3) if few else []
        near.sort(key=lambda one: one[:3] != self.name[:3])  # people rarely mistype a name's begin
        return self.what + (f"; did you mean {self.form.format(near[0])}?" if near else self.otherwise)


Message = str | Unknown
"""A fault of a value. The message never holds the value itself, which may be a secret in the wrong place: at most the
name of a variable in capitals."""

Faults = Iterator[tuple[Path, Message]]
"""Paths of values, each with a message."""


class Position(NamedTuple):
    """The place where a value was written.

    file      as it was given to `load`, or "environment"
    line      from 1; 0 where there are no lines
    variable  the environment variable that holds it; None in a file
    path      where it sits in that file, or in the JSON of that variable
    """

    file: str
    line: int = 0
    variable: str | None = None
    path: Path = ()

    @property
    def key(self) -> str:
        """Dotted path in the file, the variable's name in the environment, "(file)" for all of it."""
        return self.variable or shown(self.path) or WHOLE


Positions = dict[Path, Position]


class Fault(NamedTuple):
    """One thing that is wrong. Its text is `file:line: key: message`, without the line if it has none. The text never
    holds a secret."""

    position: Position
    message: Message

    def __str__(self) -> str:
        file, line, variable, path = self.position
        location = f"{file}:{line}" if line else file
        inside = f"{shown(path)} " if variable is not None and path else ""
        return masked(f"{location}: {self.position.key}: {inside}{self.message}")


class ConfigError(Exception):
    """A configuration that cannot be used. `faults` holds the first `MOST_FAULTS` in the order of the files' lines,
    and one more that counts the rest. partial: a value is wrong, so rules between options were left out."""

    def __init__(self, faults: Iterable[Fault], partial: bool = False) -> None:
        self.faults = list(faults)
        self.partial = partial
        super().__init__("\n".join(map(str, self.faults)))


def config_error(faults: Iterable[Fault], files: Sequence[str], partial: bool = False) -> ConfigError:
    """The error for all `faults`, in the order of `files` and then the environment, within a file by line.

    Only the first fault of a position is reported, because one wrong value often causes several.
    """
    first: dict[tuple[Position, str], Fault] = {}
    for fault in faults:
        text = _text(fault.message) if fault.position.file == ENVIRONMENT else ""
        first.setdefault((fault.position, text), fault)
    ranks = {name: index for index, name in reversed(list(enumerate(files)))}

    def order(fault: Fault) -> tuple[int, int, str, str]:
        position, message = fault
        return ranks.get(position.file, len(ranks)), position.line, position.key, _text(message)

    found = sorted(first.values(), key=order)
    reported = [Fault(position, str(message)) for position, message in found[:MOST_FAULTS]]
    if len(found) > MOST_FAULTS:
        next_one = found[MOST_FAULTS].position
        more = f"and {len(found) - MOST_FAULTS} more faults from here on"
        reported.append(Fault(Position(next_one.file, next_one.line), more))
    return ConfigError(reported, partial)


def _text(message: Message) -> str:
    return message if isinstance(message, str) else message.what


def locate(positions: Positions, path: Path) -> Position:
    """The position of `path`. A value that is written nowhere is at the line of what should hold it."""
    for length in range(len(path), -1, -1):
        holder = positions.get(path[:length])
        if holder is not None:
            return holder._replace(path=holder.path + path[length:])
    return Position(ENVIRONMENT, path=path)
