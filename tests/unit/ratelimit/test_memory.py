"""Counters in one process: bounded memory, and what is forgotten first."""

from __future__ import annotations

import asyncio

import pytest

from gateway.config import Limit
from gateway.ratelimit import Subject, SubjectLimiter
from gateway.ratelimit.memory import MemoryStore
from gateway.ratelimit.model import ADMITTED, Settlement
from gateway.ratelimit.plan import Layout, Plans

SECOND = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 1000 * SECOND

    def __call__(self) -> int:
        return self.now * 1000


def plans(*rules: Limit) -> Plans:
    return Plans(rules, Layout())


@pytest.mark.long
def test_a_million_keys_stay_within_the_cap() -> None:
    store = MemoryStore(max_keys=1000, clock=Clock())
    known = plans(Limit(name="a", kind="requests", limit=5, scope=("address",)))
    for number in range(20_000):  # a million takes fifty times as long and shows no more
        plan = known.of(Subject(address=str(number)))
        assert store.admit(plan, plan.costs, "x").violated == ADMITTED
        assert len(store) <= 1000
    assert len(store) == 1000


@pytest.mark.long
def test_expired_counters_go_before_the_cap() -> None:
    clock = Clock()
    store = MemoryStore(max_keys=1000, clock=clock)
    known = plans(Limit(name="a", kind="requests", limit=5, per_s=1, scope=("address",)))
    for number in range(20_000):
        clock.now += 10_000
        plan = known.of(Subject(address=str(number)))
        store.admit(plan, plan.costs, "x")
    assert len(store) < 400  # what may still count, and the second of grace


def test_a_long_window_does_not_hold_up_short_ones() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    known = plans(
        Limit(name="day", kind="requests", limit=5, per_s=86_400, scope=("key",)),
        Limit(name="s", kind="requests", limit=5, per_s=1, scope=("address",)),
    )
    for number in range(2000):
        clock.now += 10_000
        plan = known.of(Subject(key="k", address=str(number)))
        store.admit(plan, plan.costs, "x")
    assert len(store) < 400


async def test_a_beat_sweeps_what_nobody_asks_for_any_more() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    known = plans(Limit(name="a", kind="requests", limit=5, per_s=1, scope=("address",)))
    for number in range(500):
        plan = known.of(Subject(address=str(number)))
        store.admit(plan, plan.costs, "x")
    clock.now += 10 * SECOND
    await store.beat()
    assert len(store) == 0


async def test_a_counter_that_owes_lives_until_it_has_paid_and_holds_up_no_other() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    known = plans(Limit(name="a", kind="tokens", limit=5, per_s=1, scope=("address",)))
    owing = known.of(Subject(address="owing"))
    entry = store.admit(owing, (5,), "x").counters[0].entry
    store.settle(owing, "x", [Settlement(0, entry, 5 * 100)])
    for number in range(500):
        store.admit(known.of(Subject(address=str(number))), (1,), "x")
    clock.now += 10 * SECOND
    await store.beat()
    assert len(store) == 1
    clock.now += 80 * SECOND
    assert store.admit(owing, (1,), "x").violated == 0
    clock.now += 20 * SECOND
    await store.beat()
    assert len(store) == 0


async def test_tokens_beyond_the_reservation_count_on_a_counter_that_is_gone() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    plan = plans(Limit(name="a", kind="tokens", limit=5, per_s=1)).of(Subject(key="k"))
    entry = store.admit(plan, (1,), "x").counters[0].entry
    clock.now += 10 * SECOND
    await store.beat()
    store.settle(plan, "x", [Settlement(0, entry, 2)])
    assert (await store.look(plan)).counters[0].entry == 2


def test_the_least_used_is_forgotten_first() -> None:
    store = MemoryStore(max_keys=64, clock=Clock())
    known = plans(Limit(name="a", kind="requests", limit=5, scope=("address",)))
    spent = known.of(Subject(address="spent"))
    for _ in range(5):
        store.admit(spent, spent.costs, "x")
    for number in range(5000):
        plan = known.of(Subject(address=str(number)))
        store.admit(plan, plan.costs, "x")
    assert store.admit(spent, spent.costs, "x").violated == 0


def test_what_is_in_flight_is_never_forgotten() -> None:
    store = MemoryStore(max_keys=64, clock=Clock())
    known = plans(Limit(name="a", kind="concurrency", limit=1, scope=("address",)))
    for number in range(300):
        plan = known.of(Subject(address=str(number)))
        assert store.admit(plan, plan.costs, "x").violated == ADMITTED
    for number in range(300):
        plan = known.of(Subject(address=str(number)))
        assert store.admit(plan, plan.costs, "y").violated == 0
        store.settle(plan, "x", [Settlement(0, 0, 0)])


@pytest.mark.long
async def test_the_limiter_remembers_a_bounded_number_of_subjects() -> None:
    limiter = SubjectLimiter([Limit(name="a", kind="requests", limit=1, scope=("address",))], MemoryStore(max_keys=100))
    for number in range(40_000):
        limiter.settle(await limiter.reserve(Subject(address=str(number))), None)
    assert len(limiter._plans._known) <= 16_384  # its memory is bounded
    await asyncio.sleep(0)


def test_a_request_on_many_new_counters_is_charged_on_all() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    known = plans(*(Limit(name=f"r{number}", kind="requests", limit=1, per_s=1) for number in range(8)))
    plan = known.of(Subject(key="k"))
    assert store.admit(plan, plan.costs, "x").violated == ADMITTED
    assert len(store) == 8
    assert store.admit(plan, plan.costs, "x").violated == 0


def test_a_counter_that_is_gone_gets_nothing_back() -> None:
    store = MemoryStore()
    plan = plans(Limit(name="a", kind="tokens", limit=5)).of(Subject(key="k"))
    store.settle(plan, "x", [Settlement(0, 0, -1)])
    assert len(store) == 0


async def test_what_was_taken_before_a_refusal_goes_back() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    plan = plans(
        Limit(name="requests", kind="requests", limit=10),
        Limit(name="tokens", kind="tokens", limit=100),
        Limit(name="slots", kind="concurrency", limit=2),
        Limit(name="day", kind="requests", limit=4, per_s=86_400),
    ).of(Subject(key="k"))
    for lease in ("a", "b"):
        clock.now += 1
        assert store.admit(plan, (1, 7, 1, 1), lease).violated == ADMITTED
    clock.now += 600_000  # another slice
    assert store.admit(plan, (1, 7, 1, 1), "c").violated == 2
    assert [one.entry for one in (await store.look(plan)).counters] == [2, 14, 2, 2]
    store.settle(plan, "a", [Settlement(2, 0, 0)])
    assert store.admit(plan, (1, 7, 1, 3), "d").violated == 3, "the slot that it took is free again"
    assert [one.entry for one in (await store.look(plan)).counters] == [2, 14, 1, 2]
    assert store.admit(plan, (1, 7, 1, 1), "e").violated == ADMITTED
