"""The scripted transport behaves as the real one does, and tells what was asked of it."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request
from gateway.core.ports import Deadlines, Transport
from tests.unit.transport.scripted import Answer, Scripted

ASK = Request("POST", "/v1", [], b"{}")
SOON = Deadlines()


class Sink:
    def __init__(self) -> None:
        self.got: list[bytes | GatewayError | None] = []

    def block(self, data: bytes) -> None:
        self.got.append(data)

    def finished(self, error: GatewayError | None) -> None:
        self.got.append(error)


async def test_answers_in_order() -> None:
    down = GatewayError(Kind.UPSTREAM, "down")
    worker = Scripted(Answer(blocks=(b"a", b"b")), down, lambda request, address: Answer(blocks=(address.encode(),)))
    transport: Transport = worker
    exchange = await transport.send(ASK, "http://one", SOON)
    assert (exchange.status, await exchange.body(10)) == (200, b"ab")
    with pytest.raises(GatewayError) as caught:
        await transport.send(ASK, "http://two", SOON)
    assert caught.value is down
    assert await (await transport.send(ASK, "http://three", SOON)).body(20) == b"http://three"
    assert [play.address for play in worker.plays] == ["http://one", "http://two", "http://three"]
    assert worker.requests == [ASK] * 3
    with pytest.raises(AssertionError, match="no answer is left"):
        await transport.send(ASK, "http://four", SOON)


async def test_otherwise() -> None:
    worker = Scripted(otherwise=Answer(status=204, headers=[(b"x", b"y")]))
    for _ in range(3):
        exchange = await worker.send(ASK, "", SOON)
        assert (exchange.status, exchange.headers, await exchange.read()) == (204, [(b"x", b"y")], b"")


async def test_a_body_that_breaks() -> None:
    worker = Scripted(Answer(blocks=(b"a",), error=GatewayError(Kind.TRUNCATED, "cut")))
    exchange = await worker.send(ASK, "", SOON)
    assert await exchange.read() == b"a"
    with pytest.raises(GatewayError, match="cut"):
        await exchange.read()


async def test_a_live_body_under_the_tests_control() -> None:
    worker, sink = Scripted(Answer(blocks=(b"a",), live=True)), Sink()
    exchange = await worker.send(ASK, "", SOON)
    play = await worker.sent(1)
    exchange.pipe(sink)
    play.push(b"b")
    exchange.pause()
    assert play.reading_paused
    play.push(b"c")
    play.end()
    assert sink.got == [b"a", b"b"]
    exchange.resume()
    assert sink.got == [b"a", b"b", b"c", None]
    exchange.close()
    assert not play.dropped


async def test_leaving_is_seen() -> None:
    worker = Scripted(Answer(live=True))
    exchange = await worker.send(ASK, "", SOON)
    exchange.close()
    await worker.plays[0].gone.wait()
    worker.plays[0].push(b"late")
    with pytest.raises(GatewayError, match="closed"):
        await exchange.read()


async def test_leaving_before_the_head_is_seen() -> None:
    worker = Scripted(Answer(after=asyncio.Event()))
    task = asyncio.ensure_future(worker.send(ASK, "", SOON))
    play = await worker.sent(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert play.dropped


async def test_the_head_waits_for_an_event() -> None:
    go = asyncio.Event()
    worker = Scripted(Answer(after=go))
    task = asyncio.ensure_future(worker.send(ASK, "", SOON))
    await worker.sent(1)
    assert not task.done()
    go.set()
    assert (await task).status == 200


async def test_close() -> None:
    worker = Scripted(Answer(live=True))
    exchange = await worker.send(ASK, "", SOON)
    await worker.close()
    for attempt in (exchange.read(), worker.send(ASK, "", SOON)):
        with pytest.raises(GatewayError) as caught:
            await attempt
        assert caught.value.kind is Kind.DRAINING
