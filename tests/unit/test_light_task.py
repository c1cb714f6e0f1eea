"""A light task does what a task does: each case runs as both."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gateway.light_task import AnyTask, LightTask, LoopRound, OneTimeEvent, Promise, become_task, current_task

Start = Callable[[Coroutine[Any, Any, None]], Any]


def driven(coroutine: Coroutine[Any, Any, None], on_done: Callable[[Any], object] = lambda _: None) -> LightTask:
    return LightTask(coroutine, LoopRound.for_loop(asyncio.get_running_loop()), on_done)


@pytest.fixture(params=["light", "task"])
def start(request: pytest.FixtureRequest) -> Start:
    def light(coroutine: Coroutine[Any, Any, None]) -> Any:
        return driven(coroutine)

    return light if request.param == "light" else lambda coroutine: asyncio.get_running_loop().create_task(coroutine)


async def rounds(number: int = 5) -> None:
    """Lets the loop go round."""
    for _ in range(number):
        await asyncio.sleep(0)


async def test_runs_in_the_next_round_of_the_loop(start: Start) -> None:
    seen = []

    async def work() -> None:
        seen.append("begun")
        await asyncio.sleep(0)
        seen.append("ended")

    start(work())
    assert not seen
    await rounds()
    assert seen == ["begun", "ended"]


async def test_a_signal_ends_a_wait_before_and_after_it_began(start: Start) -> None:
    early, late, seen = OneTimeEvent(), OneTimeEvent(), []

    async def work() -> None:
        await early
        seen.append("early")
        await late
        seen.append("late")

    early.set()
    start(work())
    await rounds()
    assert seen == ["early"]
    late.set()
    late.set()
    assert seen == ["early"]  # whoever sets it is not called back
    await rounds()
    assert seen == ["early", "late"]


async def test_futures_bring_results_and_errors(start: Start) -> None:
    good: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    bad: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    seen: list[object] = []

    async def work() -> None:
        seen.append(await good)
        try:
            await bad
        except ValueError as error:
            seen.append(str(error))

    start(work())
    await rounds()
    good.set_result(7)
    await rounds()
    bad.set_exception(ValueError("no"))
    await rounds()
    assert seen == [7, "no"]


async def test_answers_bring_values_and_errors(start: Start) -> None:
    early: Promise[int] = Promise()
    late: Promise[int] = Promise()
    bad: Promise[int] = Promise()
    seen: list[object] = []

    async def work() -> None:
        seen.append(await early)
        seen.append(await late)
        try:
            await bad
        except ValueError as error:
            seen.append(str(error))

    early.bring(1)
    start(work())
    await rounds()
    assert (seen, late.done) == ([1], False)
    late.bring(2)
    await rounds()
    bad.fail(ValueError("no"))
    await rounds()
    assert seen == [1, 2, "no"]
    assert (late.value, bad.value) == (2, None)


async def test_an_answer_knows_that_nobody_waits_for_it_any_more(start: Start) -> None:
    answer: Promise[int] = Promise()

    async def work() -> None:
        await answer

    one = start(work())
    await rounds()
    one.cancel()
    await rounds()
    assert (answer.left, answer.done, answer.happened) == (True, True, False)


async def test_an_answer_resumes_a_light_task_in_the_same_turn_of_the_loop() -> None:
    loop = asyncio.get_running_loop()
    seen: list[object] = []
    answer: Promise[int] = Promise()

    async def work() -> None:
        seen.append(await answer)

    driven(work())
    await rounds()
    answer.bring(1)  # as a socket's callback does; the round is the next callback
    loop.call_soon(seen.append, "the turn is over")
    await rounds()
    assert seen == [1, "the turn is over"]


@pytest.mark.parametrize("waits_for", ["signal", "future", "event", "nothing yet", "task's timeout"])
async def test_a_cancellation_is_raised_where_it_waits(start: Start, waits_for: str) -> None:
    signal, seen = OneTimeEvent(), []
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        seen.append("begun")
        try:
            if waits_for == "signal":
                await signal
            elif waits_for == "future":
                await future
            elif waits_for == "event":
                await asyncio.Event().wait()
            else:
                await become_task()
                async with asyncio.timeout(60):
                    await future
        except asyncio.CancelledError:
            seen.append("cancelled")
            here = current_task()
            assert here is not None
            here.uncancel()
        await asyncio.sleep(0)
        seen.append("ended")

    one = start(work())
    if waits_for != "nothing yet":
        await rounds()
    assert one.cancel()
    assert "cancelled" not in seen  # not in the call stack of whoever cancels
    signal.set()  # too late
    await rounds()
    assert seen == ([] if waits_for == "nothing yet" else ["begun", "cancelled", "ended"])
    assert future.cancelled() == (waits_for in ("future", "task's timeout"))


async def test_a_coroutine_that_cancels_itself_learns_of_it_at_its_next_wait(start: Start) -> None:
    seen = []

    async def work() -> None:
        here = current_task()
        assert here is not None
        here.cancel()
        seen.append("runs on")
        await OneTimeEvent()
        seen.append("never")

    start(work())
    await rounds()
    assert seen == ["runs on"]


async def test_a_signal_that_comes_after_the_wait_was_cancelled_resumes_nothing(start: Start) -> None:
    first, second, seen = OneTimeEvent(), OneTimeEvent(), []

    async def work() -> None:
        try:
            await first
        except asyncio.CancelledError:
            await second
            seen.append("second")

    one = start(work())
    await rounds()
    one.cancel()
    await rounds()
    first.set()
    await rounds()
    assert not seen
    second.set()
    await rounds()
    assert seen == ["second"]


async def test_a_timeout_works_in_what_goes_on_as_a_task(start: Start) -> None:
    seen: list[object] = []

    async def work() -> None:
        await become_task()
        await become_task()
        seen.append(current_task() is asyncio.current_task())
        try:
            async with asyncio.timeout(0):
                await OneTimeEvent()
        except TimeoutError:
            seen.append("late")

    one = start(work())
    while "late" not in seen:
        await rounds()
    assert seen == [True, "late"]
    del one


async def test_an_error_that_nobody_caught_is_reported(start: Start) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    async def work(late: bool) -> None:
        if late:
            await become_task()
        raise LookupError

    for late in (False, True):
        ended: list[Any] = []
        driven(work(late), ended.append)
        await rounds()
        assert len(ended) == 1
    assert [type(one["exception"]) for one in told] == [LookupError, LookupError]


async def test_whoever_has_ended_is_told_of_once(start: Start) -> None:
    ended: list[Any] = []

    async def nothing() -> None:
        pass

    one = driven(nothing(), ended.append)
    await rounds()
    assert ended == [one]


async def test_loops_of_other_threads_do_not_see_what_is_driven_here() -> None:
    seen: list[AnyTask | None] = []

    async def work() -> None:
        other = threading.Thread(target=lambda: asyncio.run(look()))
        other.start()
        other.join()

    async def look() -> None:
        here = current_task()
        seen.append(here if here is not asyncio.current_task() else None)

    driven(work())
    await rounds()
    assert seen == [None]


# -- rounds -----------------------------------------------------------------------------------------------------------


class Ends:
    """A connection that notes what it is asked to do. in_turn: what it does when it takes in what came."""

    def __init__(self, seen: list[str], in_turn: Callable[[], object] = lambda: None) -> None:
        self.seen = seen
        self.in_turn = in_turn

    def take_in(self) -> None:
        self.seen.append("read")
        self.in_turn()

    def flush(self) -> None:
        self.seen.append("written")


async def test_a_round_reads_all_then_works_then_writes_all() -> None:
    seen: list[str] = []
    work, answered = LoopRound.for_loop(asyncio.get_running_loop()), OneTimeEvent()
    first, second = Ends(seen), Ends(seen, answered.set)

    async def request() -> None:
        await answered
        assert work.in_round
        seen.append("worked")
        work.send(first)

    driven(request())
    await rounds()
    work.send(second)
    work.arrived(first)
    work.arrived(second)
    assert not work.in_round
    await rounds(2)
    assert seen == ["read", "read", "worked", "written", "written"]
    assert not work.in_round


async def test_one_that_fails_stops_no_other() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    seen: list[str] = []
    work = LoopRound.for_loop(asyncio.get_running_loop())

    def fail() -> None:
        raise LookupError

    for one in (Ends(seen, fail), Ends(seen)):
        work.arrived(one)
        work.send(one)
    await rounds()
    assert seen == ["read", "read", "written", "written"]
    assert len(told) == 1


async def test_a_loop_that_is_gone_leaves_no_work_behind() -> None:
    def serve() -> weakref.ref[LoopRound]:
        async def ask() -> weakref.ref[LoopRound]:
            return weakref.ref(LoopRound.for_loop(asyncio.get_running_loop()))

        return asyncio.run(ask())

    found = await asyncio.to_thread(serve)
    gc.collect()
    assert found() is None
