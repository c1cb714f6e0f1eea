"""Embeddings: a second worker is asked when the first is late."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any

import httpx
import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Response
from gateway.pipeline.hedge import hedged
from tests.clients import WAYS, Way
from tests.harness import Stack, until
from tests.pipeline.test_pump import chat, raw_request

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
        until(lambda: [worker.in_flight for worker in stack.gateway.state.pools["m"].workers] == [0, 0])
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
        until(lambda: [worker.in_flight for worker in stack.gateway.state.pools["m"].workers] == [0, 0])


# -- by itself ------------------------------------------------------------------------------------------------------

FINE = Response(200)
WRONG = GatewayError(Kind.UPSTREAM, "no")


class Two:
    """A pool of the workers `first` and `second`, and what each answers, once `go` says so."""

    generation = 0

    def __init__(self, name: str, told: list[str], outcome: Response | GatewayError | None = None) -> None:
        self.address = name
        self.go = asyncio.Event()
        self.outcome = outcome
        self.told = told
        self.spared: Two | None = None

    def __str__(self) -> str:
        return self.address

    def spare(self, exclude: list[Any], demand: Any) -> Two | None:
        return self.spared

    def succeeded(self, worker: Two, generation: int) -> None:
        self.told.append(f"{worker} succeeded")

    def failed(self, worker: Two, generation: int, error: GatewayError) -> None:
        self.told.append(f"{worker} failed")

    def abandoned(self, worker: Two, generation: int) -> None:
        self.told.append(f"{worker} abandoned")

    def release(self, worker: Two, demand: Any) -> None:
        self.told.append(f"{worker} released")


@pytest.mark.parametrize(
    ("first", "second", "order", "told"),
    [
        (FINE, FINE, "first", ["second abandoned", "second released"]),
        (FINE, FINE, "second", ["second succeeded", "first abandoned", "second released"]),
        (FINE, WRONG, "second first", ["second failed", "second released"]),
        (WRONG, FINE, "first second", ["second succeeded", "first failed", "second released"]),
        (WRONG, WRONG, "first second", ["second failed", "second released"]),
        (WRONG, WRONG, "second first", ["second failed", "second released"]),
    ],
)
async def test_every_outcome_is_told_once(first: Any, second: Any, order: str, told: list[str]) -> None:
    """That of the first worker by whoever called, unless the second one's answer counts."""
    heard: list[str] = []
    one, two = Two("first", heard, first), Two("second", heard, second)
    one.spared = two
    running: list[str] = []

    async def send(worker: Any) -> Response:
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

    pool: Any = one
    both: list[Any] = []
    told_asked = partial(heard.append, "asked")
    asked: Any = hedged(send, pool, pool, 0, 0.001, lambda: True, told_asked, lambda *lost: both.append(lost))
    if first is second is WRONG:
        with pytest.raises(GatewayError):
            await asked
    else:
        found = await asked
        assert found.other is two
        assert found.won == ("second succeeded" in told)
    assert heard == ["asked", *told]
    assert both == ([(two, WRONG)] if first is second is WRONG else [])
    assert running == []


@pytest.mark.parametrize("may", [True, False])
async def test_without_a_free_worker_or_leave_to_ask_the_first_is_waited_for(may: bool) -> None:
    heard: list[str] = []
    one = Two("first", heard, FINE)
    if not may:
        one.spared = Two("second", heard, FINE)

    async def send(worker: Any) -> Response:
        await asyncio.sleep(0.02)
        return FINE

    pool: Any = one
    found = await hedged(send, pool, pool, 0, 0.001, lambda: may, lambda: None, lambda other, error: None)
    assert (found.other, found.won, heard) == (None, False, [])
