"""Tests use what an object offers. One that reaches into another object says why, beside it or in the line above."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.repo.tree import ROOT, tracked

PUBLIC = frozenset({"_asdict", "_exit", "_fields", "_replace", "_request_id"})
"""Names that are documented although they begin with an underscore."""
OWN = frozenset({"cls", "self", "super"})


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


def test_no_test_reaches_into_another_object_without_a_reason() -> None:
    texts = {path.relative_to(ROOT): path.read_text() for path in tracked("tests/*.py")}
    found = [f"{path}:{line}" for path, text in texts.items() if "._" in text for line in sorted(set(private(text)))]
    assert found == [], "use what the object offers, or write the reason as a comment"


def test_a_reason_stands_beside_the_line_or_above_it() -> None:
    text = "self._a\none._a\none._a  # why\n# why\none.two()._a\nsuper()._a\nold._replace(a=1)\none.__dict__\n"
    assert list(private(text)) == [2]
