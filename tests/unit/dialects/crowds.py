"""Bodies in which lists refer to each other: two places of one body hold many items, whose ids and names are set so
that an item of one place refers to one, to all or to none of the other.

A place is an item of a list, or the only member of an object, in a dialect's richest requests
(`tests.laws.test_nested`).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations_with_replacement
from typing import Any

from gateway.core.fields import with_field
from tests.laws.nested import free, rich
from tests.support.clients import DIALECTS

Place = tuple[str | int, ...]
Naming = Callable[[int, int], str]
"""(index of an item, number of items) -> the name that it has or refers to."""

_REFERS = re.compile(r"(^|_)(id|name|namespace)$")
"""Names of members by which one object names or refers to another."""

NAMINGS: Mapping[str, tuple[Naming, Naming]] = {
    "all the same": (lambda i, n: "x", lambda i, n: "x"),
    "one to one": (lambda i, n: f"x{i}", lambda i, n: f"x{i}"),
    "one to one, in reverse": (lambda i, n: f"x{i}", lambda i, n: f"x{n - 1 - i}"),
    "all to none": (lambda i, n: f"x{i}", lambda i, n: "y"),
    "each to none": (lambda i, n: f"x{i}", lambda i, n: f"y{i}"),
}
"""How the items of the first and of the second place are named."""

_SCHEMA = {"type": "object"}
_ADDITION = {"type": "tool_addition", "tool": {"name": "f", "input_schema": _SCHEMA}}
_REMOVAL = {"type": "tool_removal", "tool": {"name": "f"}}
_IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
_RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "a"}, _IMAGE]}
_CALLED = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
_FUNCTION = {"type": "function", "name": "f", "parameters": _SCHEMA}
_SHELL = {"type": "local_shell_call", "call_id": "c", "action": {}}
_OUTPUT = [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "http://x/y.png"}]
MORE: Mapping[tuple[str, str], tuple[dict[str, Any], ...]] = {
    ("anthropic", "chat"): (
        {
            "messages": [
                {"role": "system", "content": [_ADDITION, _REMOVAL, {"type": "text", "text": "be"}]},
                {"role": "user", "content": [{"type": "tool_reference", "tool_name": "f"}]},
            ],
            "tools": [{"name": "f", "defer_loading": True, "input_schema": _SCHEMA}],
            "tool_choice": {"type": "tool", "name": "f"},
            "max_tokens": 16,
        },
        {
            "messages": [
                {"role": "system", "content": [_ADDITION]},
                {"role": "system", "content": [_REMOVAL]},
                {"role": "assistant", "content": [_CALLED]},
                {"role": "system", "content": "held"},
                {"role": "user", "content": [_RESULT]},
            ],
            "max_tokens": 16,
        },
    ),
    ("responses", "chat"): (
        {
            "input": [
                {"type": "message", "role": "user", "content": "a"},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "message", "role": "system", "content": "held"},
                {"type": "function_call_output", "call_id": "c", "output": _OUTPUT},
                _SHELL,
                {"type": "item_reference", "id": "rs_1"},
                {"type": "zz", "id": "1"},
            ],
            "tools": [_FUNCTION, {"type": "namespace", "name": "n", "tools": [_FUNCTION]}, {"type": "zz"}],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        },
    ),
}
"""What the richest requests lack: (dialect, operation) -> further bodies."""
_ALIKE = {"count": "chat"}
"""Operations whose bodies are those of another one."""


def bodies(dialect: str, operation: str) -> Iterator[dict[str, Any]]:
    """Bodies that hold every kind of list of the operation."""
    like = _ALIKE.get(operation, operation)
    example = DIALECTS[dialect].examples[operation][0].body
    if like in ("chat", "complete"):
        yield rich(dialect, like, "vllm")
        yield from MORE.get((dialect, like), ())
    for field in DIALECTS[dialect].fields.get(operation, ()):
        if field.where == "body" and isinstance(field.sample, (list, dict)) and field.sample:
            beside = {name: one for name, one in field.beside.items() if one is not None}
            yield with_field({**example, **beside}, field, field.sample)


def places(value: Any, free: set[str], at: Place = ()) -> Iterator[Place]:
    """The items of all lists in `value`, and the only member of an object at its top; nothing inside of what is `free`
    and carried as it is."""
    if isinstance(value, dict):
        if len(at) == 1 and len(value) == 1:
            yield (*at, next(iter(value)))
        for name, inner in value.items():
            if name not in free or not at:
                yield from places(inner, free, (*at, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield (*at, index)
            yield from places(inner, free, (*at, index))


def crowds(dialect: str, operation: str) -> Iterator[tuple[dict[str, Any], Place, Place, str]]:
    """What `crowded` takes: every two places of every body, and each place with itself, in every way of naming."""
    for body in bodies(dialect, operation):
        pairs = combinations_with_replacement(places(body, free(dialect)), 2)
        yield from ((body, one, other, naming) for one, other in pairs for naming in NAMINGS)


def crowded(body: Mapping[str, Any], first: Place, second: Place, naming: str, n: int) -> dict[str, Any]:
    """`body` with n items at each of the two places."""
    made = copy.deepcopy(dict(body))
    one, other = NAMINGS[naming]
    # The later and the inner place first: the other stays where it is.
    _crowd(made, second, [_named(_at(body, second), other(i, n)) for i in range(n)], lambda i: other(i, n))
    if first != second:
        copies = [_named(_at(body, first), one(i, n)) for i in range(n - 1)]
        _crowd(made, first, [_at(made, first), *copies], lambda i: one(i, n))
    return made


def _at(value: Any, place: Place) -> Any:
    for key in place:
        value = value[key]
    return value


def _crowd(body: dict[str, Any], place: Place, items: list[Any], name: Callable[[int], str]) -> None:
    around, key = _at(body, place[:-1]), place[-1]
    if isinstance(around, list) and isinstance(key, int):
        around[key : key + 1] = items
    else:
        del around[key]
        around.update({name(index) if not str(key).isdigit() else str(index): item for index, item in enumerate(items)})


def _named(value: Any, name: str, key: str = "") -> Any:
    """A copy of `value` with `name` wherever it names something or refers to something."""
    if isinstance(value, dict):
        return {inner: _named(one, name, inner) for inner, one in value.items()}
    if isinstance(value, list):
        return [_named(one, name) for one in value]
    return name if isinstance(value, str) and (_REFERS.search(key) or not key) else value
