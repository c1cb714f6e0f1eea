"""Waiting for a worker that has an adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import combinations

import pytest

from gateway.core.errors import Busy, Kind
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.adapters import AdapterPool
from gateway.fleet.pool import Pool
from gateway.fleet.waiting import Refusal
from gateway.fleet.worker import Worker
from tests.support.steps import peak, steps
from tests.unit.fleet.pools import Clock, kind_of, pool, waiting, workers


def adapter_of(one: Pool, having: Sequence[Worker], name: str = "lora") -> AdapterPool:
    adapter = AdapterPool(one, name)
    adapter.having = frozenset(having)
    return adapter


async def asking(
    one: Pool | AdapterPool, tenant: str = "", priority: int = 0, until: float | None = None
) -> asyncio.Task[Worker]:
    """A request that waits, or was answered at once."""
    task = asyncio.create_task(one.acquire((), priority, RoutingFacts(tenant=tenant, size=4096, until=until)))
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
    await adapter.acquire((), 0, RoutingFacts())
    flood = [await asking(adapter, "loud") for _ in range(3)]
    assert one.waiting == 2
    assert await one.acquire(routing=RoutingFacts(tenant="loud")) is second
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
    again = asyncio.create_task(one.acquire([second], 0, RoutingFacts(tenant="quiet")))
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
    # What is known of the speed outlasts a change of the workers, also while a retry waits, which has no speed.
    tasks.append(asyncio.create_task(adapter.acquire((second,), 0, RoutingFacts(size=4096))))
    await asyncio.sleep(0)
    one.refit_waiting()
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
    await adapter.acquire((), 0, RoutingFacts())
    older, newer = await asking(adapter), await asking(adapter)
    again = asyncio.create_task(adapter.acquire([second], 0, RoutingFacts()))  # it has tried the second one
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
    async def lines(kinds: int) -> tuple[int, int, int]:
        members = workers(12, max_in_flight=1)
        one = pool(members, max_waiting=1000, max_bytes=1 << 30)
        for _ in members:
            await one.acquire()
        sets = [chosen for size in (2, 3, 4) for chosen in combinations(members, size)][:kinds]
        tasks = [await asking(adapter_of(one, chosen)) for chosen in sets]
        for demanding in (adapter_of(one, sets[0]), one):  # what may be new of this state has been seen
            tasks.append(await asking(demanding))
        coming = [one.acquire((), 0, RoutingFacts()), adapter_of(one, sets[1]).acquire((), 0, RoutingFacts())]
        found = [steps(lambda coro=coro: coro.send(None), "line", "fleet") for coro in coming]  # type: ignore[misc]
        found.append(steps(lambda: one.release(members[0]), "line", "fleet"))
        for coro in coming:
            coro.close()
        await dropped(*tasks)
        return found[0], found[1], found[2]

    few, many, most = [await lines(kinds) for kinds in (4, 64, 256)]
    assert most[0] <= few[0] * 1.1
    assert most[1] <= few[1] * 1.1
    assert (most[2] - many[2]) / 192 < 1.5 * (many[2] - few[2]) / 60  # linear
    assert most[2] < 256 * 60


@pytest.mark.parametrize("way", ["acquire", "try_acquire", "borrow", "may_serve"])
async def test_a_request_for_an_adapter_takes_no_more_memory_in_a_large_fleet(way: str) -> None:
    """A set of all workers, made for each request, would."""

    async def of(count: int) -> int:
        members = workers(count)
        adapter = adapter_of(pool(members), members[:2])

        async def ask() -> Worker | bool | None:
            match way:
                case "try_acquire":
                    return adapter.try_acquire((), RoutingFacts())
                case "borrow":
                    return adapter.borrow(())
                case "may_serve":
                    return adapter.may_serve(())
                case _:
                    return await adapter.acquire((), 0, RoutingFacts())

        for _ in range(2):
            await ask()
        return peak(lambda: next(ask().__await__(), None))

    few, many = await of(8), await of(1000)
    assert many < few + 2_000


async def test_workers_without_an_adapter_are_the_same_object_until_they_change() -> None:
    members = workers(4)
    one = pool(members)
    adapter = adapter_of(one, members[:2])
    lacking, without = adapter._lacking, adapter._without  # as the pool calls them
    assert lacking() == set(members[2:])
    assert lacking() is lacking() is without(())
    assert without([members[0]]) == {members[0], *members[2:]}
    one.change(members[:3])
    assert lacking() == {members[2]}
    adapter.having = frozenset(members)
    assert lacking() == set()
