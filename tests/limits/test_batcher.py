"""When calls leave, what they carry, and how long anybody waits: with a link that answers when told, and a clock that
stands still."""

from __future__ import annotations

import asyncio
import ssl
from asyncio import Future
from collections.abc import Callable, Sequence
from socket import gaierror
from typing import Any

import pytest
from msgspec import msgpack

from gateway.limits import batcher as module
from gateway.limits.batch import ADMIT, BEAT, SETTLE
from gateway.limits.batcher import Batcher, Heard, Refused, Unsent, describe
from gateway.limits.model import Plan, Rule, Subject, Verdict
from gateway.limits.plan import Layout, Plans
from gateway.limits.store import StoreDown

PLAN: Plan = Plans([Rule(name="slots", kind="concurrency", limit=1)], Layout()).of(Subject("ann"))
GRANTED = [-1, 0, 0, 0, 0]
RELEASE = [(0, 0, 0)]


class Held:
    """A link whose calls wait to be answered."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[int, str]]] = []  # (code, lease) of each operation of each call
        self.dropped = 0
        self._ops: list[tuple[int, str]] = []
        self._heard: Heard | None = None

    def call(self, keys: Sequence[bytes], payload: bytes, heard: Heard) -> None:
        assert self._heard is None, "two calls at once"
        self._ops = [(op[0], op[1]) for op in msgpack.decode(payload)[4]]
        self.calls.append(self._ops)
        self._heard = heard

    def answer(self) -> None:
        """Grants all of the call under way."""
        assert self._heard is not None, "no call is under way"
        heard, self._heard = self._heard, None
        answers = {ADMIT: GRANTED, BEAT: [1]}
        heard(msgpack.encode([10**15, *(answers[code] for code, _ in self._ops if code in answers)]))

    def drop(self) -> None:
        self.dropped += 1
        self._heard = None


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

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        due = (self.now + delay, callback)
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
        self.batcher = Batcher(self.link, b"beats", "me", 0.05, 17.5, lambda: None)
        self.clock: Any = Clock()

    async def start(self) -> Bench:
        starting = asyncio.create_task(self.batcher.start())
        await turns()
        self.link.answer()
        await starting
        self.link.calls.clear()
        self.batcher._loop = self.clock
        return self

    def ask(self, lease: str) -> Future[Verdict]:
        return self.batcher.ask(ADMIT, PLAN, (1,), lease)

    def tell(self, lease: str) -> None:
        self.batcher.tell(SETTLE, PLAN, RELEASE, lease)


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
        waiting = bench.ask(f"l{number}")
        await turns()
        assert bench.link.calls.pop() == [(ADMIT, f"l{number}")]
        bench.link.answer()
        assert await waiting == GRANTED
        bench.tell(f"l{number}")
        await turns()
        assert bench.link.calls.pop() == [(SETTLE, f"l{number}")]
        bench.link.answer()
    assert bench.clock.now == 100


async def test_a_settlement_under_way_holds_nobody_for_longer_than_its_call(bench: Bench) -> None:
    bench.tell("old")
    await turns()
    waiting = bench.ask("new")
    await turns()
    assert bench.link.calls == [[(SETTLE, "old")]]
    bench.link.answer()
    assert bench.link.calls[1] == [(ADMIT, "new")]
    bench.link.answer()
    assert await waiting == GRANTED


async def test_in_a_crowd_the_next_call_waits_for_company(bench: Bench) -> None:
    await crowd(bench)
    waiting = []
    for lease in "cde":
        bench.tell(lease.upper())
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
        waiting = bench.ask(lease)
        await turns()
        assert bench.link.calls.pop() == [(ADMIT, lease)]
        bench.link.answer()
        assert await waiting == GRANTED


async def test_a_slow_server_is_pause_enough(bench: Bench) -> None:
    waiting = [bench.ask("a"), bench.ask("b")]
    await turns()
    waiting.append(bench.ask("c"))
    bench.clock.run_until(100 + module.PACE * 3)
    assert len(bench.link.calls) == 1
    bench.link.answer()
    assert bench.link.calls[1:] == [[(ADMIT, "c")]]
    bench.link.answer()
    assert [await one for one in waiting] == [GRANTED] * 3


async def test_flushing_waits_for_no_pause(bench: Bench) -> None:
    await crowd(bench)
    bench.tell("a")
    waiting = [bench.ask("c"), bench.ask("d")]
    flushing = asyncio.create_task(bench.batcher.flush())
    await turns()
    assert bench.link.calls == [[(SETTLE, "a"), (ADMIT, "c"), (ADMIT, "d")]]
    bench.tell("b")
    bench.link.answer()
    assert not flushing.done()
    assert bench.link.calls[1:] == [[(SETTLE, "b")]]  # at once, though the call before was crowded
    bench.link.answer()
    await flushing
    assert [await one for one in waiting] == [GRANTED] * 2
    await bench.batcher.flush()  # at rest it returns at once


async def test_closing_waits_for_no_pause(bench: Bench) -> None:
    await crowd(bench)
    bench.tell("a")
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
    left = bench.ask("c")
    left.cancel()
    await bench.batcher.flush()
    assert bench.link.calls == []


async def test_nobody_waits_longer_than_the_timeout_in_all(bench: Bench) -> None:
    first = bench.ask("first")
    await turns()
    bench.clock.run_until(100.03)
    second = bench.ask("second")
    bench.clock.run_until(100.04)
    bench.link.answer()
    assert await first == GRANTED
    assert bench.link.calls[1:] == [[(ADMIT, "second")]]
    bench.clock.run_until(100.079)
    assert not second.done()
    bench.clock.run_until(100.081)
    with pytest.raises(StoreDown, match="no answer within 50 ms"):
        await second
    # Its call has time until 100.09, and no failure is counted: the server is slow and not gone.
    assert (bench.batcher.up, bench.link.dropped) == (True, 0)
    bench.link.answer()
    assert bench.link.calls[2:] == [[(SETTLE, "second")]], "what came too late is given back"


async def test_a_call_that_nobody_answers_is_given_up(bench: Bench) -> None:
    first = bench.ask("first")
    await turns()
    bench.tell("before")
    second = bench.ask("second")
    bench.clock.run_until(100.049)
    assert not first.done()
    bench.clock.run_until(100.05)
    for waiting in (first, second):
        with pytest.raises(StoreDown, match="no answer within 50 ms"):
            await waiting
    assert (bench.batcher.up, bench.link.dropped) == (True, 1)
    assert bench.clock.timers == []
    third = bench.ask("third")
    await turns()
    assert bench.link.calls[1:] == [[(SETTLE, "before"), (ADMIT, "third")]], "what was never sent is kept"
    bench.link.answer()
    assert await third == GRANTED


async def test_a_failed_call_of_a_crowd_holds_nobody(bench: Bench) -> None:
    waiting = [bench.ask("a"), bench.ask("b")]
    await turns()
    heard, bench.link._heard = bench.link._heard, None
    assert heard is not None
    heard(ConnectionResetError())
    for one in waiting:
        with pytest.raises(StoreDown, match="ConnectionResetError"):
            await one
    for lease in ("c", "d"):
        after = bench.ask(lease)
        await turns()
        assert bench.link.calls.pop() == [(ADMIT, lease)]
        bench.link.answer()
        assert await after == GRANTED


@pytest.mark.parametrize("answer", [b"\xc1", msgpack.encode([10**15])])
async def test_an_answer_that_makes_no_sense_is_a_failure(bench: Bench, answer: bytes) -> None:
    waiting = bench.ask("a")
    await turns()
    heard, bench.link._heard = bench.link._heard, None
    assert heard is not None
    heard(answer)
    with pytest.raises(StoreDown):
        await waiting
    assert bench.batcher.up


def instead_of(met: OSError) -> Unsent:
    """As redis-py puts its own error in place of the socket's, and a link tells it."""
    unsent, raised = Unsent(), ConnectionError("to 10.1.2.3:6379")
    raised.__context__, unsent.__cause__ = met, raised
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


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Refused("NOAUTH Authentication required."), "NOAUTH Authentication required."),
        (Refused("MOVED 3999 10.1.2.3:6381"), "MOVED"),
        (OSError("connect to 10.1.2.3:6379 failed"), "OSError"),
        (TimeoutError(), "no answer within 50 ms"),
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
