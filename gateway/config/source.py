"""YAML text to plain values, with the line of each.

This reads a small and strict part of YAML: the 1.2 core schema (so `no` and `on` are words and `0755` is no octal
number), no tags, no merge keys, one document, mappings with text keys that come once. PyYAML scans, parses and
composes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any

import yaml
from yaml.composer import Composer

from gateway.config.faults import Finding, Message, Path, Position, Positions
from gateway.config.files import read_file, why

MOST_BYTES = 1 << 20
MOST_DEPTH = 20
# Aliases are written out, so a few hundred bytes could mean gigabytes ("billion laughs").
MOST_NODES = 200_000

_NULL = frozenset(["", "~", "null", "Null", "NULL"])
_TRUE, _FALSE = frozenset(["true", "True", "TRUE"]), frozenset(["false", "False", "FALSE"])
_INT = re.compile(r"[-+]?[0-9]{1,18}\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")

# The kind of a node without a tag: a plain scalar; a quoted or block scalar; a list or mapping.
_PLAIN, _TEXT, _HOLDER = "plain", "text", "holder"


class Unreadable(Exception):
    """The file cannot be read any further: where, and why."""

    def __init__(self, position: Position, message: str) -> None:
        super().__init__(message)
        self.position = position
        self.message = message


NOT_READ = "cannot be read: "
"""What the message of an `Unreadable` begins with when the file could not even be opened."""


def read_yaml(path: FilePath, name: str, at: Path = ()) -> tuple[Any, Positions, list[Finding]]:
    """The values of the file, their positions and what is wrong already at this level.

    name is what faults call the file; at is where in the configuration its root belongs. An empty file is None.
    Raises `Unreadable` when there is nothing to go on with. A file that is empty or cannot be read has no lines.
    """

    def stop(line: int, message: str) -> Unreadable:
        return Unreadable(Position(name, line, None, ()), message)

    try:
        data = read_file(path, MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise stop(0, NOT_READ + why(error)) from None
    if len(data) > MOST_BYTES:
        raise stop(0, "is larger than 1 MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise stop(data.count(b"\n", 0, error.start) + 1, "is not UTF-8 text") from None
    try:
        root, second = _composed(text)
    except yaml.reader.ReaderError as error:
        raise stop(text.count("\n", 0, error.position) + 1, "holds a control character") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise stop(line, f"is not YAML: {_said(error)}") from None
    except _TooDeep as deep:
        raise stop(deep.line, "is nested too deeply") from None
    reading = _Reading(name, at, first=1 if data else 0)
    if second:
        reading.fault(second, (), "holds more than one document")
    return (None if root is None else reading.value(root, at, 0)), reading.positions, reading.findings


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


def _line(item: Any) -> int:
    """Of a node or an event."""
    return item.start_mark.line + 1 if item.start_mark else 1


class _AliasNode(yaml.Node):
    """An alias: `target` is the node that it stands for, None where no anchor before it has this name."""

    def __init__(self, event: yaml.AliasEvent, target: yaml.Node | None) -> None:
        self.tag = _HOLDER
        self.value = None
        self.start_mark = event.start_mark
        self.end_mark = event.end_mark
        self.target = target


class _Bounded(Composer):
    """Composes nodes up to MOST_DEPTH, beyond which the parsers' time grows with the square. Raises _TooDeep.

    Tags are not resolved: a node's tag is what was written, else one of _PLAIN, _TEXT and _HOLDER.
    """

    # A parser beside it has these two.
    peek_event: Callable[[], yaml.Event]
    get_event: Callable[[], yaml.Event]

    def __init__(self) -> None:
        Composer.__init__(self)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            self.get_event()
            return _AliasNode(event, self.anchors.get(event.anchor))
        assert isinstance(event, yaml.NodeEvent)
        if self._depth > MOST_DEPTH:
            raise _TooDeep(_line(event))
        self.anchors.pop(event.anchor, None)  # a name may be given anew
        tag: str | None = getattr(event, "tag", None)
        self._depth += 1
        node = super().compose_node(parent, index)
        assert node is not None
        self._depth -= 1
        if tag:
            node.tag = tag
        return node

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is not yaml.ScalarNode:
            return _HOLDER
        return _PLAIN if implicit[0] else _TEXT

    def descend_resolver(self, parent: Any, index: Any) -> None:
        """PyYAML calls these two; they serve only its own tags."""

    def ascend_resolver(self) -> None:
        """As above."""


class _PythonLoader(_Bounded, yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        yaml.SafeLoader.__init__(self, text)
        _Bounded.__init__(self)


if yaml.__with_libyaml__:

    class _FastLoader(_Bounded, yaml.CSafeLoader):
        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            _Bounded.__init__(self)


def _composed(text: str) -> tuple[yaml.Node | None, yaml.Event | None]:
    """The first document, and where a second one begins."""
    if yaml.__with_libyaml__:
        try:
            return _documents(_FastLoader(text))
        except yaml.YAMLError:
            pass  # libyaml has other words for it: ask the Python parser, so that they are the same everywhere
    return _documents(_PythonLoader(text))


def _documents(loader: Any) -> tuple[yaml.Node | None, yaml.Event | None]:
    try:
        root = loader.get_node() if loader.check_node() else None
        return root, loader.peek_event() if loader.check_node() else None
    finally:
        loader.dispose()


class _Reading:
    """Nodes to values: their positions, and what is wrong with them. first: the file's first line, 0 if it has none."""

    def __init__(self, name: str, at: Path, first: int) -> None:
        self.findings: list[Finding] = []
        self.positions: Positions = {at: Position(name, first, None, ())}
        self._name = name
        self._at = at
        self._nodes = 0
        self._open: set[int] = set()

    def fault(self, item: Any, path: Path, message: Message) -> None:
        self.findings.append((self._position(item, path), message))

    def _position(self, item: Any, path: Path) -> Position:
        return Position(self._name, _line(item), None, path[len(self._at) :])

    def _stop(self, item: Any, path: Path, message: str) -> Unreadable:
        return Unreadable(self._position(item, path), message)

    def value(self, node: yaml.Node, path: Path, depth: int) -> Any:
        self._nodes += 1
        if depth > MOST_DEPTH:
            raise self._stop(node, path, "is nested too deeply")
        if self._nodes > MOST_NODES:
            raise self._stop(node, path, "holds too many values (aliases count as what they stand for)")
        if isinstance(node, _AliasNode):
            if node.target is None:
                raise self._stop(node, path, "is an alias of nothing before it")
            if id(node.target) in self._open:
                raise self._stop(node, path, "is an alias of something that holds it")
            return self.value(node.target, path, depth + 1)
        if node.tag not in (_PLAIN, _TEXT, _HOLDER):
            self.fault(node, path, "has a tag; tags are not supported")
        self._open.add(id(node))
        value = self._content(node, path, depth)
        self._open.discard(id(node))
        return value

    def _content(self, node: yaml.Node, path: Path, depth: int) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return resolve(node.value) if node.tag == _PLAIN else node.value
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        items: list[Any] = []
        for index, item in enumerate(node.value):
            here = (*path, index)
            self.positions[here] = self._position(item, here)
            items.append(self.value(item, here, depth + 1))
        return items

    def _mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._stop(key, path, "has a key that is not plain text")
            here = (*path, key.value)
            if key.value in values:
                self.fault(key, here, f"is given twice, first on line {self.positions[here].line}")
            elif key.value == "<<" and key.tag == _PLAIN:
                self.fault(key, here, "merge keys are not supported; repeat the lines, or use a plain alias")
            else:
                self.positions[here] = self._position(key, here)
                values[key.value] = self.value(value, here, depth + 1)
        return values


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
