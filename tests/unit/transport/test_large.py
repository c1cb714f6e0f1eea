"""Large reads of several workers share the time of a turn of the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from gateway.core.errors import Kind
from gateway.core.http import Request
from gateway.core.ports import Deadlines
from gateway.transport import large
from gateway.transport.connection import LATE_BYTES
from gateway.transport.large import BUDGET_S, LargeReads
from tests.support.harness import soon
from tests.unit.transport.test_flow import CHUNKED, Sink, Tap, chunk

if TYPE_CHECKING:
    from tests.unit.transport.conftest import MakeClient, Peer, Serve


ASK = Request("GET", "/")
SOON = Deadlines(connect=30, first_byte=30, idle=30)
SIZE = 10 * LATE_BYTES + 1


def allowed(reads: LargeReads) -> bool:
    return reads.allowed


class Reading:
    """A connection whose large read takes so long."""

    def __init__(self, reads: LargeReads, seconds: float, taken: list[Reading]) -> None:
        self.reads = reads
        self.seconds = seconds
        self.taken = taken

    def take_in(self) -> None:
        self.taken.append(self)
        self.reads.spend(self.seconds)


async def test_what_is_too_much_for_one_turn_waits_in_order() -> None:
    reads, taken = LargeReads(), list[Reading]()
    assert allowed(reads)
    reads.spend(BUDGET_S)
    assert not allowed(reads)
    waiting = [Reading(reads, seconds, taken) for seconds in (BUDGET_S / 4, BUDGET_S, BUDGET_S / 4, 1.0, 0.0)]
    for one in waiting:
        reads.wait(one)
    assert taken == []
    for served in (2, 4, 5):  # each turn ends with the one that is too much
        await asyncio.sleep(0)
        assert taken == waiting[:served]
    await asyncio.sleep(0)
    assert allowed(reads)


async def test_a_turn_that_is_not_used_up_lets_others_through_at_once() -> None:
    reads = LargeReads()
    for _ in range(3):
        reads.spend(BUDGET_S / 4)
        assert allowed(reads)
    reads.wait(Reading(reads, 0.0, []))
    assert not allowed(reads)  # nobody overtakes those that wait
    await asyncio.sleep(0)
    assert allowed(reads)


async def test_one_that_raises_holds_no_other_up() -> None:
    class Broken(Reading):
        def take_in(self) -> None:
            raise RuntimeError

    loop = asyncio.get_running_loop()
    told: list[dict[str, object]] = []
    loop.set_exception_handler(lambda loop, context: told.append(context))
    reads, taken = LargeReads(), list[Reading]()
    other = Reading(reads, 0.0, taken)
    reads.wait(Broken(reads, 0.0, taken))
    reads.wait(other)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert taken == [other]
    assert len(told) == 1


@pytest.fixture
def one_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every large read waits for its turn."""
    monkeypatch.setattr(large, "BUDGET_S", 0.0)


@pytest.mark.usefixtures("one_a_turn")
@pytest.mark.parametrize("framing", ["content-length", "chunked", "closed"])
async def test_replies_that_waited_are_whole(framing: str, serve: Serve, pooled: MakeClient) -> None:
    body = bytes(range(256)) * (SIZE // 256)
    answer = {
        "content-length": b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body),
        "chunked": CHUNKED + chunk(body) + b"0\r\n\r\n",
        "closed": b"HTTP/1.1 200 OK\r\n\r\n" + body,
    }[framing]

    async def say(peer: Peer) -> None:
        for _ in range(2):
            await peer.request()
            peer.send(answer)
            if framing == "closed":
                return
        await peer.gone()

    worker, client = await serve(say), pooled()

    async def ask() -> Sink:
        exchange = await client.send(ASK, worker.address, SOON)
        sink = Sink()
        exchange.pipe(sink)
        await asyncio.wait_for(sink.done.wait(), 30)
        return sink

    for _ in range(2):  # the second ones on the same connections
        for sink in await asyncio.gather(*(ask() for _ in range(6))):
            assert sink.body == body
            assert sink.ends == [None]
    assert client.idle == client.open


@pytest.mark.usefixtures("one_a_turn")
async def test_a_reply_that_breaks_off_while_it_waits(serve: Serve, pooled: MakeClient) -> None:
    async def say(peer: Peer) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (2 * SIZE, bytes(SIZE)))

    worker, client = await serve(say), pooled()
    exchange = await client.send(ASK, worker.address, SOON)
    sink = Sink()
    exchange.pipe(sink)
    await asyncio.wait_for(sink.done.wait(), 30)
    (error,) = sink.ends
    assert error is not None
    assert error.kind is Kind.TRUNCATED
    assert sink.body == bytes(SIZE)
    assert client.open == 0


@pytest.mark.usefixtures("one_a_turn")
async def test_a_client_that_leaves_or_pauses_while_its_read_waits(serve: Serve, pooled: MakeClient) -> None:
    tap, other = Tap(), Tap()
    worker, client = await serve(tap, other), pooled()
    leaving = await client.send(ASK, worker.address, SOON)
    pausing = await client.send(ASK, worker.address, SOON)
    gone = Sink(lambda data: leaving.close())
    kept = Sink()
    leaving.pipe(gone)
    pausing.pipe(kept)
    pausing.pause()
    for script in (tap, other):
        script.say(chunk(bytes(SIZE)) + b"0\r\n\r\n")
    await soon(lambda: client.open < 2)
    assert kept.blocks == []
    pausing.resume()
    await asyncio.wait_for(kept.done.wait(), 30)
    assert kept.body == bytes(SIZE)
    assert kept.ends == [None]
    tap.say(b"")
