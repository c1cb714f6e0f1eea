"""Embeddings: a second worker is asked when the first is late."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Response
from gateway.core.routing_facts import RoutingFacts
from gateway.features.hedge import first_answer
from gateway.kernel.visit import Visit
from tests.support.clients import WAYS, Way
from tests.support.harness import Stack, until
from tests.unit.kernel.asking import chat, raw_request

EMBEDDING = [way for way in WAYS if way.operation == "embed"]
CONFIG = {
    "models": {"m": {"policy": "round_robin", "hedge_s": 0.2}},
    "limits": [{"name": "each", "kind": "requests", "limit": 2, "scope": ["key"]}],
}


def test_there_are_some() -> None:
    assert len({way.dialect for way in EMBEDDING}) >= 4


@pytest.mark.parametrize("way", EMBEDDING, ids=str)
def test_the_second_worker_answers_and_the_late_one_is_let_go(way: Way) -> None:
    with Stack(({"fault": "stall@before"}, {}), config=CONFIG) as stack:
        for _ in range(2):
            reply = httpx.post(stack.url + way.path("m"), json={"model": "m", **way.body()}, timeout=20)
            assert reply.status_code == 200, reply.text
        records = stack.records()
        hedged = sum(record["attempts"] == 2 for record in records)
        assert hedged >= 1
        assert sum(record["attempts"] for record in records) == 2 + hedged
        assert {record["worker"] for record in records} == {stack.sims[1].url}
        stack.run(stack.sim.ledger.wait(aborted=hedged))
        until(lambda: [worker.in_flight for worker in stack.gateway.deployment.pools["m"].workers] == [0, 0])
        page = httpx.get(stack.url + "/metrics").text
        won = {one: int(count) for one, count in re.findall(r'dragoman_hedges_total{model="m",won="(.*)"} (\d+)', page)}
        assert won["second"] >= 1
        assert sum(won.values()) == hedged, "the first one won where it took its time for once"
        assert len({str(record["usage"]) for record in records}) == 1, "charged once"
        again = httpx.post(stack.url + way.path("m"), json={"model": "m", **way.body()}, timeout=20)
        assert again.status_code == 429, "two requests were two requests"


def test_nothing_else_is_asked_for_twice() -> None:
    with Stack(({"fault": "stall:0.3@before"}, {"fault": "stall:0.3@before"}), config=CONFIG) as stack:
        assert httpx.post(stack.url + "/v1/chat/completions", json=chat(), timeout=20).status_code == 200
        assert stack.record()["attempts"] == 1


def test_a_second_worker_whose_answer_cannot_be_read_is_not_asked_again() -> None:
    config = {"models": {"m": {"policy": "round_robin", "hedge_s": 0.1}}}
    with Stack(({"fault": "stall:1@before"}, {"fault": "html"}), config=config) as stack:
        reply = httpx.post(stack.url + "/v1/embeddings", json={"model": "m", "input": "a"}, timeout=20)
        assert (reply.status_code, stack.record()["attempts"]) == (200, 3)
        assert [sim.ledger.received for sim in stack.sims] == [2, 1]


def test_whoever_leaves_leaves_both() -> None:
    with Stack(({"fault": "stall@before"}, {"fault": "stall@before"}), config=CONFIG) as stack:
        with raw_request(stack, {"model": "m", "input": "a"}, "/v1/embeddings"):
            for sim in stack.sims:
                stack.run(sim.ledger.wait(running=1))
        for sim in stack.sims:
            stack.run(sim.ledger.wait(aborted=1))
        assert (stack.record()["outcome"], stack.record()["attempts"]) == ("cancelled", 2)
        page = httpx.get(stack.url + "/metrics").text
        assert 'dragoman_hedges_total{model="m",won="first"} 1.0' in page
        until(lambda: [worker.in_flight for worker in stack.gateway.deployment.pools["m"].workers] == [0, 0])


# -- by itself ------------------------------------------------------------------------------------------------------

FINE = Response(200)
WRONG = GatewayError(Kind.UPSTREAM, "no")


class Named:
    """A worker that answers as it is told, once `go` is set."""

    generation = 0

    def __init__(self, name: str, outcome: Response | GatewayError) -> None:
        self.address = name
        self.go = asyncio.Event()
        self.outcome = outcome

    def __str__(self) -> str:
        return self.address


class Learning:
    """A pool that notes what it learns."""

    def __init__(self) -> None:
        self.learned: list[str] = []

    def succeeded(self, worker: Named, generation: int, generated: bool) -> None:
        self.learned.append(f"{worker} succeeded")

    def failed(self, worker: Named, generation: int, error: GatewayError) -> None:
        self.learned.append(f"{worker} failed")

    def waited(self, *facts: object) -> None:
        pass

    def abandoned(self, worker: Named, generation: int) -> None:
        self.learned.append(f"{worker} abandoned")

    def release(self, worker: Named, routing: Any) -> None:
        self.learned.append(f"{worker} released")

    def visit(self, worker: Any) -> Visit:
        pool: Any = self
        return Visit(pool, worker, RoutingFacts(), pool)


@pytest.mark.parametrize(
    ("first", "second", "order", "learned"),
    [
        (FINE, FINE, "first", ["second abandoned", "second released", "first succeeded"]),
        (FINE, FINE, "second", ["first abandoned", "second succeeded", "second released"]),
        (FINE, WRONG, "second first", ["second failed", "second released", "first succeeded"]),
        (WRONG, FINE, "first second", ["first failed", "second succeeded", "second released"]),
        (WRONG, WRONG, "first second", ["second failed", "second released", "first failed"]),
        (WRONG, WRONG, "second first", ["second failed", "second released", "first failed"]),
    ],
)
async def test_every_outcome_is_learned_once(first: Any, second: Any, order: str, learned: list[str]) -> None:
    pool = Learning()
    one, two = Named("first", first), Named("second", second)
    running: list[str] = []

    async def send(visit: Visit) -> Response:
        worker: Any = visit.worker
        running.append(worker.address)
        try:
            if worker is two:
                for name in order.split():
                    {"first": one, "second": two}[name].go.set()
                    await asyncio.sleep(0)
            await worker.go.wait()
            if isinstance(worker.outcome, GatewayError):
                raise worker.outcome
            return FINE
        finally:
            running.remove(worker.address)

    async def ask() -> Named:
        with pool.visit(one) as visit:
            _, winner = await first_answer(visit, send, 0.001, lambda first: pool.visit(two))
        return two if winner.worker.address == two.address else one

    if first is second is WRONG:
        with pytest.raises(GatewayError):
            await ask()
    else:
        assert await ask() is (two if "second succeeded" in learned else one)
    assert pool.learned == [*learned, "first released"]
    assert running == []


async def test_without_a_second_worker_the_first_is_waited_for() -> None:
    pool = Learning()
    asked = asyncio.Event()

    async def send(visit: Visit) -> Response:
        await asked.wait()
        return FINE

    def none_is_free(first: Visit) -> None:
        asked.set()

    with pool.visit(Named("first", FINE)) as visit:
        assert await first_answer(visit, send, 0.001, none_is_free) == (FINE, visit)
    assert pool.learned == ["first succeeded", "first released"]
