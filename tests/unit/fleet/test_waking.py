"""When a client shall come back whose model has no worker yet: after what is left of the time that a load takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.fleet.pool import Pool
from gateway.fleet.waking import LONGEST_S
from tests.unit.fleet.pools import Clock, pool, workers


async def told(one: Pool) -> float:
    """The Retry-After of a request that comes now."""
    with pytest.raises(GatewayError) as caught:
        await one.acquire()
    assert caught.value.kind is Kind.NO_WORKER
    assert caught.value.retry_after is not None
    return caught.value.retry_after


def counted(one: Pool) -> float:
    """The same of a question that takes no place."""
    with pytest.raises(GatewayError) as caught:
        one.borrow()
    assert caught.value.retry_after is not None
    return caught.value.retry_after


async def sleep_and_wake(one: Pool, clock: Clock, seconds: float) -> None:
    """A client asks a model without workers; so many seconds later a worker has joined, and leaves again."""
    one.change(())
    one.refit_waiting()
    await told(one)
    clock.now += seconds
    joined = workers(1)
    joined[0].ready = False
    one.change(joined)
    one.refit_waiting()
    joined[0].ready = True
    joined[0].freed()
    one.release(await one.acquire())
    clock.now += 3600
    one.change(())
    one.refit_waiting()


async def test_it_is_what_is_left_of_the_last_load() -> None:
    clock = Clock()
    one = pool((), clock=clock)
    await sleep_and_wake(one, clock, 240.0)
    assert await told(one) == 240.0
    clock.now += 100.0
    assert (await told(one), counted(one)) == (140.0, 140.0)
    clock.now += 139.5
    assert await told(one) == 1.0


async def test_a_question_wakes_a_model_as_a_request_does() -> None:
    clock = Clock()
    one = pool((), clock=clock)
    assert counted(one) == 1.0
    clock.now += 30.0
    one.change(workers(1))
    one.refit_waiting()
    one.change(())
    assert await told(one) == 30.0


@pytest.mark.parametrize("known", [(), (100.0,)], ids=["first", "late"])
async def test_a_load_that_is_late_sends_its_clients_away_for_as_long_as_it_is_late(known: tuple[float, ...]) -> None:
    clock = Clock()
    one = pool((), clock=clock)
    for seconds in known:
        await sleep_and_wake(one, clock, seconds)
    await told(one)
    clock.now += sum(known)
    for late, wait in ((0.0, 1.0), (20.0, 20.0), (40.0, 40.0), (3600.0, 60.0)):
        clock.now += late
        assert await told(one) == pytest.approx(wait if late != 40.0 else 60.0)


async def test_one_odd_load_of_several_is_not_believed_and_none_is_remembered_for_ever() -> None:
    clock = Clock()
    one = pool((), clock=clock)
    for seconds in (120.0, 7200.0, 130.0):
        await sleep_and_wake(one, clock, seconds)
    assert await told(one) == 130.0
    for _ in range(100):
        await sleep_and_wake(one, clock, 10.0)
    assert await told(one) == 10.0
    assert len(one.waking.took) <= 8


async def test_it_is_bounded() -> None:
    clock = Clock()
    one = pool((), clock=clock)
    await sleep_and_wake(one, clock, 86_400.0)
    assert await told(one) == LONGEST_S == 600.0


@pytest.mark.parametrize("spoil", ["tried", "ejected"])
async def test_a_model_with_a_worker_does_not_wake(spoil: str) -> None:
    """A request that has tried all workers, or one whose workers are ejected, learns nothing of a load."""
    clock = Clock()
    one = pool((), clock=clock)
    await sleep_and_wake(one, clock, 300.0)
    members = workers(1, failures=1)
    one.change(members)
    if spoil == "ejected":
        members[0].breaker.open_until = clock.now + 30
    with pytest.raises(GatewayError) as caught:
        await one.acquire(members if spoil == "tried" else ())
    assert caught.value.retry_after == 1.0
    assert one.waking.since is None


async def test_clients_that_wait_learn_it_too() -> None:
    """With `queue.cold_start_s`, the load is measured from the request that waits for it."""
    clock = Clock()
    one = pool((), clock=clock, cold_start_s=30)
    task = asyncio.create_task(one.acquire())
    await asyncio.sleep(0)
    clock.now += 20.0
    one.change(workers(1))
    one.refit_waiting()
    await task
    assert list(one.waking.took) == [20.0]


@pytest.mark.parametrize("again", [lambda one: one.serve_waiting(), lambda one: one.refit_waiting()])
async def test_a_worker_is_noticed_however_it_came(again: Callable[[Pool], None]) -> None:
    clock = Clock()
    one = pool((), clock=clock)
    await told(one)
    clock.now += 5.0
    one.change(workers(1))
    again(one)
    assert (list(one.waking.took), one.waking.since) == ([5.0], None)
