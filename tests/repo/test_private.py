"""Tests use what an object offers. One that reaches into another object says why, beside it or in the line above."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.repo.tree import ROOT, tracked

PUBLIC = frozenset({"_asdict", "_exit", "_fields", "_replace", "_request_id"})
"""Names that are documented although they begin with an underscore."""
OWN = frozenset({"cls", "self", "super"})

MOST = {
    "tests/acceptance": 1,
    "tests/unit": 1,
    "tests/unit/app": 24,
    "tests/unit/auth": 14,
    "tests/unit/cli": 10,
    "tests/unit/config": 1,
    "tests/unit/core": 3,
    "tests/unit/dialects": 3,
    "tests/unit/features": 56,
    "tests/unit/fleet": 17,
    "tests/unit/kernel": 3,
    "tests/unit/native": 3,
    "tests/unit/observe": 12,
    "tests/unit/ratelimit": 25,
    "tests/unit/server": 12,
    "tests/unit/tools": 2,
    "tests/unit/transport": 2,
    "tests/unit/wire": 3,
}
"""The lines that are left, by folder. They may only become fewer."""


def private(text: str) -> Iterator[int]:
    """The lines that use a private attribute of another object, and have no comment."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Attribute) or node.attr in PUBLIC or node.attr.startswith("__"):
            continue
        of = node.value.func if isinstance(node.value, ast.Call) else node.value
        its_own = isinstance(of, ast.Name) and of.id in OWN
        if not node.attr.startswith("_") or its_own:
            continue
        at = node.end_lineno or node.lineno
        if "  # " not in lines[at - 1] and not lines[at - 2].lstrip().startswith("# "):
            yield at


def found(paths: list[Path]) -> dict[str, int]:
    """The number of such lines by folder: tests/unit/fleet, or tests/laws."""
    count: Counter[str] = Counter()
    for path in paths:
        parts = path.relative_to(ROOT).parts[:-1]
        lines = len(set(private(path.read_text()))) if "._" in path.read_text() else 0
        count["/".join(parts[: 3 if parts[1:2] == ("unit",) else 2])] += lines
    return {folder: lines for folder, lines in count.items() if lines}


def test_no_test_reaches_into_another_object_without_a_reason() -> None:
    more = {at: lines for at, lines in found(tracked("tests/*.py")).items() if lines > MOST.get(at, 0)}
    assert more == {}, "use what the object offers, or write the reason as a comment"


def test_a_reason_stands_beside_the_line_or_above_it() -> None:
    text = "self._a\none._a\none._a  # why\n# why\none.two()._a\nsuper()._a\nold._replace(a=1)\none.__dict__\n"
    assert list(private(text)) == [2]
