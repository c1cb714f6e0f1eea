"""When calls leave, what they carry, and how long anybody waits: with a link that answers when told, and a clock that
stands still."""

from __future__ import annotations

import asyncio

import pytest

from gateway.light_task import LightTask, LoopRound, Promise
from gateway.ratelimit.model import Plan, Verdict
from gateway.ratelimit.redis import batcher as module
from gateway.ratelimit.redis.codec import ADMIT, BEAT, SETTLE, Result
from gateway.ratelimit.store import StoreDown
from tests.unit.ratelimit.redis.bench import GRANTED, Bench, turns


async def awaiting(answer: Promise[Result]) -> Result:
    return await answer


async def crowd(bench: Bench) -> None:
    """Two at once, answered: from here the next call is held."""
    waiting = [bench.ask("a"), bench.ask("b")]
    await turns()
    bench.link.answer()
    assert [await one for one in waiting] == [GRANTED, GRANTED]
    assert bench.link.calls == [[(ADMIT, "a"), (ADMIT, "b")]]
    bench.link.calls.clear()


async def test_who_asks_one_thing_after_the_other_is_never_held(bench: Bench) -> None:
    for number in range(5):
        await bench.granted(f"l{number}")
        bench.settle(f"l{number}")
        await turns()
        assert bench.link.calls.pop() == [(SETTLE, f"l{number}")]
        bench.link.answer()
    assert bench.clock.now == 100


async def test_what_the_requests_of_one_round_ask_for_and_settle_leaves_at_its_end(bench: Bench) -> None:
    granted = []

    async def ends() -> None:
        bench.settle("old")

    async def begins() -> None:
        granted.append(await bench.ask("new"))

    work = LoopRound.for_loop(asyncio.get_running_loop())
    for coroutine in (ends(), begins()):
        LightTask(coroutine, work, lambda _: None)
    await asyncio.sleep(0)
    assert bench.link.calls == [[(SETTLE, "old"), (ADMIT, "new")]], "in one call, in the same turn of the loop"
    bench.link.answer()
    await asyncio.sleep(0)
    assert granted == [GRANTED]


async def test_what_a_request_asks_for_that_is_alone_in_its_round_leaves_before_it_goes_on(bench: Bench) -> None:
    left: list[object] = []

    async def begins() -> None:
        answer = bench.ask("new")
        left.extend(bench.link.calls)  # and here it is written for its worker
        assert await answer == GRANTED
        left.append("answered")

    LightTask(begins(), LoopRound.for_loop(asyncio.get_running_loop()), lambda _: None)
    await asyncio.sleep(0)
    assert left == [[(ADMIT, "new")]]
    bench.link.answer()
    await asyncio.sleep(0)
    assert left[1:] == ["answered"]


async def test_a_settlement_that_nobody_needs_holds_up_no_request_before_it(bench: Bench) -> None:
    waiting = bench.ask("new")
    bench.settle("old", needed=False)
    await turns()
    assert bench.link.calls == [[(ADMIT, "new"), (SETTLE, "old")]]
    bench.link.answer()
    assert await waiting == GRANTED


async def test_a_settlement_that_nobody_needs_goes_with_the_next_request(bench: Bench) -> None:
    bench.settle("old", needed=False)
    await turns()
    assert bench.link.calls == []
    waiting = await bench.asked("new")
    assert bench.link.calls == [[(SETTLE, "old"), (ADMIT, "new")]]
    bench.settle("newer", needed=False)
    bench.link.answer()
    await turns()
    assert (await waiting, len(bench.link.calls)) == (GRANTED, 1), "nor does an answer send it"
    bench.settle("newest")
    await turns()
    assert bench.link.calls[1:] == [[(SETTLE, "newer"), (SETTLE, "newest")]]


async def test_a_settlement_that_nobody_needs_does_not_wait_for_ever(bench: Bench) -> None:
    bench.settle("a", needed=False)
    bench.clock.run_until(100.04)
    bench.settle("b", needed=False)
    await turns()
    assert bench.link.calls == []
    bench.clock.run_until(100 + module.COMPANY)
    await turns()
    assert bench.link.calls == [[(SETTLE, "a"), (SETTLE, "b")]]


async def test_a_pause_ends_without_a_call_where_nobody_needs_one(bench: Bench) -> None:
    await crowd(bench)
    bench.settle("a", needed=False)
    bench.clock.run_until(100 + module.PACE)
    assert bench.link.calls == []
    waiting = await bench.asked("c")  # and the pause is over
    assert bench.link.calls == [[(SETTLE, "a"), (ADMIT, "c")]]
    bench.link.answer()
    assert await waiting == GRANTED


async def test_draining_waits_for_no_company(bench: Bench) -> None:
    bench.settle("a", needed=False)
    draining = asyncio.create_task(bench.batcher.drain())
    await turns()
    bench.settle("b", needed=False)
    bench.link.answer()
    await turns()
    assert bench.link.calls == [[(SETTLE, "a")], [(SETTLE, "b")]]
    bench.link.answer()
    await draining


async def test_a_settlement_that_waits_for_company_outlives_a_failure(bench: Bench) -> None:
    first = await bench.asked("first")
    bench.settle("a", needed=False)
    bench.link.fail(ConnectionResetError())
    with pytest.raises(StoreDown):
        await first
    assert [due for due, _ in bench.clock.timers] == [100.0 + module.COMPANY]
    after = await bench.asked("after")
    assert bench.link.calls[1:] == [[(SETTLE, "first"), (SETTLE, "a"), (ADMIT, "after")]]
    bench.link.answer()
    assert await after == GRANTED


async def test_a_settlement_under_way_holds_nobody_for_longer_than_its_call(bench: Bench) -> None:
    bench.settle("old")
    await turns()
    waiting = await bench.asked("new")
    assert bench.link.calls == [[(SETTLE, "old")]]
    bench.link.answer()
    assert bench.link.calls[1] == [(ADMIT, "new")]
    bench.link.answer()
    assert await waiting == GRANTED


async def test_in_a_crowd_the_next_call_waits_for_company(bench: Bench) -> None:
    await crowd(bench)
    waiting = []
    for lease in "cde":
        bench.settle(lease.upper())
        waiting.append(bench.ask(lease))
        await turns()
    bench.clock.run_until(100 + module.PACE * 0.9)
    assert bench.link.calls == []
    bench.clock.run_until(100 + module.PACE)
    # What is given back comes before what is asked after it.
    c, d, e = ([(SETTLE, lease.upper()), (ADMIT, lease)] for lease in "cde")
    assert bench.link.calls == [[*c, *d, *e]]
    bench.link.answer()
    assert [await one for one in waiting] == [GRANTED] * 3


async def test_a_crowd_that_has_gone_holds_nobody(bench: Bench) -> None:
    await crowd(bench)
    bench.clock.run_until(100 + module.PACE)
    for lease in ("c", "d"):  # the first call after it, and the one after that
        await bench.granted(lease)


async def test_calls_overlap_while_the_server_is_far_away(bench: Bench) -> None:
    waiting = [bench.ask("a"), bench.ask("b")]
    await turns()
    for number in range(20):
        waiting.append(bench.ask(f"c{number}"))
        bench.clock.run_until(100 + module.PACE * (number + 1))
    await turns()
    assert bench.link.calls[1:] == [[(ADMIT, f"c{number}")] for number in range(20)], "one each PACE, none waits"
    for _ in range(21):
        bench.link.answer()
    assert [await one for one in waiting] == [GRANTED] * 22


async def test_so_many_calls_at_once_and_no_more(bench: Bench) -> None:
    bench.batcher.deadlines.took(10, 100)  # else they are given up before there are so many
    waiting = []
    for number in range(module.MOST_CALLS + 3):
        waiting.append(bench.ask(f"l{number}"))
        await turns()
        bench.clock.run_until(100 + module.PACE * (number + 1))
        await turns()
    assert len(bench.link.waiting) == module.MOST_CALLS
    bench.link.answer()
    await turns()
    bench.clock.run_until(bench.clock.now + module.PACE)
    await turns()
    assert bench.link.calls[module.MOST_CALLS :] == [[(ADMIT, f"l{module.MOST_CALLS + n}") for n in range(3)]]
    while bench.link.waiting:
        bench.link.answer()
    assert [await one for one in waiting] == [GRANTED] * len(waiting)


async def test_flushing_waits_for_no_pause(bench: Bench) -> None:
    await crowd(bench)
    bench.settle("a")
    waiting = [bench.ask("c"), bench.ask("d")]
    flushing = asyncio.create_task(bench.batcher.drain())
    await turns()
    assert bench.link.calls == [[(SETTLE, "a"), (ADMIT, "c"), (ADMIT, "d")]]
    bench.settle("b")
    bench.link.answer()
    assert not flushing.done()
    assert bench.link.calls[1:] == [[(SETTLE, "b")]]  # at once, though the call before was crowded
    bench.link.answer()
    await flushing
    assert [await one for one in waiting] == [GRANTED] * 2
    await bench.batcher.drain()  # at rest it returns at once


async def test_closing_waits_for_no_pause(bench: Bench) -> None:
    await crowd(bench)
    bench.settle("a")
    closing = asyncio.create_task(bench.batcher.close())
    await turns()
    assert bench.link.calls == [[(SETTLE, "a")]]
    bench.link.answer()
    await turns()
    assert bench.link.calls[1:] == [[(BEAT, "me")]]
    bench.link.answer()
    await closing
    assert bench.clock.timers == []


async def test_a_pause_with_nothing_to_send_is_just_over(bench: Bench) -> None:
    await crowd(bench)
    left = asyncio.create_task(awaiting(bench.ask("c")))
    await turns()
    left.cancel()
    await turns()
    await bench.batcher.drain()
    assert bench.link.calls == []


async def test_a_refused_request_asks_once_more_behind_what_made_room(bench: Bench) -> None:
    def make_room(plan: Plan, since: int) -> bool:
        if not bench.batcher._queue:  # no public way
            bench.settle("leased", needed=False)
        return True

    bench.batcher._make_room = make_room  # no public way
    waiting = [bench.ask("a"), bench.ask("b")]
    await turns()
    bench.link.answer(verdict=Verdict(0, 2_000, []))
    bench.clock.run_until(100.01)
    assert bench.link.calls[1:] == [[(SETTLE, "leased"), (ADMIT, "a"), (ADMIT, "b")]]
    assert not any(one.done for one in waiting)
    bench.link.answer(verdict=Verdict(0, 1_000, []))
    assert [await one for one in waiting] == [Verdict(0, 1_000, [])] * 2
    await turns()
    assert len(bench.link.calls) == 2
