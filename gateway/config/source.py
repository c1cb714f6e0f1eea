"""YAML text to plain values, with the line of each.

This reads a small and strict part of YAML: the 1.2 core schema (so `no` and `on` are words and `0755` is not an
octal number), no tags, no merge keys, one document, mappings with text keys that come once. PyYAML scans and parses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import yaml

from gateway.config.faults import Fault, Message, Path, Position, Positions
from gateway.config.files import read_file, why

MOST_BYTES = 1 << 20
MOST_ENTRIES_BYTES = 1 << 25
"""The same for a file that holds entries alone: some 250,000 keys."""
# Beyond this the parser's time grows with the square.
MOST_DEPTH = 20
# Aliases repeat their anchor's events, so a few hundred bytes could mean gigabytes ("billion laughs").
MOST_REPEATED = 200_000

_WORDS: dict[str, bool | None] = dict.fromkeys(["", "~", "null", "Null", "NULL"])
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]{1,18}\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
# YAML 1.2, section 5.1: all that is not printable.
_CONTROL = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PRINTABLE = b"\t\n\r" + bytes(range(0x20, 0x7F))
# libyaml is some 20 times faster; PyYAML's wheels hold it. The two parsers differ in the words of their errors only.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# The parser's words -> words that a person can act on.
_PROBLEMS = {
    "did not find expected key": "the indentation does not fit the lines above",
    "did not find expected '-' indicator": "the indentation does not fit the lines above",
    "found character that cannot start any token": "a tab cannot indent, and text that begins with @ or ` needs quotes",
    "found unexpected end of stream": "a quote is not closed",
    "mapping values are not allowed": "a colon and a space cannot stand here; put the text in quotes, "
    "or indent the line as those beside it",
}


class Unreadable(Exception):
    """The file cannot be read any further."""

    def __init__(self, position: Position, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(position, message)


NOT_READ = "cannot be read: "
"""The begin of an `Unreadable`'s message if the file could not even be opened."""


def read_yaml(
    path: FilePath, name: str, at: Path = (), most_bytes: int = MOST_BYTES, placed: bool = True
) -> tuple[Any, Positions, list[Fault]]:
    """The values of the file, their positions and what is wrong already at this level.

    name is what faults call the file; at is where in the configuration its root belongs. An empty file is None.
    placed: without it only the root has a position, which takes half the time for thousands of values.
    Raises `Unreadable` when there is nothing to go on with. A file that is empty or cannot be read has no lines.
    """

    def stop(line: int, message: str) -> Unreadable:
        return Unreadable(Position(name, line), message)

    try:
        data = read_file(path, most_bytes + 1)
    except (OSError, ValueError) as error:
        raise stop(0, NOT_READ + why(error)) from None
    if len(data) > most_bytes:
        raise stop(0, f"is larger than {most_bytes >> 20} MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise stop(data.count(b"\n", 0, error.start) + 1, "is not UTF-8 text") from None
    # Nearly all files hold printable ASCII alone, which is seen some ten times faster.
    if data.translate(None, _PRINTABLE) and (control := _CONTROL.search(text)):
        raise stop(text.count("\n", 0, control.start()) + 1, "holds a control character")
    reading = _Reading(yaml.parse(text, Loader=_LOADER), name, at, placed)
    reading.positions[at] = Position(name, int(bool(data)))
    try:
        value = reading.document()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise stop(line, f"is not YAML: {_described(error)}") from None
    return value, reading.positions, reading.faults


def _described(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or error.context or "it cannot be read"
    problem = next((ours for theirs, ours in _PROBLEMS.items() if problem.startswith(theirs)), problem)
    begun, met = error.context_mark, error.problem_mark
    if begun and met and begun.line != met.line:
        problem += f" (in what begins on line {begun.line + 1})"
    return problem


class _Reading:
    """Makes values of the parser's events, notes the position of each if wanted, and what is wrong with them."""

    def __init__(self, events: Iterator[yaml.Event], name: str, at: Path, placed: bool) -> None:
        self._placed = placed
        self.faults: list[Fault] = []
        self.positions: Positions = {}
        self._events = events
        self._name = name
        self._at = at
        # Anchors whose value is complete: the value, and where it stands.
        self._anchors: dict[str, tuple[Any, Path]] = {}
        self._repeated = 0

    def document(self) -> Any:
        """The first document; None if there is none. Raises Unreadable, and the parser's errors."""
        next(self._events)  # the stream's start
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        value = self._value(next(self._events), self._at)
        next(self._events)  # the document's end
        more = next(self._events)
        if isinstance(more, yaml.DocumentStartEvent):
            self._fault(more, self._at, "holds more than one document")
        return value

    def _value(self, event: yaml.Event, path: Path) -> Any:
        if len(path) - len(self._at) > MOST_DEPTH:
            raise Unreadable(self._position(event, self._at), "is nested too deeply")
        anchor: str | None = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            if anchor not in self._anchors:
                # Its name may be a secret that begins with a star.
                self._fault(
                    event, path, "begins with '*', and no anchor of that name is complete above it: quote a text"
                )
                return None
            return self._repeat(event, *self._anchors[anchor], path)
        if getattr(event, "tag", None):
            self._fault(event, path, "has a tag; tags are not supported")
        if isinstance(event, yaml.ScalarEvent):
            value = resolve(event.value) if event.implicit[0] else event.value
        else:
            value = self._mapping(path) if isinstance(event, yaml.MappingStartEvent) else self._items(path)
        if anchor is not None:
            self._anchors[anchor] = value, path
        return value

    def _repeat(self, alias: yaml.Event, value: Any, source: Path, path: Path) -> Any:
        """A copy of what stands at `source`, to stand at `path`. Raises Unreadable after too many."""
        self._repeated += 1
        if self._repeated > MOST_REPEATED:
            raise Unreadable(
                self._position(alias, self._at), f"its aliases stand for more than {MOST_REPEATED:,} values"
            )
        if len(path) - len(self._at) > MOST_DEPTH:
            raise Unreadable(self._position(alias, self._at), "is nested too deeply")
        if source in self.positions:  # else it is the value of a key that is a fault
            self.positions.setdefault(path, self.positions[source]._replace(path=path[len(self._at) :]))
        if isinstance(value, dict):
            return {key: self._repeat(alias, one, (*source, key), (*path, key)) for key, one in value.items()}
        if isinstance(value, list):
            return [self._repeat(alias, one, (*source, at), (*path, at)) for at, one in enumerate(value)]
        return value

    def _items(self, path: Path) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            here = (*path, len(items))
            if self._placed:
                self.positions[here] = self._position(event, here)
            items.append(self._value(event, here))
        return items

    def _mapping(self, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(key := next(self._events), yaml.MappingEndEvent):
            if not isinstance(key, yaml.ScalarEvent):
                raise Unreadable(self._position(key, path), "has a key that is not plain text")
            here = (*path, key.value)
            if key.value in values:
                first = self.positions[here].line if self._placed else 0
                self._skip(key, here, f"is given twice, first on line {first}")
            elif key.value == "<<" and key.implicit[0]:
                self._skip(key, here, "merge keys are not supported; repeat the lines")
            else:
                if self._placed:
                    self.positions[here] = self._position(key, here)
                values[key.value] = self._value(next(self._events), here)
        return values

    def _skip(self, key: yaml.Event, path: Path, message: Message) -> None:
        """Passes over the value of a key that is a fault."""
        saved = self.positions, self.faults
        self.positions, self.faults = {}, []
        self._value(next(self._events), path)
        self.positions, self.faults = saved
        self._fault(key, path, message)

    def _fault(self, event: yaml.Event, path: Path, message: Message) -> None:
        self.faults.append(Fault(self._position(event, path), message))

    def _position(self, event: yaml.Event, path: Path) -> Position:
        line = event.start_mark.line + 1 if event.start_mark else 1
        return Position(self._name, line, None, path[len(self._at) :])


def resolve(text: str) -> Any:
    """The meaning of a plain scalar by the YAML 1.2 core schema."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.match(text):
        return int(text)
    return float(text) if _FLOAT.match(text) else text
