"""The map in docs/architecture.md names every room of the product and of the tests, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.repo.tree import ROOT, tracked

PAGE = (ROOT / "docs" / "architecture.md").read_text()


def rooms(root: Path, top: str, files: Iterable[Path]) -> set[str]:
    """`name/` of the folders right below `top`; below gateway/ also `name.py` of modules."""
    found = set()
    for path in files:
        below = path.relative_to(root).parts
        if below[0] == top and len(below) > 2:
            found.add(f"{below[1]}/")
        elif below[0] == top == "gateway" and below[1] != "__init__.py":
            found.add(below[1])
    return found


def named(page: str, top: str) -> set[str]:
    """The names that the map has below `top`: a line each."""
    tree = page.split("## The house", 1)[1].split("```")[1]
    section = re.split(rf"^{top}/", tree, flags=re.MULTILINE)[1]
    section = re.split(r"^\S", section, flags=re.MULTILINE)[0]
    return set(re.findall(r"^  ([\w.]+/?) ", section, re.MULTILINE))


@pytest.mark.parametrize("top", ["gateway", "tests"])
def test_the_map_names_every_room_and_no_other(top: str) -> None:
    assert named(PAGE, top) == rooms(ROOT, top, tracked(f"{top}/*"))


def test_unit_tests_mirror_the_rooms() -> None:
    """A folder of unit tests has the name of a room of the product."""
    folders = {path.relative_to(ROOT).parts[2] for path in tracked("tests/unit/*/*")}
    names = {name.rstrip("/") for name in rooms(ROOT, "gateway", tracked("gateway/*"))} | {"workers", "broken_configs"}
    assert folders <= names


def test_every_top_folder_is_there() -> None:
    tree = PAGE.split("## The house", 1)[1].split("```")[1]
    parts = (path.relative_to(ROOT).parts for path in tracked())
    # Pages, locks, templates of the forge and continuous integration need no line.
    held = {first for first, *more in parts if more} - {"docs", "requirements", ".ci", ".github"}
    assert set(re.findall(r"^(\w+)/", tree, re.MULTILINE)) == held


def test_the_page_is_short() -> None:
    assert len(PAGE.split()) <= 1_000


def test_a_room_that_is_missing_is_found() -> None:
    tree = "gateway/\n  cli.py          x\n  core/           y\ntests/\n  unit/           z\n"
    page = f"## The house\n\n```\n{tree}```\n"
    files = [
        Path("/r/gateway/cli.py"),
        Path("/r/gateway/core/a.py"),
        Path("/r/gateway/new.py"),
        Path("/r/tests/x/a.py"),
    ]
    assert rooms(Path("/r"), "gateway", files) - named(page, "gateway") == {"new.py"}
    assert (named(page, "tests"), rooms(Path("/r"), "tests", files)) == ({"unit/"}, {"x/"})
