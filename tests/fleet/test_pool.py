"""Picking a worker, waiting for one, and giving it back whatever happens."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import pytest

from gateway.core.demand import Demand
from gateway.core.errors import Busy, GatewayError, Kind
from gateway.fleet.adapters import AdapterPool
from gateway.fleet.breaker import BreakerPolicy
from gateway.fleet.pick import LeastBusy, PickPolicy, RoundRobin
from gateway.fleet.pool import Pool
from gateway.fleet.waiting import QueuePolicy, Refusal
from gateway.fleet.worker import Worker

POLICIES: tuple[PickPolicy, ...] = (LeastBusy(), RoundRobin())
BROKEN = GatewayError(Kind.UPSTREAM, "broken")
REFUSED = GatewayError(Kind.BAD_REQUEST, "refused")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def workers(count: int, max_in_flight: int | None = None, failures: int = 2) -> list[Worker]:
    found = []
    for number in range(count):
        worker = Worker(f"http://w{number}", BreakerPolicy(failures, 10, 10), max_in_flight)
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
    return Pool(
        members,
        policy or LeastBusy(),
        QueuePolicy(max_waiting, timeout_s, max_bytes, cold_start_s),
        max_eject_share,
        clock=clock or Clock(),
        on_suspect=on_suspect,
        on_eject=on_eject,
        on_return=on_return,
        on_wait=on_wait,
        on_refuse=on_refuse,
    )


async def waiting(
    pool: Pool, exclude: Sequence[Worker] = (), priority: int = 0, demand: Demand | None = None
) -> asyncio.Task[Worker]:
    """A request that waits already."""
    before = pool.waiting
    task = asyncio.create_task(pool.acquire(exclude, priority, demand))
    await asyncio.sleep(0)
    assert pool.waiting == before + 1
    return task


async def kind_of(job: asyncio.Task[Worker]) -> Kind:
    with pytest.raises(GatewayError) as caught:
        await job
    return caught.value.kind


# -- picking --------------------------------------------------------------------------------------------------------


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


# -- waiting --------------------------------------------------------------------------------------------------------


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


def adapter_of(one: Pool, having: Sequence[Worker], name: str = "lora") -> AdapterPool:
    adapter = AdapterPool(one, name)
    adapter.having = frozenset(having)
    return adapter


async def asking(
    one: Pool | AdapterPool, tenant: str = "", priority: int = 0, until: float | None = None
) -> asyncio.Task[Worker]:
    """A request that waits, or was answered at once."""
    task = asyncio.create_task(one.acquire((), priority, Demand(tenant=tenant, size=4096, until=until)))
    await asyncio.sleep(0)
    return task


async def served(one: Pool, worker: Worker, tasks: dict[str, asyncio.Task[Worker]], count: int) -> list[str]:
    """The names of the next requests that `worker` takes, one after the other."""
    order = []
    for _ in range(count):
        one.release(worker)
        await asyncio.sleep(0)
        (name,) = [name for name, task in tasks.items() if task.done()]
        assert await tasks.pop(name) is worker
        order.append(name)
    return order


async def dropped(*tasks: asyncio.Task[Worker]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_requests_for_an_adapter_that_some_workers_lack_take_turns_with_all_others() -> None:
    first, _ = members = workers(2, max_in_flight=1)
    one = pool(members)
    adapter = adapter_of(one, [first])
    for _ in members:
        await one.acquire()
    tasks = {f"loud{number}": await asking(adapter, "loud") for number in range(20)}
    tasks["quiet lora"] = await asking(adapter, "quiet")
    tasks["other"] = await asking(one, "other")
    assert await served(one, first, tasks, 4) == ["loud0", "quiet lora", "other", "loud1"]
    # The same team asks for the model itself: it has one account.
    tasks |= {f"plain{number}": await asking(one, "quiet") for number in range(2)}
    assert await served(one, first, tasks, 4) == ["plain0", "loud2", "plain1", "loud3"]
    await dropped(*tasks.values())
    assert one.waiting == 0


async def test_priorities_hold_among_requests_for_adapters() -> None:
    first, second = members = workers(2, max_in_flight=1)
    one = pool(members)
    adapter = adapter_of(one, [first])
    for _ in members:
        await one.acquire()
    tasks = {f"plain {priority}": await asking(one, "a", priority) for priority in (0, 3)}
    tasks |= {f"lora {priority}": await asking(adapter, "a", priority) for priority in (-1, 1, 5)}
    assert await served(one, first, tasks, 2) == ["lora 5", "plain 3"]
    # The worker without the adapter passes over who waits for it, whatever its priority is.
    assert await served(one, second, tasks, 1) == ["plain 0"]
    assert await served(one, first, tasks, 2) == ["lora 1", "lora -1"]
    assert one.waiting == 0


async def test_a_full_queue_of_requests_for_an_adapter_keeps_nobody_from_a_free_worker() -> None:
    first, second = members = workers(2, max_in_flight=1)
    one = pool(members, max_waiting=2)
    adapter = adapter_of(one, [first])
    await adapter.acquire((), 0, Demand())
    flood = [await asking(adapter, "loud") for _ in range(3)]
    assert one.waiting == 2
    assert await one.acquire(demand=Demand(tenant="loud")) is second
    with pytest.raises(Busy, match="is full"):
        await flood[2]
    await dropped(*flood)


async def test_requests_for_an_adapter_have_the_bounds_of_the_queue() -> None:
    reasons: list[Refusal] = []
    first, second = members = workers(2, max_in_flight=1)
    one = pool(members, max_waiting=3, on_refuse=reasons.append)
    adapter = adapter_of(one, [first])
    for _ in members:
        await one.acquire()
    loud = [await asking(adapter, "loud") for _ in range(4)]
    with pytest.raises(Busy, match="the queue of this model is full"):
        await loud[3]
    # Another team has its part of the room, for the adapter or not.
    quiet = [await asking(one, "quiet")]
    with pytest.raises(Busy, match="had to make room"):
        await loud[2]
    other = await asking(adapter, "other")
    with pytest.raises(Busy, match="had to make room"):
        await loud[1]
    assert (one.waiting, reasons) == (3, ["full", "displaced", "displaced"])
    # A retry has waited already, takes no turn and displaces nobody.
    again = asyncio.create_task(one.acquire([second], 0, Demand(tenant="quiet")))
    await asyncio.sleep(0)
    assert one.waiting == 4
    tasks = {"loud": loud[0], "quiet": quiet[0], "other": other, "again": again}
    assert await served(one, first, tasks, 4) == ["again", "loud", "quiet", "other"]
    assert one.waiting == 0


async def test_the_wait_for_an_adapter_is_told_by_how_fast_it_is_served() -> None:
    """One worker has it and is slow; a backlog there is no reason to refuse what others could serve."""
    clock = Clock()
    first, second = members = workers(2, max_in_flight=1)
    one = pool(members, clock=clock)
    adapter = adapter_of(one, [first])
    for _ in members:
        await one.acquire()
    tasks = [await asking(adapter, "a") for _ in range(7)]
    for task in tasks[:3]:
        clock.now += 4.0
        one.release(first)
        assert await task is first
    with pytest.raises(Busy, match=r"would be about 1\d s") as caught:
        await (await asking(adapter, "a", until=clock.now + 12))
    assert caught.value.code == "wait_too_long"
    plain = await asking(one, "a", until=clock.now + 12)
    assert not plain.done()
    one.release(second)
    assert await plain is second
    await dropped(*tasks)


async def test_one_who_waits_for_an_adapter_is_not_handed_a_worker_that_joins_without_it() -> None:
    first, second, third = workers(3, max_in_flight=1)
    one = pool([first, second])
    adapter = adapter_of(one, [first])
    for _ in range(2):
        await one.acquire()
    lora, plain = await asking(adapter), await asking(one)
    one.change([first, second, third])
    one.refit_waiting()
    assert await plain is third
    assert not lora.done()
    one.release(first)
    assert await lora is first


async def test_one_who_waits_for_an_adapter_is_handed_a_worker_of_others_that_have_it() -> None:
    first, second = workers(2, max_in_flight=1)
    one = pool([first])
    adapter = adapter_of(one, [first])
    await one.acquire()
    lora = await asking(adapter)
    one.change([second])
    adapter.having = frozenset([second])
    one.refit_waiting()
    assert await lora is second


async def test_who_waited_under_an_older_configuration_is_served_first() -> None:
    (worker,) = members = workers(1, max_in_flight=1)
    oldest, older, now = pool(()), pool(()), pool(members)
    for one in (older, oldest):
        one.change(members, ahead=True)
    await now.acquire()
    tasks = [await waiting(one) for one in (now, older, oldest)]
    for task in reversed(tasks):
        now.release(worker)
        assert await task is worker
    for one in (oldest, older, now):
        one.close()
    assert worker.on_free == []


async def test_one_who_waits_for_an_adapter_is_handed_a_free_worker_that_loads_it() -> None:
    first, second = members = workers(2, max_in_flight=1)
    one = pool(members)
    adapter = adapter_of(one, [first])
    await adapter.acquire((), 0, Demand())
    older, newer = await asking(adapter), await asking(adapter)
    again = asyncio.create_task(adapter.acquire([second], 0, Demand()))  # it has tried the second one
    await asyncio.sleep(0)
    adapter.having = frozenset(members)
    one.refit_waiting()
    assert await older is second
    one.release(second)
    assert await newer is second
    one.release(second)
    assert not again.done()
    one.release(first)
    assert await again is first
    assert one.waiting == 0


async def test_one_who_waits_for_an_adapter_that_is_unloaded_hears_of_it() -> None:
    reasons: list[Refusal] = []
    first, second = members = workers(2, max_in_flight=1)
    one = pool(members, on_refuse=reasons.append)
    adapter = adapter_of(one, members)
    for _ in members:
        await one.acquire()
    lora, plain = await asking(adapter), await asking(one)
    adapter.having = frozenset([first])
    one.refit_waiting()
    one.release(second)
    assert await plain is second
    assert not lora.done()
    adapter.having = frozenset()
    one.refit_waiting()
    assert await kind_of(lora) is Kind.NO_WORKER
    assert (reasons, one.waiting) == (["no_worker"], 0)


async def test_an_arrival_takes_no_step_for_kinds_that_wait_and_a_freed_worker_few_for_each() -> None:
    async def steps(kinds: int) -> tuple[int, int, int]:
        members = workers(12, max_in_flight=1)
        one = pool(members, max_waiting=1000, max_bytes=1 << 30)
        for _ in members:
            await one.acquire()
        sets = [chosen for size in (2, 3, 4) for chosen in combinations(members, size)][:kinds]
        tasks = [await asking(adapter_of(one, chosen)) for chosen in sets]
        for demanding in (adapter_of(one, sets[0]), one):  # what may be new of this state has been seen
            tasks.append(await asking(demanding))
        coming = [one.acquire((), 0, Demand()), adapter_of(one, sets[1]).acquire((), 0, Demand())]
        found = [counted(lambda coro=coro: coro.send(None)) for coro in coming]  # type: ignore[misc]
        found.append(counted(lambda: one.release(members[0])))
        for coro in coming:
            coro.close()
        await dropped(*tasks)
        return found[0], found[1], found[2]

    few, many, most = [await steps(kinds) for kinds in (4, 64, 256)]
    assert most[0] <= few[0] * 1.1
    assert most[1] <= few[1] * 1.1
    assert (most[2] - many[2]) / 192 < 1.5 * (many[2] - few[2]) / 60  # linear
    assert most[2] < 256 * 60


def counted(call: Callable[[], object]) -> int:
    """Lines of the fleet's code that `call` runs."""
    count = 0

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal count
        if "fleet" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


async def test_what_is_remembered_of_kinds_is_bounded() -> None:
    members = workers(200, max_in_flight=1)
    one = pool(members)
    for _ in members:
        await one.acquire()
    for worker in members:
        await dropped(await asking(adapter_of(one, [worker])))
    assert len(one._waiting._speeds) <= 64


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
    flood = [await waiting(one, demand=Demand(tenant="loud")) for _ in range(3)]
    quiet = asyncio.create_task(one.acquire(demand=Demand(tenant="quiet")))
    with pytest.raises(Busy, match="had to make room") as caught:
        await flood[-1]
    assert (caught.value.code, reasons) == ("queue_full", ["displaced"])
    assert one.waiting == 3
    with pytest.raises(Busy, match="is full"):
        await one.acquire(demand=Demand(tenant="loud"))
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
    large = await waiting(one, demand=Demand(tenant="a", size=5000))
    with pytest.raises(Busy):
        await one.acquire(demand=Demand(tenant="a", size=1))
    large.cancel()
    await asyncio.gather(large, return_exceptions=True)
    few = [await waiting(one, demand=Demand(tenant="a", size=300)) for _ in range(3)]
    with pytest.raises(Busy):
        await one.acquire(demand=Demand(tenant="a", size=300))
    for task in few:
        task.cancel()
    await asyncio.gather(*few, return_exceptions=True)


async def test_a_wait_longer_than_the_clients_own_is_refused_at_once() -> None:
    clock, reasons = Clock(), list[Refusal]()
    one = pool(workers(1, max_in_flight=1), clock=clock, on_refuse=reasons.append, timeout_s=20)
    worker = await one.acquire()
    tasks = [await waiting(one, demand=Demand(tenant="a", size=4096)) for _ in range(12)]
    for task in tasks[:4]:  # each takes its worker for two seconds
        clock.now += 2.0
        one.release(worker)
        assert await task is worker
    patient = await waiting(one, demand=Demand(tenant="a", size=4096, until=clock.now + 16.5))
    with pytest.raises(Busy, match="would be about 17 s") as caught:
        await one.acquire(demand=Demand(tenant="a", size=4096, until=clock.now + 16.5))
    assert caught.value.code == "wait_too_long"
    assert caught.value.retry_after == pytest.approx(17.4, rel=0.01)
    assert reasons == ["slow"]
    # Another team's request has only its own turn to wait for.
    other = await waiting(one, demand=Demand(tenant="b", size=4096, until=clock.now + 16.5))
    # Without a deadline, the queue's own age counts.
    last = await waiting(one, demand=Demand(tenant="a", size=4096))
    with pytest.raises(Busy, match=r"would be about 2\d s"):
        await one.acquire(demand=Demand(tenant="a", size=4096))
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
    assert one.awaited
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


# -- learning -------------------------------------------------------------------------------------------------------


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


FULL = GatewayError(Kind.OVERLOADED, "full", upstream=503, retry_after=2.0)


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
        worker.breaker.policy = BreakerPolicy(1, 0.05, 0)
    one = pool(members, clock=time.monotonic)
    one.failed(a, a.generation, BROKEN)
    assert await one.acquire() is b
    task = await waiting(one)
    async with asyncio.timeout(30):
        assert await task is a


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


async def test_a_question_waits_for_nobody_and_takes_nobodys_place() -> None:
    members = workers(2, max_in_flight=1)
    made = pool(members)
    held = [await made.acquire(), await made.acquire()]
    lent = [made.lend() for _ in range(24)]
    assert {worker.address for worker in lent} == {worker.address for worker in members}
    assert [worker.in_flight for worker in members] == [1, 1]
    assert made.lend([members[0]]) is members[1]
    with pytest.raises(GatewayError, match="no worker of this model"):
        made.lend(members)
    for worker in held:
        made.release(worker)
