"""What one more dialect, backend or pick policy touches is what docs/extending.md says: no other file has a table of
them, and what has one names all of them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from gateway import backends, dialects
from gateway.config import json_schema
from gateway.config.routing import Policy
from gateway.fleet.pick import POLICIES
from tests.repo.tree import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text()
SOURCES = [
    path
    for top in ("gateway", "workers", "tests", "bench", "scripts")
    for path in (ROOT / top).rglob("*.py")
    if "node_modules" not in path.parts
]
# Some of them may be told apart somewhere, such as those that speak one wire.
FEW = 2
MOST_FILES = 23
"""That one more dialect may touch."""


@cache
def parsed(path: Path) -> ast.AST:
    return ast.parse(path.read_text())


def having(names: set[str], most: int) -> Iterator[Path]:
    """The files whose text holds more than `most` of `names`, but for those that the page names. To parse the others,
    which have no such table, takes most of the time."""
    for path in SOURCES:
        text = path.read_text()
        if sum(name in text for name in names) > most and not told(path):
            yield path


def tables(tree: ast.AST, names: set[str]) -> Iterator[int]:
    """The lines of literals whose items are, or begin with, more than a few of `names`."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Dict, ast.List, ast.Tuple, ast.Set)):
            continue
        items = [*node.keys, *node.values] if isinstance(node, ast.Dict) else node.elts
        texts = [part.value for item in items if item is not None for part in ast.walk(item) if _is_text(part)]  # type: ignore[attr-defined]  # it is a constant
        if len(names.intersection(text.split(" ")[0] for text in texts)) > FEW:
            yield node.lineno


def spelled(tree: ast.AST, names: set[str]) -> set[str]:
    """Those of `names` that are texts of their own in `tree`."""
    return {node.value for node in ast.walk(tree) if _is_text(node) and node.value in names}  # type: ignore[attr-defined]  # it is a constant


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def told(path: Path) -> bool:
    """Whether the page names the file, or the folder that it is in."""
    parts = path.relative_to(ROOT).parts
    places = ["/".join(parts), *("/".join(parts[:count]) + "/" for count in range(1, len(parts)))]
    return any(f"`{place}`" in PAGE for place in places)


@pytest.mark.parametrize("names", [set(dialects.REGISTRY), set(backends.REGISTRY)], ids=["dialects", "backends"])
def test_no_other_file_lists_them(names: set[str]) -> None:
    found = {f"{path.relative_to(ROOT)}:{line}" for path in having(names, FEW) for line in tables(parsed(path), names)}
    assert not found, "use the registry or the examples of dialects, or say it in docs/extending.md"


def test_no_other_file_names_most_dialects() -> None:
    names = set(dialects.REGISTRY)
    most = len(names) * 2 // 3
    found = {str(path.relative_to(ROOT)) for path in having(names, most) if len(spelled(parsed(path), names)) > most}
    assert not found, "use the registry or the examples of dialects, or say it in docs/extending.md"


def test_the_places_exist() -> None:
    places = re.findall(r"`([\w.]+(?:/[\w.]+)*/?)`", re.sub(r"`[^`]*/x[./][^`]*`", "", PAGE))
    paths = [place for place in places if "/" in place or place.endswith(".md")]
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_backend_is_named_where_one_is_chosen() -> None:
    description = json_schema()["$defs"]["Model"]["properties"]["backend"]["description"]
    assert set(re.findall(r"\w+", description.partition(": ")[2])) - {"or"} == set(backends.REGISTRY)
    chart = json.loads((ROOT / "helm" / "dragoman" / "values.schema.json").read_text())
    enums = [found["enum"] for found in objects(chart) if "enum" in found and {"vllm", "openai"} <= set(found["enum"])]
    assert [set(enum) for enum in enums] == [set(backends.REGISTRY)]


def test_every_pick_policy_can_be_configured_and_is_on_its_page() -> None:
    assert set(get_args(Policy)) == set(POLICIES)
    page = (ROOT / "docs" / "routing.md").read_text()
    rows = re.findall(r"^\| `(\w+)`", page.partition("\n\n## ")[0], re.MULTILINE)
    assert rows == list(POLICIES)
    assert {made().name: name for name, made in POLICIES.items()} == {name: name for name in POLICIES}
    code = "".join(path.read_text() for path in (ROOT / "gateway/fleet/pick").glob("*.py"))
    named = re.findall(r'^    name = "(\w+)"', code, re.MULTILINE)
    assert sorted(named) == sorted(POLICIES), "a policy without a line in the table"


def objects(found: object) -> Iterator[dict[str, Any]]:
    """All JSON objects in `found`."""
    if isinstance(found, dict):
        yield found
    for inner in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from objects(inner)


def test_a_dialect_touches_few_files() -> None:
    """Counted as files and folders, those of the dialect itself included: a longer list means a rule in two places."""
    section = PAGE.split("## A dialect\n", 1)[1].split("\n## ", 1)[0]
    numbered = re.findall(r"^\d+\. (?:.+\n(?:   .+\n)*)", section, re.MULTILINE)
    places = {place for item in numbered for place in re.findall(r"`([\w.]+(?:/[\w.]+)*/?)`", item)}
    touched = {place for place in places if "/" in place or place.endswith(".md")}
    files = {place for place in touched if "/_shared/" not in place}  # read, not changed
    assert len(numbered) >= 9
    assert len(files) <= MOST_FILES, sorted(files)


def test_a_table_is_found() -> None:
    names = {"a", "b", "c", "d"}
    assert list(tables(ast.parse('X = {"a": 1, "b": 2, "z": 3}'), names)) == []
    assert list(tables(ast.parse('X = {"a": 1, "b": 2, "c x": 3}'), names)) == [1]
    assert list(tables(ast.parse('\nX = [("a", 1), ("b", 2), ("c", 3)]'), names)) == [2]
