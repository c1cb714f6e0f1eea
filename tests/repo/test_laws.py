"""Every numbered law of a dialect's recorded clients has a test that is named after it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.repo.tree import ROOT

FILES = sorted((ROOT / "tests" / "dialects").glob("*/test_laws.py"))
# A name may hold several: test_law_6_and_17_what_is_cut.
_NUMBERS = re.compile(r"test_law_(\d+(?:_and_\d+)*)_[a-z]")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_every_law_has_a_test_of_its_name(path: Path) -> None:
    body = ast.parse(path.read_text()).body
    assigned = {ast.unparse(node.targets[0]): node.value for node in body if isinstance(node, ast.Assign)}
    laws = ast.literal_eval(assigned["LAWS"])
    names = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    found = [match[1] for name in names if (match := _NUMBERS.match(name))]
    assert {int(number) for numbers in found for number in numbers.split("_and_")} == set(range(1, laws + 1))


def test_the_files_are_found() -> None:
    assert len(FILES) > 3
