"""What one more dialect or backend touches is what docs/architecture.md says: no other file has a table of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import backends, dialects
from tests.repo.tree import ROOT

SECTION = (ROOT / "docs" / "architecture.md").read_text().split("## Adding a dialect", 1)[1].split("\n## ", 1)[0]
SOURCES = [
    path
    for top in ("gateway", "workers", "tests", "bench", "scripts")
    for path in (ROOT / top).rglob("*.py")
    if "node_modules" not in path.parts
]
# Some of them may be told apart somewhere, such as those that speak one wire.
FEW = 2


def tables(source: str, names: set[str]) -> Iterator[int]:
    """The lines of literals whose items are, or begin with, more than a few of `names`."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.Dict, ast.List, ast.Tuple, ast.Set)):
            continue
        items = [*node.keys, *node.values] if isinstance(node, ast.Dict) else node.elts
        texts = [part.value for item in items if item is not None for part in ast.walk(item) if _is_text(part)]  # type: ignore[attr-defined]  # it is a constant
        if len(names.intersection(text.split(" ")[0] for text in texts)) > FEW:
            yield node.lineno


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def told(path: Path) -> bool:
    """Whether the page names the file, or the folder that it is in."""
    parts = path.relative_to(ROOT).parts
    places = ["/".join(parts), *("/".join(parts[:count]) + "/" for count in range(1, len(parts)))]
    return any(f"`{place}`" in SECTION for place in places)


@pytest.mark.parametrize("names", [set(dialects.REGISTRY), set(backends.REGISTRY)], ids=["dialects", "backends"])
def test_no_other_file_lists_them(names: set[str]) -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        if not told(path)
        for line in tables(path.read_text(), names)
    }
    assert not found, "use the registry or the examples of dialects, or say it in docs/architecture.md"


def test_ten_lines_are_enough() -> None:
    assert 0 < len([line for line in SECTION.splitlines() if line[:1].isdigit()]) <= 10


def test_a_table_is_found() -> None:
    names = {"a", "b", "c", "d"}
    assert list(tables('X = {"a": 1, "b": 2, "z": 3}', names)) == []
    assert list(tables('X = {"a": 1, "b": 2, "c x": 3}', names)) == [1]
    assert list(tables('\nX = [("a", 1), ("b", 2), ("c", 3)]', names)) == [2]
