"""Picking a worker, and sharing it with other pools."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Collection, Sequence
from contextlib import suppress

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.failures import Cause
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.blocks import Blocks
from gateway.fleet.pick import POLICIES as BY_NAME
from gateway.fleet.pick import PickPolicy, RoundRobin
from gateway.fleet.worker import Worker
from tests.support.steps import peak, steps
from tests.unit.fleet.pools import POLICIES, Clock, kind_of, pool, waiting, workers


async def test_round_robin_takes_turns() -> None:
    one = pool(workers(3), RoundRobin())
    assert [(await one.acquire()).address[-1] for _ in range(7)] == list("0120120")


async def test_least_busy_takes_the_least_busy_and_takes_turns_among_equals() -> None:
    members = workers(3)
    one = pool(members)
    taken = [await one.acquire() for _ in range(6)]
    assert [worker.in_flight for worker in members] == [2, 2, 2]
    one.release(taken[1])
    assert await one.acquire() is members[1]
    for worker in members:
        while worker.in_flight:
            one.release(worker)
    idle = []
    for _ in range(6):
        idle.append(await one.acquire())
        one.release(idle[-1])
    assert Counter(idle) == dict.fromkeys(members, 2)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", [2, 4])
async def test_a_returning_worker_takes_a_growing_share(policy: PickPolicy, count: int) -> None:
    clock = Clock()
    members = workers(count)
    one = pool(members, policy, clock=clock)
    members[0].breaker.come_back(0.0)

    async def share(now: float) -> float:
        clock.now = now
        taken = [await one.acquire() for _ in range(100 * count)]
        for worker in taken:
            one.release(worker)
        return taken.count(members[0]) / 100  # a fair share is 1

    shares = [await share(now) for now in (0.5, 5.0, 9.5)]
    assert 0 < shares[0] <= 0.25
    assert 0.4 < shares[1] < 0.7
    assert shares[2] >= 0.9
    assert await share(10.0) == pytest.approx(1.0, abs=0.02)


async def test_workers_keep_their_turns_from_pool_to_pool() -> None:
    """As at a reload: the new pool does not send everything to whoever was served first by it."""
    members = workers(3)
    before = pool(members, RoundRobin())
    for _ in range(1000):
        before.release(await before.acquire())
    after = pool(members, RoundRobin())
    assert [(await after.acquire()).address[-1] for _ in range(6)] == list("120120")
    joined = workers(1)[0]
    joined.turn = 5000  # it was in another pool before
    after.change([*members, joined])
    assert Counter([await after.acquire() for _ in range(8)]) == dict.fromkeys([*members, joined], 2)


async def test_a_worker_that_is_not_ready_is_left_out() -> None:
    members = workers(2)
    one = pool(members)
    members[0].ready = False
    assert {await one.acquire() for _ in range(4)} == {members[1]}
    seen = [one.ready]
    members[1].ready = False
    assert [*seen, one.ready] == [True, False]
    assert await kind_of(asyncio.create_task(one.acquire())) is Kind.NO_WORKER


@pytest.mark.parametrize("count", [1, 3])
async def test_excluded_workers_are_not_tried_again(count: int) -> None:
    members = workers(count)
    one = pool(members)
    assert await kind_of(asyncio.create_task(one.acquire(members))) is Kind.NO_WORKER
    if count > 1:
        assert {await one.acquire(members[:2]) for _ in range(4)} == {members[2]}


async def test_two_pools_of_one_worker_hear_of_each_other() -> None:
    """As during a reload: requests of the old configuration wait for what those of the new one give back."""
    (worker,) = members = workers(1, max_in_flight=1)
    old, new = pool(members), pool(members)
    await new.acquire()
    task = await waiting(old)
    new.release(worker)
    assert await task is worker
    old.release(worker)
    old.close()
    assert len(worker.on_free) == 1


async def test_a_question_waits_for_nobody_and_takes_nobodys_place() -> None:
    members = workers(2, max_in_flight=1)
    made = pool(members)
    held = [await made.acquire(), await made.acquire()]
    lent = [made.borrow() for _ in range(24)]
    assert {worker.address for worker in lent} == {worker.address for worker in members}
    assert [worker.in_flight for worker in members] == [1, 1]
    assert made.borrow([members[0]]) is members[1]
    with pytest.raises(GatewayError, match="no worker of this model"):
        made.borrow(members)
    for worker in held:
        made.release(worker)


@pytest.mark.parametrize("cause", [Cause.OVERLOADED, Cause.REFUSED])
async def test_a_worker_that_has_left_is_not_remembered_for_its_failures(cause: Cause) -> None:
    members = workers(3, failures=1)
    one = pool(members, max_eject_share=0.0)
    gone = await one.acquire([members[1], members[2]])
    one.change(members[1:])
    one.failed(gone, gone.generation, GatewayError(Kind.UPSTREAM, "failed", cause=cause))
    one.stall(gone)
    assert not one._resting  # what is remembered shows in the cost of a pick alone
    one.release(gone)


def test_workers_that_do_not_report_their_caches_are_known_without_a_look_at_each() -> None:
    def of(count: int) -> tuple[int, int]:
        members = workers(count)
        for member in members[1:]:
            member.blocks = Blocks()
            member.blocks.arriving = True
        one = pool(members)

        def ask() -> None:
            silent = one.without_cache_events
            assert silent is not None
            assert one.borrow(silent) is not members[0]

        ask()
        return steps(ask, within="gateway/fleet"), peak(ask)

    (few, small), (many, large) = of(8), of(1000)
    assert many == few
    assert large < small + 2_000


def test_it_is_noticed_which_workers_report_their_caches() -> None:
    first, second = members = workers(2)
    one = pool(members)

    def silent() -> Collection[Worker] | None:
        return one.without_cache_events

    assert silent() is None
    first.blocks = blocks = Blocks()
    assert silent() is None
    blocks.arriving = True
    assert silent() == {second}
    assert silent() is silent()
    blocks.ranks = 2
    assert silent() is None
    blocks.ranks = 1
    assert silent() == {second}
    first.blocks = None
    assert silent() is None


@pytest.mark.parametrize("name", sorted(BY_NAME.keys() - {"prefix"}))
async def test_a_pick_among_many_takes_no_more_steps_than_among_few(name: str) -> None:
    async def of(count: int) -> float:
        one, held = pool(workers(count), BY_NAME[name]()), deque[Worker]()

        async def pick() -> None:
            for _ in range(300):
                held.append(await one.acquire())
                if len(held) > 50:
                    one.release(held.popleft())

        await pick()
        return steps(lambda: next(pick().__await__(), None), within="gateway/fleet") / 300

    few, many, most = [await of(count) for count in (16, 80, 400)]
    assert many <= 1.1 * few
    assert most <= 1.1 * few


@pytest.mark.parametrize("name", BY_NAME)
async def test_workers_that_come_and_go_between_two_looks_at_a_large_fleet(name: str) -> None:
    """None is picked that has closed; if all that were open have closed, those that opened are found."""
    members = workers(100, max_in_flight=1)
    for member in members[50:]:
        member.ready = False
    one = pool(members, BY_NAME[name]())
    taken = []
    for count in range(80):
        taken.append(await one.acquire())
        members[(50 + count) % 100].ready = count < 30 or count >= 50
    assert set(taken) == set(members[:80])
    members[3].in_flight = 0
    members[99].ready = True
    members[3].draining = True
    assert await one.acquire() is members[99]


@pytest.mark.parametrize("serves", [(), ("another", "a third")])
@pytest.mark.parametrize("way", ["acquire", "try_acquire", "borrow"])
async def test_a_refusal_of_a_large_fleet_takes_no_more_steps_than_of_a_small_one(
    way: str, serves: Sequence[str]
) -> None:
    """A model's workers that are down are looked at when one changes, and not for each request that finds none."""

    def of(count: int) -> int:
        members = workers(count)
        for member in members:
            member.ready, member.trouble, member.serves = False, Cause.REFUSED, serves
        one = pool(members)

        def ask() -> None:
            with suppress(GatewayError):
                match way:
                    case "acquire":
                        next(one.acquire().__await__(), None)
                    case "borrow":
                        one.borrow()
                    case _:
                        assert one.try_acquire((), RoutingFacts()) is None

        ask()
        return steps(ask, within="gateway/fleet")

    assert of(400) == of(16) > 0


@pytest.mark.parametrize("tried", [0, 1], ids=["first", "again"])
@pytest.mark.parametrize("way", ["acquire", "try_acquire", "borrow", "may_serve", "absence"])
async def test_a_request_at_a_fleet_that_is_ejected_costs_what_it_does_at_a_small_one(way: str, tried: int) -> None:
    def of(count: int) -> float:
        members = workers(count)
        for member in members:
            member.breaker.hold()
        one = pool(members)

        def ask() -> None:
            for _ in range(100):
                with suppress(GatewayError):
                    match way:
                        case "acquire":
                            next(one.acquire(members[:tried]).__await__(), None)
                        case "borrow":
                            one.borrow(members[:tried])
                        case "may_serve":
                            assert not one.may_serve(members[:tried])
                        case "absence":
                            assert one.absence() is not None
                        case _:
                            assert one.try_acquire(members[:tried], RoutingFacts()) is None

        ask()
        return steps(ask, within="gateway/fleet") / 100

    # A look at all workers comes once for each eighth of the fleet.
    assert of(400) <= 1.35 * of(16)


def test_it_is_known_whether_a_whole_fleet_is_ejected() -> None:
    """Whatever becomes of its workers, what is remembered is what a look at each would say."""
    rng, now = random.Random(4), 0.0
    members = workers(4)
    one = pool(members)
    for _ in range(4000):
        worker, now = rng.choice(members), now + rng.choice((0.0, 0.5, 30.0))
        breaker = worker.breaker
        match rng.randrange(8):
            case 0 | 1:
                breaker.fail(now, breaker.generation, may_eject=True)
            case 2:
                breaker.begin(now)
            case 3:
                breaker.abandon(breaker.generation)
            case 4:
                breaker.succeed(now, breaker.generation)
            case 5:
                breaker.hold()
            case 6:
                breaker.try_again(now)
            case _:
                worker.ready = not worker.ready
        allowed = any(other.serving and other.breaker.allows(now) for other in members)
        assert one._standing.out(now) is not allowed  # the count must agree with the workers
