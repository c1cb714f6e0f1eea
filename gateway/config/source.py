"""YAML text to plain values, with the line of each.

A small, strict reading: the YAML 1.2 core schema (so `no` and `on` are words and `0755` no octal number), no tags,
no merge keys, one document, mappings with text keys that come once. PyYAML does the scanning and parsing.
"""

from __future__ import annotations

import re
from pathlib import Path as FilePath
from typing import Any

import yaml

from gateway.config.faults import WHOLE, Fault, Path, Position, Positions, shown

MOST_BYTES = 1 << 20
MOST_DEPTH = 20
# Aliases are written out, so a few hundred bytes could mean gigabytes ("billion laughs").
MOST_NODES = 200_000

_NULL = frozenset(["", "~", "null", "Null", "NULL"])
_TRUE, _FALSE = frozenset(["true", "True", "TRUE"]), frozenset(["false", "False", "FALSE"])
_INT = re.compile(r"[-+]?[0-9]{1,18}\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")


class Unreadable(Exception):
    """The file cannot be read any further; `fault` says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


def read_yaml(path: FilePath, name: str, at: Path = ()) -> tuple[Any, Positions, list[Fault]]:
    """The values of the file, their positions and what is wrong already at this level.

    name is what faults call the file; at is where in the configuration its root belongs. An empty file is None.
    Raises `Unreadable` when there is nothing to go on with.
    """

    def stop(line: int, message: str) -> Unreadable:
        return Unreadable(Fault(name, line, WHOLE, message))

    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise stop(1, f"cannot be read: {why(error)}") from None
    if len(data) > MOST_BYTES:
        raise stop(1, "is larger than 1 MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise stop(data.count(b"\n", 0, error.start) + 1, "is not UTF-8 text") from None
    try:
        events = _events(text)
    except yaml.reader.ReaderError as error:
        raise stop(text.count("\n", 0, error.position) + 1, "holds a control character") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise stop(line, f"is not YAML: {_said(error)}") from None
    except _TooDeep as deep:
        raise stop(deep.line, "is nested too deeply") from None
    reading = _Reading(name, at)
    reading.positions[at] = Position(name, 1, WHOLE)
    return reading.document(events), reading.positions, reading.faults


class _TooDeep(Exception):
    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


# What the parser says -> what a person can act on.
_PROBLEMS = {
    "expected <block end>": "the indentation does not fit the lines above",
    "found character '\\t'": "a tab cannot indent; use spaces",
    "found unexpected end of stream": "a quote is not closed",
    "mapping values are not allowed here": "a colon and a space cannot stand here; put the text in quotes",
}


def _said(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or error.context or "it cannot be read"
    problem = next((ours for theirs, ours in _PROBLEMS.items() if problem.startswith(theirs)), problem)
    begun, met = error.context_mark, error.problem_mark
    if begun and met and begun.line != met.line:
        problem += f" (in what begins on line {begun.line + 1})"
    return problem


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def why(error: OSError | ValueError) -> str:
    """Why a file could not be opened, without its name. A ValueError is about the name itself."""
    return (error.strerror or "unknown error") if isinstance(error, OSError) else "its name holds impossible characters"


def _events(text: str) -> list[yaml.Event]:
    fast = getattr(yaml, "CSafeLoader", None)
    if fast is not None:
        try:
            return _shallow(text, fast)
        except yaml.YAMLError:
            pass  # libyaml has other words for it: ask the Python parser, so that they are the same everywhere
    return _shallow(text, yaml.SafeLoader)


def _shallow(text: str, loader: Any) -> list[yaml.Event]:
    """The events of `text`, up to where it nests too deeply; there, both parsers' time would grow with the square."""
    events: list[yaml.Event] = []
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        events.append(event)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEPTH:
            raise _TooDeep(_line(event))
    return events


class _Reading:
    def __init__(self, name: str, at: Path) -> None:
        self.name = name
        self.at = at
        self.positions: Positions = {}
        self.faults: list[Fault] = []
        self._events: list[yaml.Event] = []
        self._next = 0
        self._nodes = 0
        self._anchors: dict[str, tuple[int, int]] = {}
        self._open: set[str] = set()

    def document(self, events: list[yaml.Event]) -> Any:
        self._events = events
        starts = [index for index, event in enumerate(events) if isinstance(event, yaml.DocumentStartEvent)]
        if not starts:
            return None
        if len(starts) > 1:
            self._fault(events[starts[1]], (), "holds more than one document")
        self._next = starts[0] + 1
        return self._value(self.at, 0)

    def _fault(self, event: yaml.Event, path: Path, message: str) -> None:
        key = shown(path[len(self.at) :]) or WHOLE
        self.faults.append(Fault(self.name, _line(event), key, message))

    def _stop(self, event: yaml.Event, path: Path, message: str) -> Unreadable:
        self._fault(event, path, message)
        return Unreadable(self.faults.pop())

    def _value(self, path: Path, depth: int) -> Any:
        event = self._events[self._next]
        self._next += 1
        self._nodes += 1
        if depth > MOST_DEPTH:
            raise self._stop(event, path, "is nested too deeply")
        if self._nodes > MOST_NODES:
            raise self._stop(event, path, "holds too many values (aliases count as what they stand for)")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path, depth)
        assert isinstance(event, yaml.NodeEvent)
        if getattr(event, "tag", None):
            self._fault(event, path, "has a tag; tags are not supported")
        anchor = event.anchor
        start = self._next - 1
        if anchor:
            self._open.add(anchor)
        value = self._content(event, path, depth)
        if anchor:
            self._open.discard(anchor)
            self._anchors[anchor] = (start, self._next)
        return value

    def _alias(self, event: yaml.AliasEvent, path: Path, depth: int) -> Any:
        anchor = event.anchor
        if anchor in self._open:
            raise self._stop(event, path, "is an alias of something that holds it")
        if anchor not in self._anchors:
            raise self._stop(event, path, "is an alias of nothing before it")
        back = self._next
        self._next = self._anchors[anchor][0]
        value = self._value(path, depth + 1)
        self._next = back
        return value

    def _content(self, event: yaml.NodeEvent, path: Path, depth: int) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            return resolve(event.value) if event.implicit[0] else event.value
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(self._events[self._next], yaml.SequenceEndEvent):
                self._place(self._events[self._next], (*path, len(items)))
                items.append(self._value((*path, len(items)), depth + 1))
            self._next += 1
            return items
        return self._mapping(path, depth)

    def _mapping(self, path: Path, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(self._events[self._next], yaml.MappingEndEvent):
            event = self._events[self._next]
            if not isinstance(event, yaml.ScalarEvent):
                raise self._stop(event, path, "has a key that is not plain text")
            self._next += 1
            key = event.value
            here = (*path, key)
            if key in values:
                self._fault(event, here, f"is given twice, first on line {self.positions[here].line}")
                before = dict(self.positions)
                self._value(here, depth + 1)
                self.positions = before
                continue
            if key == "<<" and event.implicit[0]:
                self._fault(event, here, "merge keys are not supported; repeat the lines, or use a plain alias")
                self._value(here, depth + 1)
                continue
            self._place(event, here)
            values[key] = self._value(here, depth + 1)
        self._next += 1
        return values

    def _place(self, event: yaml.Event, path: Path) -> None:
        self.positions[path] = Position(self.name, _line(event), shown(path[len(self.at) :]))


def resolve(text: str) -> Any:
    """What a plain scalar means by the YAML 1.2 core schema."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if _INT.match(text):
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    return text
