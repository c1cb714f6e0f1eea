"""What the outcome of a request teaches: ejection, trial, return and rest."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.config import Breaker
from gateway.core.errors import GatewayError, Kind
from gateway.fleet.pick import PickPolicy
from gateway.fleet.worker import Worker
from tests.unit.fleet.pools import POLICIES, Clock, pool, waiting, workers

BROKEN = GatewayError(Kind.UPSTREAM, "broken")
REFUSED = GatewayError(Kind.BAD_REQUEST, "refused")
FULL = GatewayError(Kind.OVERLOADED, "full", upstream=503, retry_after=2.0)


async def test_only_the_workers_own_faults_count() -> None:
    suspects: list[Worker] = []
    ejected: list[Worker] = []
    members = workers(2)
    one = pool(members, on_suspect=suspects.append, on_eject=ejected.append)
    for _ in range(10):
        one.failed(members[0], members[0].generation, REFUSED)
        one.abandoned(members[0], members[0].generation)
    assert (suspects, ejected, members[0].breaker.failures) == ([], [], 0)
    one.failed(members[0], members[0].generation, BROKEN)
    assert (suspects, ejected) == ([members[0]], [])
    one.failed(members[0], members[0].generation, BROKEN)
    assert (suspects, ejected) == ([members[0]] * 2, [members[0]])


async def test_an_abandoned_trial_lets_the_next_one_begin() -> None:
    clock = Clock()
    members = workers(1)
    one = pool(members, clock=clock)
    breaker = members[0].breaker
    breaker.open_until, clock.now = 1.0, 2.0  # it was ejected, and its time is over
    worker = await one.acquire()
    assert worker.half_open
    assert not breaker.allows(clock.now)
    one.abandoned(worker, worker.generation)
    one.release(worker)
    assert breaker.ejected
    assert await one.acquire() is worker


@pytest.mark.parametrize(
    ("count", "share", "out"),
    [(1, 1.0, 0), (2, 0.5, 1), (2, 1.0, 1), (5, 0.5, 2), (4, 0.5, 2), (4, 1.0, 3), (4, 0.0, 0), (3, 0.3, 0)],
)
async def test_never_too_many_and_never_the_last(count: int, share: float, out: int) -> None:
    members = workers(count)
    one = pool(members, max_eject_share=share)
    for _ in range(5):
        for worker in members:
            one.failed(worker, worker.generation, BROKEN)
    assert sum(worker.breaker.ejected for worker in members) == out


@pytest.mark.parametrize("policy", POLICIES)
async def test_workers_that_return_together_take_little_each(
    policy: PickPolicy,
) -> None:
    """Their shares add up: four of five, at the tenth of their slow start, under one that has all the load."""
    clock = Clock()
    members = workers(5)
    one = pool(members, policy, clock=clock)
    for worker in members[1:]:
        worker.breaker.come_back(0.0)
    clock.now = 0.5  # half of the first tenth
    taken = [await one.acquire() for _ in range(500)]
    assert all(taken.count(worker) <= 25 for worker in members[1:]), "a fair share is 100"


async def test_one_that_says_that_it_is_too_much_rests_while_others_could_serve() -> None:
    """It has the fewest in flight, as it refuses at once; and whoever waits for the others must not be handed to it."""
    clock = Clock()
    a, b = members = workers(2, max_in_flight=1)
    one = pool(members, clock=clock)
    assert await one.acquire() is a
    one.failed(a, a.generation, FULL)
    one.release(a)
    assert a.breaker.failures == 0
    assert await one.acquire() is b
    task = await waiting(one)
    one.release(b)
    assert await task is b
    clock.now = 2.0
    assert await one.acquire() is a, "as long as it said"


async def test_a_rest_ends_with_the_first_reply_and_then_who_waits_is_served() -> None:
    a, b = members = workers(2, max_in_flight=2)
    one = pool(members, clock=Clock())
    for _ in range(4):
        await one.acquire()
    one.failed(a, a.generation, FULL)
    one.release(a)
    task = await waiting(one)
    one.succeeded(a, a.generation)
    assert await task is a
    assert b.in_flight == 2


async def test_who_waits_is_served_when_a_rest_is_over() -> None:
    a, b = members = workers(2, max_in_flight=1)
    one = pool(members, clock=time.monotonic)
    await one.acquire()
    one.failed(a, a.generation, GatewayError(Kind.OVERLOADED, "full", upstream=429, retry_after=0.05))
    one.release(a)
    assert await one.acquire() is b
    assert await (await waiting(one)) is a


async def test_where_all_rest_or_are_out_none_does() -> None:
    clock = Clock()
    a, b, c = members = workers(3)
    one = pool(members, clock=clock)
    c.ready = False
    for worker in (a, b):
        one.failed(worker, worker.generation, FULL)
    assert {await one.acquire() for _ in range(4)} == {a, b}
    c.ready = True
    assert {await one.acquire() for _ in range(4)} == {c}
    assert {await one.acquire([c]) for _ in range(4)} == {a, b}, "another that may have room is asked before none"


async def test_one_that_fails_and_cannot_be_spared_rests() -> None:
    """Three of five are broken, half may be out: the third must not be given all that the other two could serve."""
    clock = Clock()
    ejected: list[Worker] = []
    members = workers(5)
    one = pool(members, clock=clock, on_eject=ejected.append)
    for worker in members[:3]:
        for _ in range(2):
            one.failed(worker, worker.generation, BROKEN)
    assert ejected == members[:2]
    assert {await one.acquire() for _ in range(6)} == set(members[3:])
    clock.now = 1.0
    assert await one.acquire() is members[2]
    one.failed(members[2], members[2].generation, BROKEN)
    assert {await one.acquire() for _ in range(6)} == set(members[3:])
    for worker in members[3:]:
        worker.ready = False
    assert await one.acquire() is members[2], "nobody else is left"


async def test_only_a_workers_own_word_is_a_reason_to_rest() -> None:
    members = workers(2)
    one = pool(members, clock=Clock())
    for error in (REFUSED, BROKEN, GatewayError(Kind.OVERLOADED, "the queue is full")):
        one.failed(members[0], members[0].generation, error)
    assert {await one.acquire() for _ in range(4)} == set(members)


async def test_after_its_rest_one_request_tries_a_worker() -> None:
    """A burst would else meet it as a whole, and each of its requests take a retry and a place in the queue."""
    clock = Clock()
    a, b = members = workers(2)
    one = pool(members, clock=clock)
    one.failed(a, a.generation, FULL)
    clock.now = 2.0
    assert [await one.acquire() for _ in range(8)] == [a, *[b] * 7]
    one.failed(a, a.generation, FULL)  # refused once more: the rest is as long as it says
    clock.now = 3.9
    assert {await one.acquire() for _ in range(8)} == {b}
    clock.now = 4.0
    assert [await one.acquire() for _ in range(8)] == [a, *[b] * 7]
    one.succeeded(a, a.generation)
    assert a in {await one.acquire() for _ in range(40)}


async def test_a_worker_that_does_not_refuse_its_trial_is_as_the_others_after_a_second() -> None:
    """A stream may last for minutes."""
    clock = Clock()
    a, b = members = workers(2)
    one = pool(members, clock=clock)
    one.failed(a, a.generation, FULL)
    clock.now = 2.0
    assert [await one.acquire() for _ in range(3)] == [a, b, b]
    clock.now = 3.0
    assert {await one.acquire() for _ in range(4)} == {a, b}
    one.failed(a, a.generation, FULL)
    assert {await one.acquire() for _ in range(20)} == {b}, "what it says later counts as before"


async def test_a_rest_is_not_as_long_as_a_worker_may_say() -> None:
    clock = Clock()
    a, b = members = workers(2)
    one = pool(members, clock=clock)
    one.failed(a, a.generation, GatewayError(Kind.OVERLOADED, "full", upstream=429, retry_after=3600.0))
    clock.now = 29.9
    assert {await one.acquire() for _ in range(4)} == {b}
    clock.now = 30.0
    assert await one.acquire() is a


async def test_an_ejected_worker_is_tried_by_one_request_at_a_time() -> None:
    clock = Clock()
    a, b = members = workers(2)
    one = pool(members, clock=clock)
    for _ in range(2):
        one.failed(a, a.generation, BROKEN)
    assert {await one.acquire() for _ in range(5)} == {b}
    clock.now = 10.0
    taken = [await one.acquire() for _ in range(5)]
    assert taken.count(a) == 1
    one.succeeded(a, a.generation)
    one.release(a)
    clock.now = 20.0  # warmed up
    assert await one.acquire() is a


async def test_a_long_stream_on_trial_does_not_keep_the_others_out() -> None:
    clock = Clock()
    returned: list[Worker] = []
    a, b = members = workers(2, max_in_flight=1)
    one = pool(members, clock=clock, on_return=returned.append)
    for _ in range(2):
        one.failed(a, a.generation, BROKEN)
    old = await one.acquire()
    assert old is b
    clock.now = 10.0
    assert await one.acquire() is a
    generation = a.generation
    a.max_in_flight = 2
    task = await waiting(one)
    one.answered(a, generation)
    assert await task is a, "who waited is served at once"
    assert returned == [a]
    one.succeeded(a, generation)
    assert returned == [a]


async def test_who_waits_is_served_when_an_ejection_is_over() -> None:
    """Although nothing else happens: all other workers are full, and stay so."""
    a, b = members = workers(2, max_in_flight=1, failures=1)
    for worker in members:
        worker.breaker.options = Breaker(failures=1, eject_s=0.05, slowstart_s=0)
    one = pool(members, clock=time.monotonic)
    one.failed(a, a.generation, BROKEN)
    assert await one.acquire() is b
    task = await waiting(one)
    async with asyncio.timeout(30):
        assert await task is a
