"""No pass over a request takes longer than in proportion to it: twice as much of anything is about twice the work."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import backends, dialects
from gateway.core import totals
from gateway.core.ability import refuse_beyond
from gateway.core.errors import GatewayError
from gateway.core.ports import Capabilities, Settings
from gateway.limits.estimate import Estimator
from tests.chaos.hostile import KINDS
from tests.clients import WAYS, Way
from tests.fidelity.matrix import asking
from tests.steps import steps

# Beyond the bounds of what is bounded to fewer, such as stop strings, and below all others.
FEW, MANY = 70, 210
# Three times as much may be four times the work: a step that is linear is not exactly so.
MOST = 4.0
SOME = frozenset({"vision", "tools", "reasoning", "json", "json_schema", "regex", "completions", "embeddings"})
CASES = [
    pytest.param(way, kind, id=f"{way}-{kind}")
    for way in WAYS
    for kind in KINDS.get(way.operation, ())
    # Paths of one route are read by the same code.
    if way.route is next(one.route for one in WAYS if one.example is way.example)
]


def handle(way: Way, members: dict[str, Any]) -> None:
    """What the loop and the thread do with a request until it is sent, or refused. One dialect stands before every
    backend, the others before one: they hand on the same canonical request."""
    dialect = dialects.create(way.dialect, Settings(extras="pass"))
    before = list(backends.REGISTRY)[: None if way.dialect == WAYS[0].dialect else 1]
    request = asking(way.example, members)
    op = None
    try:
        op = dialect.read(request)
        refuse_beyond(op, Capabilities("m", 4096, SOME))  # type: ignore[arg-type]  # no route here lists models
        Estimator().cost(op, 4096)  # type: ignore[arg-type]
        for name in before:
            try:
                backends.create(name).write(totals.without(op), Capabilities("m"))  # type: ignore[arg-type,type-var]
            except GatewayError as error:
                dialect.refuse(error, request, op)  # type: ignore[arg-type]
    except GatewayError as error:
        dialect.refuse(error, request, op)  # type: ignore[arg-type]


@pytest.mark.parametrize(("way", "kind"), CASES)
def test_three_times_as_much_is_three_times_the_work(way: Way, kind: str) -> None:
    make = KINDS[way.operation][kind]
    few, many = make(FEW), make(MANY)
    size = len(json.dumps(many)) / len(json.dumps(few))
    handle(way, many)  # what is looked up once is looked up
    cost = steps(lambda: handle(way, few)), steps(lambda: handle(way, many))
    assert cost[1] / cost[0] <= MOST * max(1.0, size / (MANY / FEW)), cost


def test_what_is_quadratic_is_seen() -> None:
    def quadratic(n: int) -> None:
        waiting = list(range(n))
        while waiting:
            waiting = [one for one in waiting if one != waiting[-1]]

    assert steps(lambda: quadratic(MANY)) / steps(lambda: quadratic(FEW)) > 2 * MOST
    assert steps(lambda: sum(one for one in range(MANY))) / steps(lambda: sum(one for one in range(FEW))) < MOST
