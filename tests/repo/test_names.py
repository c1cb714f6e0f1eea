"""Names in the source are the field's terms. `python -m tests.repo.test_names` lists those that are not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.repo.tree import ROOT, tracked

_PRIVATE = re.compile(r"(?:^|_)(?:seen|kept|told|places?|tells?|says?|said|hears?|heard|going)(?:_|$)")
"""Machines log, report, read and receive; a value is observed, stored, given; a request has a slot, a member a path."""
_OF_FILES = "tell"
"""Python's files have it, so what is written to as to a file has it, too."""


def private(name: str) -> bool:
    return name != _OF_FILES and _PRIVATE.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()) is not None


def names(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of all that a module names: classes, functions, arguments, variables and attributes."""
    for node in ast.walk(ast.parse(source)):
        for member in ("id", "name", "attr", "arg", "asname"):
            if isinstance(found := getattr(node, member, None), str):
                yield getattr(node, "lineno", 1), found


def faults() -> list[str]:
    found = []
    for path in tracked("gateway/*.py", "workers/*.py"):
        at = path.relative_to(ROOT)
        found += [f"{at}: the module"] if private(path.stem) else []
        found += sorted({f"{at}:{line}: {name}" for line, name in names(path.read_text()) if private(name)})
    return found


def test_names_are_the_field_s() -> None:
    assert faults() == []


def test_a_private_name_is_found_wherever_it_stands() -> None:
    source = """
import a as told
class SeenText: ...
def heard_of(kept, *, place=0): said = x.heard; return f(going=1)
match 1:
    case says: ...
try: ...
except E as hear: ...
"""
    found = {name for _, name in names(source) if private(name)}
    assert found == {"told", "SeenText", "heard_of", "kept", "place", "said", "heard", "going", "says", "hear"}
    assert not any(map(private, ("placeholder", "replace", "essay", "ongoing_s", "foretold", "tell")))


if __name__ == "__main__":
    print(*faults(), sep="\n")
