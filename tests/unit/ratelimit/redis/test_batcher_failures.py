"""Calls that are late, fail or are never answered, and the reasons that are logged."""

from __future__ import annotations

import asyncio
import ssl
from socket import gaierror

import pytest
from msgspec import msgpack

from gateway.light_task import Promise
from gateway.ratelimit.model import LATE, Verdict
from gateway.ratelimit.redis import batcher as module
from gateway.ratelimit.redis.batcher import Batcher
from gateway.ratelimit.redis.codec import ADMIT, LEASE, RENEW, SETTLE, Operation
from gateway.ratelimit.redis.reasons import Unsent, describe
from gateway.ratelimit.store import StoreDown
from gateway.redis import Refused
from tests.unit.ratelimit.redis.bench import GRANTED, ME, PLAN, Bench, Held, turns

TOO_LATE = Verdict(LATE, 0, [])


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
    timing = bench.batcher.deadlines

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
    assert bench.batcher.deadlines.seconds == 0.05
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
    batcher = Batcher(link, ME, 0.05, lambda: None, lambda plan, index: False)
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


async def test_slots_of_a_call_whose_answer_was_lost_are_released(bench: Bench) -> None:
    """Those of its requests, which are decided without it, and of its leases, which nobody uses. It may have run."""
    lease = Operation(LEASE, "", PLAN, ((2,), ["a.0", "a.1"]), Promise())
    waiting = bench.batcher.ask(ADMIT, PLAN, (1,), "a", lease)
    bench.batcher.post(RENEW, PLAN, (0,), "b")
    await turns()
    bench.link.fail(ConnectionResetError())
    with pytest.raises(StoreDown):
        await waiting
    assert len(bench.link.calls) == 1
    bench.clock.run_until(100.0 + module.COMPANY)  # no request need come
    assert bench.link.calls[1:] == [[(SETTLE, "a"), (SETTLE, ["a.0", "a.1"])]]


async def test_slots_of_a_call_that_did_not_run_are_not_released(bench: Bench) -> None:
    waiting = await bench.asked()
    bench.link.fail(Unsent())
    with pytest.raises(StoreDown):
        await waiting
    bench.clock.run_until(101.0)
    assert len(bench.link.calls) == 1


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
