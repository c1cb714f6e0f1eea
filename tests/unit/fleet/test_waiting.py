"""Waiting for a worker, and giving it back whatever happens."""

from __future__ import annotations

import asyncio
import random
import sys
from types import FrameType

import pytest

from gateway.core.errors import Busy, GatewayError, Kind
from gateway.core.failures import MEANINGS, Cause
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.waiting import Refusal
from tests.unit.fleet.pools import POLICIES, Clock, kind_of, pool, waiting, workers

BROKEN = GatewayError(Kind.UPSTREAM, "broken")


async def test_who_waits_longest_is_served_first() -> None:
    (worker,) = members = workers(1, max_in_flight=1)
    one = pool(members)
    await one.acquire()
    tasks = [await waiting(one) for _ in range(3)]
    for number, task in enumerate(tasks):
        one.release(worker)
        assert await task is worker
        assert [other.done() for other in tasks] == [True] * (number + 1) + [False] * (2 - number)
        assert worker.in_flight == 1


async def test_higher_priority_is_served_first() -> None:
    (worker,) = members = workers(1, max_in_flight=1)
    one = pool(members)
    await one.acquire()
    order: list[int] = []
    for priority in (0, 5, -1, 5):
        task = await waiting(one, priority=priority)
        task.add_done_callback(lambda _, priority=priority: order.append(priority))  # type: ignore[misc]
    for _ in range(4):
        one.release(worker)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert order == [5, 5, 0, -1]


async def test_nobody_overtakes_those_who_wait() -> None:
    (worker,) = members = workers(1, max_in_flight=1)
    one = pool(members)
    await one.acquire()
    first = await waiting(one)
    one.release(worker)
    second = asyncio.create_task(one.acquire())  # in the same turn
    assert await first is worker
    await asyncio.sleep(0)
    assert not second.done()
    one.release(worker)
    assert await second is worker


async def test_a_full_queue_is_refused_at_once() -> None:
    one = pool(workers(1, max_in_flight=1), max_waiting=1)
    await one.acquire()
    task = await waiting(one)
    with pytest.raises(Busy, match="the queue of this model is full") as caught:
        await one.acquire()
    assert (caught.value.kind, caught.value.code, caught.value.retry_after) == (Kind.LIMITED, "queue_full", 1.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert one.waiting == 0


async def test_too_long_a_wait_is_refused() -> None:
    one = pool(workers(1, max_in_flight=1), timeout_s=0.02)
    await one.acquire()
    task = await waiting(one)
    with pytest.raises(GatewayError) as caught:
        await task
    assert (caught.value.kind, caught.value.retry_after) == (Kind.OVERLOADED, 1.0)
    assert one.waiting == 0


async def test_a_team_that_fills_the_queue_makes_room_for_another() -> None:
    reasons: list[Refusal] = []
    one = pool(workers(1, max_in_flight=1), max_waiting=3, on_refuse=reasons.append)
    worker = await one.acquire()
    flood = [await waiting(one, routing=RoutingFacts(tenant="loud")) for _ in range(3)]
    quiet = asyncio.create_task(one.acquire(routing=RoutingFacts(tenant="quiet")))
    with pytest.raises(Busy, match="had to make room") as caught:
        await flood[-1]
    assert (caught.value.code, reasons) == ("queue_full", ["displaced"])
    assert one.waiting == 3
    with pytest.raises(Busy, match="is full"):
        await one.acquire(routing=RoutingFacts(tenant="loud"))
    one.release(worker)
    assert await flood[0] is worker
    one.release(worker)
    assert await quiet is worker, "its turn comes before the rest of the flood"
    assert reasons == ["displaced", "full"]
    flood[1].cancel()
    await asyncio.gather(*flood, return_exceptions=True)


async def test_bytes_that_wait_are_bounded_but_one_body_always_may() -> None:
    one = pool(workers(1, max_in_flight=1), max_bytes=1000)
    await one.acquire()
    large = await waiting(one, routing=RoutingFacts(tenant="a", size=5000))
    with pytest.raises(Busy):
        await one.acquire(routing=RoutingFacts(tenant="a", size=1))
    large.cancel()
    await asyncio.gather(large, return_exceptions=True)
    few = [await waiting(one, routing=RoutingFacts(tenant="a", size=300)) for _ in range(3)]
    with pytest.raises(Busy):
        await one.acquire(routing=RoutingFacts(tenant="a", size=300))
    for task in few:
        task.cancel()
    await asyncio.gather(*few, return_exceptions=True)


async def test_a_wait_longer_than_the_clients_own_is_refused_at_once() -> None:
    clock, reasons = Clock(), list[Refusal]()
    one = pool(workers(1, max_in_flight=1), clock=clock, on_refuse=reasons.append, timeout_s=20)
    worker = await one.acquire()
    tasks = [await waiting(one, routing=RoutingFacts(tenant="a", size=4096)) for _ in range(12)]
    for task in tasks[:4]:  # each takes its worker for two seconds
        clock.now += 2.0
        one.release(worker)
        assert await task is worker
    patient = await waiting(one, routing=RoutingFacts(tenant="a", size=4096, until=clock.now + 16.5))
    with pytest.raises(Busy, match="would be about 17 s") as caught:
        await one.acquire(routing=RoutingFacts(tenant="a", size=4096, until=clock.now + 16.5))
    assert caught.value.code == "wait_too_long"
    assert caught.value.retry_after == pytest.approx(17.4, rel=0.01)
    assert reasons == ["slow"]
    # Another team's request has only its own turn to wait for.
    other = await waiting(one, routing=RoutingFacts(tenant="b", size=4096, until=clock.now + 16.5))
    # Without a deadline, the queue's own age counts.
    last = await waiting(one, routing=RoutingFacts(tenant="a", size=4096))
    with pytest.raises(Busy, match=r"would be about 2\d s"):
        await one.acquire(routing=RoutingFacts(tenant="a", size=4096))
    left = [*tasks[4:], patient, other, last]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def test_an_empty_queue_takes_a_request_however_slow_it_was() -> None:
    clock = Clock()
    one = pool(workers(1, max_in_flight=1), clock=clock, timeout_s=5)
    worker = await one.acquire()
    first = await waiting(one)
    clock.now = 1000.0
    one.release(worker)
    assert await first is worker
    second = await waiting(one)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)


async def test_requests_wait_for_the_first_worker() -> None:
    clock, reasons = Clock(), list[Refusal]()
    one = pool((), clock=clock, cold_start_s=60, on_refuse=reasons.append)
    assert not one.ready
    tasks = [await waiting(one, priority=number) for number in range(3)]
    clock.now = 50.0
    (worker,) = members = workers(1, max_in_flight=1)
    one.change(members)
    one.refit_waiting()
    assert await tasks[2] is worker
    worker.ready = False
    worker.freed()
    assert not tasks[1].done(), "it waits on: the worker may come back"
    worker.ready = True
    for task in tasks[1::-1]:
        one.release(worker)
        assert await task is worker
    assert reasons == []


async def test_the_wait_for_the_first_worker_ends() -> None:
    reasons: list[Refusal] = []
    one = pool((), cold_start_s=0.01, timeout_s=3600, on_refuse=reasons.append)
    assert await kind_of(await waiting(one)) is Kind.NO_WORKER
    assert reasons == ["no_worker"]


async def test_a_request_that_lost_its_worker_waits_for_one_to_return() -> None:
    reasons: list[Refusal] = []
    one = pool(workers(1), max_waiting=0, on_refuse=reasons.append)
    (worker,) = one.workers
    worker.ready = False
    patient = asyncio.create_task(one.acquire((), 0, RoutingFacts(patience=60)))
    await asyncio.sleep(0)
    assert await kind_of(asyncio.create_task(one.acquire())) is Kind.NO_WORKER
    worker.freed()
    assert not patient.done()
    worker.ready = True
    worker.freed()
    assert await patient is worker
    worker.ready = False
    brief = asyncio.create_task(one.acquire((), 0, RoutingFacts(patience=0.01)))
    assert await kind_of(brief) is Kind.NO_WORKER
    assert reasons == ["no_worker"], "that of the other one: it comes again"


async def test_one_who_waits_is_not_handed_a_worker_that_it_tried() -> None:
    a, b = members = workers(2, max_in_flight=1)
    one = pool(members)
    await one.acquire()
    await one.acquire()
    picky = await waiting(one, exclude=[a])
    one.release(a)
    await asyncio.sleep(0)
    assert not picky.done()
    # Nobody has to wait behind it for what it may not have.
    assert await one.acquire() is a
    one.release(b)
    assert await picky is b


async def test_waiting_ends_when_no_worker_is_left() -> None:
    members = workers(2, max_in_flight=1)
    one = pool(members)
    await one.acquire()
    await one.acquire()
    tasks = [await waiting(one), await waiting(one, exclude=[members[0]])]
    for worker in members:
        worker.ready = False
        worker.freed()
    assert [await kind_of(task) for task in tasks] == [Kind.NO_WORKER] * 2
    assert one.waiting == 0


async def test_a_worker_that_comes_back_is_handed_out() -> None:
    a, b = members = workers(2, max_in_flight=1)
    b.ready = False
    one = pool(members)
    assert await one.acquire() is a
    task = await waiting(one)
    b.ready = True
    b.freed()
    assert await task is b


@pytest.mark.parametrize("seed", range(4))
async def test_random_cancelling_leaks_nothing(seed: int) -> None:
    chance = random.Random(seed)
    members = workers(3, max_in_flight=2)
    one = pool(members, chance.choice(POLICIES), max_waiting=1000)
    most = 0

    async def request() -> None:
        nonlocal most
        worker = await one.acquire(chance.sample(members, chance.choice([0, 0, 1])), chance.randint(-1, 1))
        most = max(most, worker.in_flight)
        try:
            for _ in range(chance.randint(0, 3)):
                await asyncio.sleep(0)
            one.succeeded(worker, worker.generation)
        except asyncio.CancelledError:
            one.abandoned(worker, worker.generation)
            raise
        finally:
            one.release(worker)

    tasks: list[asyncio.Task[None]] = []
    for _ in range(1000):
        tasks.append(asyncio.create_task(request()))
        if chance.random() < 0.6:
            chance.choice(tasks[-20:]).cancel()
        if chance.random() < 0.5:
            await asyncio.sleep(0)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
    assert [worker.in_flight for worker in members] == [0, 0, 0]
    assert one.waiting == 0
    assert most == 2


async def test_cancelled_in_the_turn_of_the_hand_over() -> None:
    clock = Clock()
    a, b = members = workers(2, max_in_flight=1, failures=1)
    one = pool(members, clock=clock)
    assert await one.acquire() is a
    one.failed(a, a.generation, BROKEN)
    one.release(a)
    assert a.breaker.ejected
    assert await one.acquire() is b
    task = await waiting(one)
    clock.now = a.breaker.open_until
    one.serve_waiting()  # hands it a, whose trial this would be
    assert not a.breaker.allows(clock.now)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert a.in_flight == 0
    assert await one.acquire() is a


async def test_every_wait_is_told_whatever_ends_it_and_nothing_else() -> None:
    clock, waits = Clock(), list[float]()
    (only,) = workers(1, max_in_flight=1)
    pooled = pool([only], clock=clock, timeout_s=0.01, on_wait=waits.append)
    assert await pooled.acquire() is only
    assert waits == [], "it found a free worker at once"
    served = await waiting(pooled)
    clock.now = 2.0
    pooled.release(only)
    assert await served is only
    left = await waiting(pooled)
    clock.now = 5.0
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    late = await waiting(pooled)
    clock.now = 9.0
    assert await kind_of(late) is Kind.OVERLOADED
    assert waits == [2.0, 3.0, 4.0]


@pytest.mark.parametrize("cause", Cause)
async def test_a_client_learns_why_no_worker_is_there_and_nothing_of_the_account(cause: Cause) -> None:
    members = workers(3)
    for member in members:
        member.ready, member.trouble = False, cause
    with pytest.raises(GatewayError) as caught:
        await pool(members).acquire()
    theirs = MEANINGS[cause].word == "account"
    reason = "" if theirs else f": a worker {MEANINGS[cause].text}"
    assert caught.value.message == f"no worker of this model is available{reason}"
    assert caught.value.cause is (cause if theirs else None)


async def test_few_reasons_of_many_are_named_once_each() -> None:
    members = workers(40)
    for member, cause in zip(members, [*Cause, *Cause], strict=False):
        member.ready, member.trouble = False, cause
    one = pool(members)
    with pytest.raises(GatewayError) as caught:
        await one.acquire()
    assert caught.value.message.count("; a worker ") == 2
    for member in members:
        member.trouble = Cause.SILENT
    with pytest.raises(GatewayError, match=r"available: a worker did not answer in time$"):
        await one.acquire()


async def test_a_request_that_waits_calls_no_function_for_each_worker() -> None:
    async def of(count: int) -> int:
        members = workers(count, max_in_flight=1)
        one = pool(members)
        for _ in members:
            await one.acquire()
        tasks = [await waiting(one) for _ in range(3)]
        called = 0

        def count_call(frame: FrameType, event: str, _: object) -> None:
            nonlocal called
            called += event == "call" and "gateway/fleet" in frame.f_code.co_filename

        coming = one.acquire()
        sys.setprofile(count_call)
        try:
            coming.send(None)
            one.release(members[0])
        finally:
            sys.setprofile(None)
        assert await tasks[0] is members[0]
        coming.close()
        for task in tasks[1:]:
            task.cancel()
        return called

    assert await of(200) < await of(10) + 20  # candidates are looked at more seldom in a large fleet


async def test_those_that_wait_get_no_worker_that_is_ejected_meanwhile() -> None:
    members = workers(2, max_in_flight=1, failures=1)
    clock = Clock()
    clock.now = 1.0
    one = pool(members, clock=clock)
    first, second = [await one.acquire() for _ in members]
    tasks = [await waiting(one) for _ in range(3)]
    first.breaker.hold()
    one.release(first)
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    one.resume(first)
    assert await tasks[0] is first, "a trial"
    one.release(first)
    await asyncio.sleep(0)
    assert not tasks[1].done(), "one trial at a time"
    one.release(second)
    assert await tasks[1] is second
    tasks[2].cancel()
