"""A part of a long proof, for each run of continuous integration: `pytest --slice 8` (`SLICE=8` of make's targets).

One case in N of each law is drawn, the same in each run, and as many more as it takes to have each dialect and each
backend that its cases name. A test with the mark `whole` is left out, and so are the cases that were not drawn:
`make acceptance` runs them.
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
    laws: dict[str, list[str]] = {}
    for item in items:
        if not item.get_closest_marker("whole"):
            laws.setdefault(_law(item.nodeid), []).append(item.nodeid)
    drawn = {case for cases in laws.values() for case in draw(cases, one_in)}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in drawn])
    items[:] = [item for item in items if item.nodeid in drawn]


def _law(case: str) -> str:
    """The test without its parameters."""
    return case.partition("[")[0]


def draw(cases: list[str], one_in: int) -> list[str]:
    """One case in so many, at least one, and one for each name that is in none of these."""
    order = Random(len(cases)).sample(cases, len(cases))
    drawn = order[: -(-len(cases) // one_in)]
    lacking = names(cases) - names(drawn)
    for case in order:
        if names([case]) & lacking:
            drawn.append(case)
            lacking -= names([case])
    return drawn


def names(cases: Iterable[str]) -> set[str]:
    """The dialects and backends that parameters of these cases name."""
    return {word for case in cases for word in re.split(r"[^a-z_]+", case.partition("[")[2])} & _NAMES
