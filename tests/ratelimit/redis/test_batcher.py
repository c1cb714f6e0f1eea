"""When calls leave, what they carry, and how long anybody waits: with a link that answers when told, and a clock that
stands still."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from socket import gaierror
from typing import Any

import pytest
from msgspec import msgpack

from gateway.config import Limit
from gateway.light_task import LightTask, LoopRound, Promise
from gateway.ratelimit.model import ADMITTED, LATE, Plan, Settlement, Subject, Verdict
from gateway.ratelimit.plan import Layout, Plans
from gateway.ratelimit.redis import batcher as module
from gateway.ratelimit.redis.batcher import Batcher, Replica
from gateway.ratelimit.redis.codec import ADMIT, BEAT, PROBE, SETTLE, Result
from gateway.ratelimit.redis.link import Link, OnAnswer
from gateway.ratelimit.redis.reasons import Unsent, describe
from gateway.ratelimit.redis.timing import Timing
from gateway.ratelimit.store import StoreDown
from gateway.ratelimit.window import Counted
from gateway.redis import Refused

PLAN: Plan = Plans([Limit(name="slots", kind="concurrency", limit=1)], Layout()).of(Subject("ann"))
ME = Replica(b"beats", "me", 17_500_000, 30_000_000)
GRANTED = Verdict(ADMITTED, 0, [Counted(0, 0, 0)])
TOO_LATE = Verdict(LATE, 0, [])
RELEASE = [Settlement(0, 0, 0)]


class Held(Link):
    """A link whose calls wait to be answered."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[int, str]]] = []  # (code, lease) of each operation of each call
        self.deadlines: list[int] = []  # of the calls, in microseconds of the server's clock
        self.dropped = 0
        self.waiting: list[tuple[list[tuple[int, str]], OnAnswer]] = []

    def call(self, keys: Sequence[bytes], payload: bytes, answered: OnAnswer) -> None:
        deadline, *_, found = msgpack.decode(payload)
        ops = [(op[0], op[1]) for op in found]
        self.calls.append(ops)
        self.deadlines.append(deadline)
        self.waiting.append((ops, answered))

    def answer(self, now: int = 10**15, verdict: Verdict = GRANTED) -> None:
        """Grants all of the oldest call under way. now: microseconds of the server's clock."""
        assert self.waiting, "no call is under way"
        ops, heard = self.waiting.pop(0)
        answers = {ADMIT: verdict, BEAT: 1, PROBE: 1}
        heard(msgpack.encode([now, *(answers[code] for code, _ in ops if code in answers)]))

    def fail(self, answer: bytes | Exception) -> None:
        """Answers the oldest call under way with what is no verdict."""
        _, heard = self.waiting.pop(0)
        heard(answer)

    def drop(self) -> None:
        self.dropped += 1
        self.waiting.clear()


class Clock:
    """The running loop, with a time that is set and timers that are run by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        real = asyncio.get_running_loop()
        self.call_soon = real.call_soon
        self.create_future = real.create_future
        self.create_task = real.create_task

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., None], *words: Any) -> Any:
        due = (self.now + delay, partial(callback, *words))
        self.timers.append(due)
        return _Timer(self.timers, due)

    def run_until(self, moment: float) -> None:
        """Runs what is due up to `moment`, 100 being the beginning."""
        while due := sorted((timer for timer in self.timers if timer[0] <= moment + 1e-9), key=lambda timer: timer[0]):
            self.timers.remove(due[0])
            self.now = due[0][0]
            due[0][1]()
        self.now = moment


class _Timer:
    def __init__(self, timers: list[Any], due: Any) -> None:
        self._timers = timers
        self._due = due

    def cancel(self) -> None:
        if self._due in self._timers:
            self._timers.remove(self._due)


class Bench:
    """A started lane with a timeout of 50 ms."""

    def __init__(self) -> None:
        self.link = Held()
        self.batcher = Batcher(self.link, ME, 0.05, lambda: None)
        self.clock: Any = Clock()

    async def start(self) -> Bench:
        starting = asyncio.create_task(self.batcher.start())
        for _ in range(2):  # one that connects, one that measures the way
            await turns()
            self.link.answer()
        await starting
        self.link.calls.clear()
        self.batcher._loop = self.clock
        self.batcher._timing = Timing(0.05)  # what was measured by the other clock counts no more
        return self

    def ask(self, lease: str) -> Promise[Result]:
        return self.batcher.ask(ADMIT, PLAN, (1,), lease)

    async def asked(self, lease: str = "a") -> Promise[Result]:
        """As `ask`; returns when whatever is to happen at once has happened."""
        waiting = self.ask(lease)
        await turns()
        return waiting

    async def granted(self, lease: str, took: float = 0.0) -> None:
        """Asks, and is answered after `took` seconds. The call holds nothing else, and is forgotten."""
        waiting = await self.asked(lease)
        assert self.link.calls.pop() == [(ADMIT, lease)]
        self.clock.run_until(self.clock.now + took)
        self.link.answer()
        assert await waiting == GRANTED

    def settle(self, lease: str, needed: bool = True) -> None:
        self.batcher.post(SETTLE, PLAN, RELEASE, lease, needed)


async def awaiting(answer: Promise[Result]) -> Result:
    return await answer


async def turns() -> None:
    """Enough of them for whatever is to happen at once."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def bench() -> Bench:
    return await Bench().start()


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
    assert bench.clock.timers == []
    after = await bench.asked("after")
    assert bench.link.calls[1:] == [[(SETTLE, "a"), (ADMIT, "after")]]
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
    bench.batcher._timing.took(10, 100)  # else they are given up before there are so many
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


async def test_nobody_waits_longer_than_a_call_may_take(bench: Bench) -> None:
    first = await bench.asked("first")
    bench.clock.run_until(100.03)
    second = await bench.asked("second")
    assert bench.link.calls[1:] == [[(ADMIT, "second")]], "it waits for no answer"
    bench.clock.run_until(100.049)
    assert not first.done
    bench.clock.run_until(100.052)
    with pytest.raises(StoreDown, match="no answer within 50 ms"):
        await first
    assert not second.done, "its own call is not late"
    bench.clock.run_until(100.06)
    bench.link.answer()
    bench.link.answer()
    assert await second == GRANTED
    # The server is slow and not gone: no call was lost, and what came too late is given back.
    assert (bench.batcher.up, bench.link.dropped) == (True, 0)
    await turns()
    assert bench.link.calls[2:] == [[(SETTLE, "first")]]


async def test_an_answer_that_stood_still_tells_no_clock(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may begin a call that nobody waits for any more, but for no longer than an answer is awaited."""
    monkeypatch.setattr(module, "monotonic", lambda: bench.clock.now)
    timing = bench.batcher._timing

    async def call(took: float, ahead: float, verdict: Verdict = GRANTED) -> float:
        """Seconds by which its deadline was later than an answer is awaited. ahead: of the server's clock."""
        within, sent = timing.seconds, bench.clock.now
        waiting = bench.ask("a")
        await turns()
        bench.clock.run_until(sent + took)
        bench.link.answer(round((bench.clock.now + ahead) * 1_000_000), verdict)
        await turns()
        if verdict is GRANTED:
            assert await waiting == GRANTED
        else:
            with pytest.raises(StoreDown):
                await waiting
        return round(float(bench.link.deadlines[-1] / 1_000_000 - sent - within), 3)

    await call(0.0, 0.0)
    assert await call(0.0, 0.0) == 0.0
    slow = timing.seconds * 0.9
    assert await call(slow, 0.0) == 0.0
    assert await call(0.0, 0.0) == 0.0, "the slow answer told nothing"
    assert await call(timing.seconds * 0.9, -5.0) == 0.0
    assert await call(0.0, 0.0) < -4.0, "the clock is behind what was known, so a slow answer tells that, too"
    slow = timing.seconds * 0.9
    assert await call(slow, 5.0, TOO_LATE) == 0.0
    assert await call(0.0, 5.0) == round(5.0 + slow, 3), "the clock has jumped, and the server has said so"


async def test_a_call_that_a_jump_of_the_clock_made_late_is_repeated_once(bench: Bench) -> None:
    waiting = await bench.asked("a")
    bench.link.answer(verdict=TOO_LATE)
    assert bench.link.calls == [[(ADMIT, "a")]] * 2
    bench.link.answer(verdict=TOO_LATE)
    with pytest.raises(StoreDown, match="clock jumps"):
        await waiting
    assert bench.link.calls == [[(ADMIT, "a")]] * 2


async def test_a_server_that_is_slow_is_waited_for(bench: Bench) -> None:
    """Twice the slowest round trip of late, so that a constant distance is never a failure."""
    for number, distance in enumerate((0.04, 0.07, 0.13, 0.25)):
        await bench.granted(f"l{number}", distance)
    for quiet in (4.9, 5.2, 5.2, 0.0):  # and once it is near again, no longer
        bench.clock.run_until(bench.clock.now + quiet)
        await bench.granted("near")
    assert bench.batcher._timing.seconds == 0.05
    assert bench.batcher.up


async def test_a_process_that_was_kept_from_reading_reads_before_it_gives_up(bench: Bench) -> None:
    waiting = await bench.asked("a")
    bench.clock.now = 100.3  # nothing ran in between: neither a timer nor the socket
    due = bench.clock.timers
    for timer in [timer for timer in due if timer[0] <= bench.clock.now]:
        due.remove(timer)
        timer[1]()
    assert not waiting.done
    bench.link.answer()  # the socket is read
    bench.clock.run_until(100.4)
    assert await waiting == GRANTED


async def test_a_server_that_says_nothing_is_given_up(bench: Bench) -> None:
    first = await bench.asked("first")
    bench.clock.run_until(100.01)
    bench.settle("before")
    bench.clock.run_until(100.02)
    second = await bench.asked("second")
    bench.clock.run_until(100.12)
    for waiting in (first, second):
        with pytest.raises(StoreDown, match="no answer within 50 ms"):
            await waiting
    assert (bench.batcher.up, bench.link.dropped) == (False, 1)
    assert bench.batcher.reason == "no answer within 50 ms"
    assert bench.clock.timers == []
    with pytest.raises(StoreDown):
        bench.ask("third")


async def test_a_probe_that_is_answered_without_a_verdict_has_failed() -> None:
    """It would else end the gateway's start, or all further probes."""
    link = Held()
    batcher = Batcher(link, ME, 0.05, lambda: None)
    starting = asyncio.create_task(batcher.start())
    await turns()
    link.fail(msgpack.encode([10**15]))
    await starting
    assert not batcher.up
    await batcher.close()


async def test_a_failed_call_of_a_crowd_holds_nobody(bench: Bench) -> None:
    waiting = [bench.ask("a"), bench.ask("b")]
    await turns()
    bench.link.fail(ConnectionResetError())
    for one in waiting:
        with pytest.raises(StoreDown, match="ConnectionError"):
            await one
    for lease in ("c", "d"):
        await bench.granted(lease)


@pytest.mark.parametrize("calls", ["xx", "oxoxx", "xoxoxx"])
async def test_two_failed_calls_in_a_row_open_the_breaker(bench: Bench, calls: str) -> None:
    """`o` is a call that is answered, `x` one that fails."""
    for number, call in enumerate(calls):
        assert bench.batcher.up
        if call == "o":
            await bench.granted(f"l{number}")
            continue
        waiting = await bench.asked(f"l{number}")
        bench.link.calls.clear()
        bench.link.fail(ConnectionResetError())
        with pytest.raises(StoreDown):
            await waiting
    assert not bench.batcher.up
    await bench.batcher.close()


@pytest.mark.parametrize("answer", [b"\xc1", msgpack.encode([10**15])])
async def test_an_answer_that_makes_no_sense_is_a_failure(bench: Bench, answer: bytes) -> None:
    waiting = await bench.asked("a")
    bench.link.fail(answer)
    with pytest.raises(StoreDown):
        await waiting
    assert bench.batcher.up


def instead_of(met: OSError) -> Unsent:
    """As redis-py puts its own error in place of the socket's, and a link tells it."""
    unsent, raised = Unsent(), ConnectionError("to 10.1.2.3:6379")
    raised.__context__, unsent.__cause__ = met, raised
    return unsent


def directly(met: OSError) -> Unsent:
    """As a connection of our own ends."""
    unsent = Unsent()
    unsent.__cause__ = met
    return unsent


def untrusted(why: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = why
    return error


def wrong_version() -> ssl.SSLError:
    """What a server without TLS leads to."""
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(b"-ERR unknown command\r\n")
    with pytest.raises(ssl.SSLError) as caught:
        context.wrap_bio(incoming, outgoing, server_hostname="x").do_handshake()
    return caught.value


def unsent(error: Exception) -> Unsent:
    """As a link tells of a connection that could not be made."""
    found = Unsent()
    found.__cause__ = error
    return found


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Refused("NOAUTH Authentication required."), "NOAUTH Authentication required."),
        (Refused("MOVED 3999 10.1.2.3:6381"), "MOVED"),
        (OSError("connect to 10.1.2.3:6379 failed"), "ConnectionError"),
        (directly(ConnectionRefusedError(111, "connect to 10.1.2.3:6379")), "ConnectionError (Connection refused)"),
        (directly(wrong_version()), "ConnectionError (wrong version number)"),
        (TimeoutError(), "no answer within 50 ms"),
        (unsent(TimeoutError()), "no connection in time"),
        (unsent(Refused("MOVED 3999 10.1.2.3:6381")), "MOVED"),
        (instead_of(ConnectionRefusedError(111, "connect to 10.1.2.3:6379")), "ConnectionError (Connection refused)"),
        (instead_of(gaierror(-2, "Name not known")), "ConnectionError (Name not known)"),
        (instead_of(untrusted("self-signed certificate")), "ConnectionError (self-signed certificate)"),
        (instead_of(untrusted("IP address mismatch, not for '10.1.2.3'")), "ConnectionError (IP address mismatch)"),
        (instead_of(wrong_version()), "ConnectionError (wrong version number)"),
        (instead_of(OSError("Multiple exceptions: 10.1.2.3:6379")), "ConnectionError"),
    ],
)
def test_a_reason_holds_no_address(error: Exception, text: str) -> None:
    assert describe(error, 0.05) == text
