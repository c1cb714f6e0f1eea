"""A part of a long proof, for each run of continuous integration: `pytest --slice 8` (`SLICE=8` of make's targets).

One case in N of each law is drawn, the same in each run, and as many more as it takes to have each dialect and each
backend that cases of the proof name. Tests with the mark `whole` and cases that were not drawn are left out: `make
acceptance` runs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random

import pytest

from gateway.backends import REGISTRY as BACKENDS
from gateway.dialects import REGISTRY as DIALECTS

_NAMES = frozenset((*DIALECTS, *BACKENDS))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slice", type=int, metavar="N", help="of each law one case in N, and each dialect and backend")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (one_in := config.getoption("--slice")):
        return
    drawn = set(draw([item.nodeid for item in items if not item.get_closest_marker("whole")], one_in))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in drawn])
    items[:] = [item for item in items if item.nodeid in drawn]


def draw(cases: list[str], one_in: int) -> list[str]:
    """One case in so many of each law, at least one, and one for each name that none of these has."""
    laws: dict[str, list[str]] = {}
    for case in Random(len(cases)).sample(cases, len(cases)):
        laws.setdefault(_law(case), []).append(case)
    drawn = [case for law in laws.values() for case in law[: -(-len(law) // one_in)]]
    lacking = names(cases) - names(drawn)
    for case in (case for law in laws.values() for case in law):
        if names([case]) & lacking:
            drawn.append(case)
            lacking -= names([case])
    return drawn


def _law(case: str) -> str:
    """The test without its parameters."""
    return case.partition("[")[0]


def names(cases: Iterable[str]) -> set[str]:
    """The dialects and backends that parameters of these cases name."""
    return {word for case in cases for word in re.split(r"[^a-z_]+", case.partition("[")[2])} & _NAMES
