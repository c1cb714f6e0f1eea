"""Parts of all cases, drawn the same in each run.

`pytest --sample 8` is for `make test` and `make test-long`: of each law (a test with parameters) one case in eight is
drawn, and one more for each dialect and each backend that cases of this law name and none of the drawn ones does. The
other cases get the mark `long`: `make test-long` runs them.

`pytest --slice 32` (`SLICE=32` of make's targets) is for each run of continuous integration: a part of a long proof.
One case in 32 of each law is drawn, and as many more as it takes to have each dialect and backend that cases of the
proof name. Tests with the mark `whole` and cases that were not drawn are left out: `make acceptance` runs them. Laws of
which `--sample` takes a part are left out, too: the same run of continuous integration calls `make test`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random

import pytest

from gateway.backends import REGISTRY as BACKENDS
from gateway.config import has_feature
from gateway.dialects import REGISTRY as DIALECTS

_NAMES = frozenset((*DIALECTS, *BACKENDS))
_WORD = re.compile("[a-z_]+")
# Marks of tests that another target than `make test` runs.
APART = frozenset(("long", "browser", "engine", "agents", "libraries", "prometheus", "pods", "upgrade"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slice", type=int, metavar="N", help="of each law one case in N, and each dialect and backend")
    parser.addoption("--sample", type=int, metavar="N", help="of each law one case in N; all others are `long`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if all(has_feature(mark.args[0]) for mark in item.iter_markers("feature"))]
    if one_in := config.getoption("--sample"):
        plain = [item for item in items if not any(mark.name in APART for mark in item.iter_markers())]
        kept = sample([item.nodeid for item in plain], one_in)
        for item in plain:
            if item.nodeid not in kept:
                item.add_marker("long")
                if config.getoption("--slice"):
                    item.add_marker("whole")
    if not (one_in := config.getoption("--slice")):
        return
    drawn = set(draw([item.nodeid for item in items if not item.get_closest_marker("whole")], one_in))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in drawn])
    items[:] = [item for item in items if item.nodeid in drawn]


def sample(cases: list[str], one_in: int) -> set[str]:
    """One case in so many of each law, and each dialect and backend that cases of this law name."""
    laws: dict[str, list[str]] = {}
    for case in cases:
        laws.setdefault(_law(case), []).append(case)
    return {case for law in laws.values() for case in (draw(law, one_in) if len(law) > 1 else law)}


def draw(cases: list[str], one_in: int) -> list[str]:
    """One case in so many of each law, at least one, and one for each name that none of these has."""
    laws: dict[str, list[str]] = {}
    for case in Random(len(cases)).sample(cases, len(cases)):
        laws.setdefault(_law(case), []).append(case)
    drawn = [case for law in laws.values() for case in law[: -(-len(law) // one_in)]]
    lacking = names(cases) - names(drawn)
    for case in (case for law in laws.values() for case in law):
        if not lacking:
            break
        if found := names([case]) & lacking:
            drawn.append(case)
            lacking -= found
    return drawn


def _law(case: str) -> str:
    """The test without its parameters."""
    return case.partition("[")[0]


def names(cases: Iterable[str]) -> set[str]:
    """The dialects and backends that parameters of these cases name."""
    return {word for case in cases for word in _WORD.findall(case.partition("[")[2])} & _NAMES
