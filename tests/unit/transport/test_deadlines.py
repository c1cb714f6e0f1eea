"""Time limits: the clock is the subject here, so these tests do let time pass."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request
from gateway.core.ports import Deadlines
from tests.support.harness import in_one_of
from tests.unit.transport.conftest import once

if TYPE_CHECKING:
    from tests.unit.transport.conftest import MakeClient, Peer, Serve

ASK = Request("GET", "/")
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"


async def test_connect(pooled: MakeClient) -> None:
    """A worker whose accept queue is full drops what knocks."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(3)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            client = pooled()
            with pytest.raises(GatewayError) as caught:
                await client.send(ASK, f"http://127.0.0.1:{port}", Deadlines(connect=0.1))
            assert (caught.value.kind, caught.value.retryable) == (Kind.TIMEOUT, True)
            assert client.open == 0
        finally:
            for filler in fillers:
                filler.close()


async def test_connect_includes_tls(serve: Serve, pooled: MakeClient) -> None:
    async def mute(peer: Peer) -> None:
        await peer.gone()

    worker, client = await serve(mute), pooled()
    with pytest.raises(GatewayError, match="did not accept a connection") as caught:
        await client.send(ASK, f"https://127.0.0.1:{worker.port}", Deadlines(connect=0.1))
    assert (caught.value.kind, caught.value.code) == (Kind.TIMEOUT, "connect_timeout")
    await worker.tasks[0]


@pytest.mark.parametrize("drip", [b"", b"HTTP/1.1 200 OK\r\n"])
async def test_first_byte(drip: bytes, serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(once(drip)), pooled()
    start = time.monotonic()
    with pytest.raises(GatewayError, match="did not begin to answer") as caught:
        await client.send(ASK, worker.address, Deadlines(first_byte=0.1))
    assert 0.09 < time.monotonic() - start < 10
    assert (caught.value.kind, caught.value.retryable) == (Kind.TIMEOUT, False)
    await worker.tasks[0]
    assert client.open == 0


async def test_idle_between_blocks(serve: Serve, pooled: MakeClient) -> None:
    async def slow(peer: Peer) -> None:
        await peer.request()
        peer.send(HEAD)
        for _ in range(4):
            await asyncio.sleep(0.1)
            peer.send(b"x")
        await peer.gone()

    worker, client = await serve(slow), pooled()

    async def all_that_was_sent() -> bool:
        exchange = await client.send(ASK, worker.address, Deadlines(first_byte=30, idle=0.25))
        start, body = time.monotonic(), b""
        with pytest.raises(GatewayError, match="fell silent") as caught:  # noqa: PT012
            while block := await exchange.read():
                start = time.monotonic()
                body += block
        assert 0.24 < time.monotonic() - start < 30
        assert caught.value.kind is Kind.TIMEOUT
        await worker.tasks[-1]
        return body == b"xxxx"  # 0.4 s in all, never 0.25 between two

    assert await in_one_of(5, all_that_was_sent)


async def test_idle_does_not_run_while_we_are_the_ones_who_pause(serve: Serve, pooled: MakeClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(HEAD)
        await told.wait()
        peer.send(b"123456789")
        sent.set()
        await peer.gone()

    told, sent = asyncio.Event(), asyncio.Event()
    worker, client = await serve(script), pooled()

    async def whole() -> bool:
        told.clear()
        sent.clear()
        exchange = await client.send(ASK, worker.address, Deadlines(idle=0.1))
        exchange.pause()
        await asyncio.sleep(0.35)
        told.set()
        await sent.wait()  # it is there when we read again: a moment's standstill is no silence
        exchange.resume()
        try:
            return await exchange.body(9) == b"123456789"
        except GatewayError:  # the machine stood still before the pause
            return False

    assert await in_one_of(3, whole)


async def test_silence_after_a_pause_is_silence_again(serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(once(HEAD)), pooled()

    async def silent_again() -> bool:
        exchange = await client.send(ASK, worker.address, Deadlines(idle=0.1))
        exchange.pause()
        await asyncio.sleep(0.15)
        exchange.resume()
        start = time.monotonic()
        with pytest.raises(GatewayError, match="fell silent"):
            await exchange.read()
        return 0.09 < time.monotonic() - start < 10  # or the machine stood still before the pause

    assert await in_one_of(3, silent_again)


async def test_later_deadlines_do_not_linger(serve: Serve, pooled: MakeClient) -> None:
    """A long limit that is overtaken by a short one, on one connection, and back."""

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(HEAD + b"123456789")
        await peer.request()
        await asyncio.sleep(0.2)
        peer.send(HEAD + b"123456789")
        await peer.request()
        await peer.gone()

    async def on_one_connection() -> bool:
        worker, client = await serve(script), pooled(idle_expiry=0.15)
        try:
            for limit in (0.1, 600):
                exchange = await client.send(ASK, worker.address, Deadlines(first_byte=limit, idle=limit))
                assert await exchange.body(9) == b"123456789"
        except GatewayError:
            return False  # the worker was later than the short limit
        with pytest.raises(GatewayError, match="did not begin"):
            await client.send(ASK, worker.address, Deadlines(first_byte=0.05))
        return len(worker.peers) == 1

    assert await in_one_of(5, on_one_connection)
