"""Every numbered law of a dialect's recorded clients has a test that is named after it, runs, and asserts something."""

from __future__ import annotations

import ast
import re

import pytest

from tests.repo.tree import ROOT

SOURCES = {
    path.parent.name: "\n".join(part.read_text() for part in sorted(path.parent.glob("test_laws*.py")))
    for path in (ROOT / "tests" / "unit" / "dialects").glob("*/test_laws.py")
}
NOTES, LAWS = 6, 89
"""How many notes on clients there are, and how many laws they have together."""
# A name may hold several: test_law_6_and_17_what_is_cut.
_NUMBERS = re.compile(r"test_law_(\d+(?:_and_\d+)*)_[a-z]")
_NOT_RUN = frozenset({"skip", "skipif", "xfail", "importorskip"})


def says_nothing(test: ast.FunctionDef) -> bool:
    """True of a test that neither asserts, nor expects an exception, nor calls what does both (`check...`)."""
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            return False
        if isinstance(node, ast.Call) and re.search(r"(^|\.)(raises|check\w*)$", ast.unparse(node.func)):
            return False
    return True


def faults(source: str, laws: int) -> list[str]:
    """What is wrong with a module that should test laws 1 to `laws`."""
    tree = ast.parse(source)
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_law_")]
    found = {int(number) for test in tests if (m := _NUMBERS.match(test.name)) for number in m[1].split("_and_")}
    out = [f"law {number} has no test" for number in sorted(set(range(1, laws + 1)) - found)]
    out += [f"there is no law {number}" for number in sorted(found - set(range(1, laws + 1)))]
    out += [f"{test.name} asserts nothing" for test in tests if says_nothing(test)]
    names = [test.name for test in tests]
    out += [f"{name} is there twice" for name in sorted({name for name in names if names.count(name) > 1})]
    words = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return [*out, *(f"{word}: a law is always tested" for word in sorted(words & _NOT_RUN))]


def laws_of(source: str) -> int:
    """The number that a module assigns to LAWS."""
    assigned = {ast.unparse(node.targets[0]): node.value for node in ast.parse(source).body if type(node) is ast.Assign}
    return int(ast.literal_eval(assigned["LAWS"]))


@pytest.mark.parametrize("dialect", SOURCES)
def test_every_law_has_a_test_of_its_name(dialect: str) -> None:
    source = SOURCES[dialect]
    assert faults(source, laws_of(source)) == []


def test_no_notes_and_no_laws_are_missing_here() -> None:
    assert (len(SOURCES), sum(map(laws_of, SOURCES.values()))) == (NOTES, LAWS)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def test_law_1_and_2_a():\n    assert f()", []),
        ("def test_law_1_a():\n    assert f()", ["law 2 has no test"]),
        ("def test_law_1_and_2_a():\n    f()", ["test_law_1_and_2_a asserts nothing"]),
        ("def test_law_1_and_2_and_3_a():\n    assert f()", ["there is no law 3"]),
        ("class T:\n    def test_law_1_and_2_a():\n        assert f()", ["law 1 has no test", "law 2 has no test"]),
        ("@pytest.mark.skip\ndef test_law_1_and_2_a():\n    assert f()", ["skip: a law is always tested"]),
        (
            "def test_law_1_and_2_a():\n    assert f()\ndef test_law_1_and_2_a():\n    assert g()",
            ["test_law_1_and_2_a is there twice"],
        ),
    ],
)
def test_a_law_without_a_test_is_noticed(source: str, told: list[str]) -> None:
    assert faults(source, 2) == told
