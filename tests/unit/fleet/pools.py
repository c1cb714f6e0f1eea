"""Pools of workers that nobody runs, for the tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from gateway.config import Breaker, Queue
from gateway.core.errors import GatewayError, Kind
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.pick import LeastBusy, PickPolicy, RoundRobin
from gateway.fleet.pool import Pool
from gateway.fleet.waiting import PoolEvents, Refusal
from gateway.fleet.worker import Worker

POLICIES: tuple[PickPolicy, ...] = (LeastBusy(), RoundRobin())


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def workers(count: int, max_in_flight: int | None = None, failures: int = 2) -> list[Worker]:
    found = []
    for number in range(count):
        worker = Worker(f"http://w{number}", Breaker(failures=failures, eject_s=10, slowstart_s=10), max_in_flight)
        worker.ready = True
        found.append(worker)
    return found


def pool(
    members: Sequence[Worker],
    policy: PickPolicy | None = None,
    max_waiting: int = 100,
    timeout_s: float = 30.0,
    max_eject_share: float = 0.5,
    clock: Callable[[], float] | None = None,
    on_suspect: Callable[[Worker], None] = lambda worker: None,
    on_eject: Callable[[Worker], None] = lambda worker: None,
    on_return: Callable[[Worker], None] = lambda worker: None,
    on_wait: Callable[[float], None] = lambda seconds: None,
    on_refuse: Callable[[Refusal], None] = lambda reason: None,
    max_bytes: int = 1 << 20,
    cold_start_s: float = 0.0,
) -> Pool:
    events = PoolEvents(suspect=on_suspect, ejected=on_eject, returned=on_return, waited=on_wait, refused=on_refuse)
    queue = Queue.model_construct(
        max_waiting=max_waiting, timeout_s=timeout_s, max_bytes=max_bytes, cold_start_s=cold_start_s
    )
    made = Pool(members, policy or LeastBusy(), queue, max_eject_share, clock=clock or Clock(), events=events)
    made.listen()
    return made


async def waiting(
    pool: Pool, exclude: Sequence[Worker] = (), priority: int = 0, routing: RoutingFacts | None = None
) -> asyncio.Task[Worker]:
    """A request that waits already."""
    before = pool.waiting
    task = asyncio.create_task(pool.acquire(exclude, priority, routing))
    await asyncio.sleep(0)
    assert pool.waiting == before + 1
    return task


async def kind_of(job: asyncio.Task[Worker]) -> Kind:
    with pytest.raises(GatewayError) as caught:
        await job
    return caught.value.kind
