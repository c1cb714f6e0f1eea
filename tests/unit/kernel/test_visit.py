"""A visit to a worker: its one outcome, and where the rules for outcomes stand."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.routing_facts import RoutingFacts
from gateway.kernel.visit import Visit
from tests.repo.tree import ROOT

OUTCOMES = ("answered", "succeeded", "failed", "abandoned", "release")


@pytest.mark.parametrize("verb", OUTCOMES)
def test_pools_learn_outcomes_from_visits_alone(verb: str) -> None:
    """No other file of the kernel and of features calls the pool's verbs."""
    call = re.compile(rf"pool\.{verb}\(")
    places = {path.name for path in (ROOT / "gateway").glob("[fk]e*/**/*.py") if call.search(path.read_text())}
    assert places == {"visit.py"}


class Pool:
    def __init__(self) -> None:
        self.learned: list[str] = []

    def succeeded(self, worker: Any, generation: int, generated: bool) -> None:
        self.learned.append("succeeded")

    def failed(self, worker: Any, generation: int, error: GatewayError) -> None:
        self.learned.append(f"failed: {error.message}")

    def waited(self, *facts: object) -> None:
        pass

    def abandoned(self, worker: Any, generation: int) -> None:
        self.learned.append("abandoned")

    def release(self, worker: Any, routing: RoutingFacts) -> None:
        self.learned.append("released")


class Worker:
    address = "http://worker"
    generation = 3


def visit(pool: Any, routing: RoutingFacts | None = None) -> Visit:
    worker: Any = Worker()
    return Visit(pool, worker, routing, pool)


def raised(error: BaseException | None) -> AbstractContextManager[object]:
    return nullcontext() if error is None else pytest.raises(type(error))


ENDS = [
    (None, "succeeded"),
    (GatewayError(Kind.UPSTREAM, "broken"), "failed: broken"),
    (RuntimeError("a bug"), "abandoned"),
    (KeyboardInterrupt(), "abandoned"),
]


@pytest.mark.parametrize(("error", "learned"), ENDS, ids=lambda value: type(value).__name__)
def test_the_end_of_the_block_is_the_outcome(error: BaseException | None, learned: str) -> None:
    pool = Pool()
    with raised(error), visit(pool, RoutingFacts()):
        if error is not None:
            raise error
    assert pool.learned == [learned, "released"]


@pytest.mark.parametrize("first", ["succeeded", "failed", "abandoned"])
@pytest.mark.parametrize(("error", "learned"), ENDS, ids=lambda value: type(value).__name__)
def test_the_first_outcome_counts(first: str, error: BaseException | None, learned: str) -> None:
    pool = Pool()
    late = GatewayError(Kind.TRUNCATED, "late")
    with raised(error), visit(pool) as one:
        getattr(one, first)(*([late] if first == "failed" else []))
        if error is not None:
            raise error
    assert pool.learned == ["failed: late" if first == "failed" else first], "a lent worker is not given back"
    assert one.outcome == first
