"""Idle capacity: who may use it, how much of it there is, and how soon it is given back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.errors import GatewayError
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.idle import Idle, IdlePool
from gateway.fleet.worker import EngineLoad, Worker
from tests.unit.fleet.pools import Clock, pool, workers


async def turns() -> None:
    """Lets all that is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


class Line:
    """A request that nobody waits for, until it is asked to go."""

    def __init__(self, idle: Idle) -> None:
        self.idle = idle
        self.worker: Worker | None = None
        self.asked = 0

    async def begin(self) -> None:
        await self.idle.wait(self)
        self.try_now()

    def try_now(self) -> Worker | None:
        self.worker = self.idle.take(self, self.idle.pool, (), RoutingFacts())
        return self.worker

    def give_back(self) -> None:
        self.asked += 1

    def leaves(self, absence: GatewayError) -> bool:
        return False

    def end(self) -> None:
        assert self.worker is not None
        self.idle.pool.release(self.worker)
        self.idle.left(self)


class Place:
    """A pool of workers, a clock, and lines."""

    def __init__(self, count: int = 1, most: int | None = None) -> None:
        self.clock = Clock()
        self.workers = workers(count)
        for worker in self.workers:
            worker.max_in_flight = most
        self.pool = pool(self.workers, clock=self.clock)
        self.pool.listen()
        self.idle = Idle.of(self.pool, self.clock)

    def fill(self, most: int = 1000) -> list[Line]:
        """As many lines as are given a place, however long that takes."""
        found = []
        for _ in range(most):
            self.clock.now += 1.0
            line = Line(self.idle)
            if line.try_now() is None:
                break
            found.append(line)
        return found

    def report(self, running: float, waiting_: float = 0, worker: int = 0) -> None:
        one = self.workers[worker]
        one.hold(EngineLoad(running, waiting_, one.in_flight))
        self.idle._look(one, self.clock.now)  # a reading of the engine


@pytest.mark.parametrize(("most", "given"), [(1, 1), (2, 1), (8, 7), (16, 15), (64, 60)])
async def test_a_sixteenth_of_a_worker_stays_free(most: int, given: int) -> None:
    assert len(Place(most=most).fill()) == given


async def test_a_worker_that_reports_nothing_and_has_no_limit_takes_three() -> None:
    place = Place(count=2)
    assert len(place.fill()) == 6
    assert [worker.in_flight for worker in place.workers] == [3, 3]


async def test_requests_of_others_count() -> None:
    place = Place(most=8)
    for _ in range(6):
        await place.pool.acquire()
    assert len(place.fill()) == 1


async def test_places_grow_while_an_engine_has_room_and_stop_where_it_has_none() -> None:
    place = Place()
    place.report(0)
    lines = place.fill()
    assert len(lines) == 8
    for running in (8, 12, 18, 27):
        place.report(running)
        lines += place.fill()
        assert len(lines) == running + running // 2
    place.report(32, 8)  # once may be chance
    assert [line for line in lines if line.asked] == []
    assert place.fill() == []
    place.report(32, 8)
    assert [line.asked for line in lines] == [0] * 32 + [1] * 8
    for line in lines[32:]:
        line.end()
    place.report(32)
    assert place.fill() == []
    for line in lines[:6]:
        line.end()
    assert len(place.fill()) == 4  # 30 of 32
    place.clock.now += 60
    place.report(30)
    assert len(place.fill()) == 1  # once in a while it is tried whether there is more room


async def test_the_youngest_goes_when_a_client_takes_the_last_room() -> None:
    place = Place(most=32)
    lines = place.fill()
    assert len(lines) == 30
    clients = [await place.pool.acquire()]
    assert [line.asked for line in lines] == [0] * 30
    clients.append(await place.pool.acquire())
    assert [line.asked for line in lines] == [0] * 29 + [1]
    lines.pop().end()
    assert place.fill() == []
    for one in clients:
        place.pool.release(one)
    assert len(place.fill()) == 1


async def test_the_share_that_stays_free_is_an_option() -> None:
    place = Place(most=32)
    place.idle.headroom = 0.25
    lines = place.fill()
    assert len(lines) == 24
    for asked in (0, 0, 0, 0, 1):  # half of it is kept free
        await place.pool.acquire()
        assert sum(line.asked for line in lines) == asked


def seen_full() -> tuple[Place, list[Line]]:
    """An engine that was seen to take 32, and runs 30 lines."""
    place = Place()
    place.report(0)
    lines = place.fill()
    for running in (8, 12, 18, 27):
        place.report(running)
        lines += place.fill()
    for _ in range(2):
        place.report(32, len(lines) - 32)
    for line in lines[30:]:
        line.end()
    place.report(30)
    return place, lines[:30]


async def test_room_is_made_for_requests_of_other_gateways_before_any_of_them_waits() -> None:
    place, lines = seen_full()
    place.report(31)
    place.idle.serve()
    assert [line.asked for line in lines] == [0] * 30
    place.report(32)
    for _ in range(2):  # a reading counts once
        place.idle.serve()
        assert [line.asked for line in lines] == [0] * 29 + [1]


async def test_all_beyond_the_room_go_when_a_client_comes() -> None:
    """While it is tried whether an engine takes more, lines may wait in it; a client must not wait behind them."""
    place, lines = seen_full()
    place.clock.now += 60
    for running in (30, 31, 32):
        place.report(running)
        place.idle.serve()
        lines += place.fill()
    assert [line.asked for line in lines] == [0] * 34  # none takes the place of another one
    worker = await place.pool.acquire()
    assert (worker.in_flight, worker.background) == (35, 34)
    assert [line.asked for line in lines] == [0] * 30 + [1] * 4


async def test_one_goes_for_each_request_that_waits() -> None:
    place = Place(most=2)
    (line,) = place.fill()
    client = await place.pool.acquire()
    task = asyncio.create_task(place.pool.acquire())
    await turns()
    assert line.asked == 1
    task_two = asyncio.create_task(place.pool.acquire())
    await turns()
    assert place.pool.waiting == 2
    assert line.asked == 1  # there is no other
    line.end()
    assert await task is place.workers[0]
    place.pool.release(client)
    assert await task_two is place.workers[0]
    for _ in range(2):
        place.pool.release(place.workers[0])
    assert Line(place.idle).try_now() is None  # others had to wait just now
    place.clock.now += 1.1
    assert Line(place.idle).try_now() is not None


async def test_those_that_wait_come_one_after_the_other() -> None:
    place = Place(most=8)
    lines = [Line(place.idle) for _ in range(12)]
    tasks = [asyncio.create_task(line.begin()) for line in lines]
    for _ in range(40):
        place.clock.now += 0.1
        place.idle.serve()
        await turns()
    placed = [line for line in lines if line.worker is not None]
    assert placed == lines[:7]
    placed[0].end()
    place.clock.now += 0.1
    place.idle.serve()
    await turns()
    assert lines[7].worker is not None
    tasks[8].cancel()
    await turns()
    placed[1].end()
    place.clock.now += 0.1
    place.idle.serve()
    await turns()
    assert lines[9].worker is not None
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_lines_begin_in_gaps() -> None:
    place = Place(most=32)
    first, second = Line(place.idle), Line(place.idle)
    assert first.try_now() is not None
    assert second.try_now() is None
    place.clock.now += 0.11
    assert second.try_now() is not None


async def test_it_waits_in_no_queue() -> None:
    place = Place(most=1)
    await place.pool.acquire()
    mine: Any = IdlePool(place.pool, place.idle, Line(place.idle))
    assert mine.try_acquire((), RoutingFacts()) is None
    with pytest.raises(GatewayError) as error:
        await mine.acquire((), 0, RoutingFacts())
    assert error.value.code == "yielded"
    assert place.pool.waiting == 0
