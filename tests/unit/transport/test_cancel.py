"""Whoever leaves takes the connection along; nothing else may go with it."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import TYPE_CHECKING

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request
from gateway.core.ports import Deadlines
from gateway.transport.connection import WorkerConnection
from tests.support.harness import soon
from tests.unit.transport.conftest import REPLY, once, polite

if TYPE_CHECKING:
    from tests.unit.transport.conftest import MakeClient, Peer, Serve


ASK = Request("POST", "/v1", [], b"{}")
SOON = Deadlines(connect=30, first_byte=30, idle=30)


async def cancel(task: asyncio.Task[object]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_before_the_head(serve: Serve, pooled: MakeClient) -> None:
    asked = asyncio.Event()
    worker, client = await serve(once(b"", asked)), pooled()
    task = asyncio.ensure_future(client.send(ASK, worker.address, SOON))
    await asked.wait()
    await cancel(task)
    await worker.left(0)
    assert client.open == 0


async def test_with_the_head_at_hand(serve: Serve, pooled: MakeClient) -> None:
    """The answer has come and is not fetched yet: it is whole, so its connection lives on."""

    worker, client = await serve(polite), pooled()
    await client.send(ASK, worker.address, SOON)
    (connection,) = client.origins[worker.address].connections
    task = asyncio.ensure_future(client.send(ASK, worker.address, SOON))
    while connection.exchange is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    exchange = connection.exchange
    while not exchange.status:  # noqa: ASYNC110 - this task runs before the one that waits, so it is in time
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.idle == 1
    assert (await client.send(ASK, worker.address, SOON)).status == 200


async def test_while_reading(serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(once(REPLY[:-1])), pooled()
    exchange = await client.send(ASK, worker.address, SOON)
    assert await exchange.read() == b"h"
    task = asyncio.ensure_future(exchange.read())
    await asyncio.sleep(0)
    await cancel(task)
    await worker.left(0)
    assert client.open == 0
    with pytest.raises(GatewayError) as caught:
        await exchange.read()
    assert caught.value.kind is Kind.INTERNAL


async def test_while_connecting(serve: Serve, pooled: MakeClient) -> None:
    async def mute(peer: Peer) -> None:
        met.set()
        await peer.gone()

    met = asyncio.Event()
    worker, client = await serve(mute), pooled()
    task = asyncio.ensure_future(client.send(ASK, f"https://127.0.0.1:{worker.port}", SOON))  # a handshake that hangs
    await met.wait()
    await cancel(task)
    await worker.left(0)
    assert client.open == 0


async def test_while_writing(serve: Serve, pooled: MakeClient) -> None:
    async def slow(peer: Peer) -> None:
        await peer.head()
        met.set()
        await left.wait()
        await peer.gone()

    met, left = asyncio.Event(), asyncio.Event()
    worker, client = await serve(slow), pooled()
    task = asyncio.ensure_future(client.send(Request("POST", "/", [], bytes(20_000_000)), worker.address, SOON))
    await met.wait()
    await cancel(task)
    left.set()
    await worker.left(0)
    assert client.open == 0


async def test_close_tells_the_worker_at_once_and_is_idempotent(serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(once(REPLY[:-1])), pooled()
    exchange = await client.send(ASK, worker.address, SOON)
    reading = asyncio.ensure_future(exchange.body(9))
    await asyncio.sleep(0)
    exchange.close()
    exchange.close()
    exchange.pause()
    exchange.resume()
    await worker.left(0)
    with pytest.raises(GatewayError, match="closed before it was read"):
        await reading
    assert client.open == 0


async def test_a_closed_connection_is_freed_without_the_cycle_collector(serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(once(REPLY[:-1])), pooled()
    gc.collect()
    gc.disable()
    try:
        (await client.send(ASK, worker.address, SOON)).close()
        await worker.left(0)
        await client.close()
        for _ in range(3):
            await asyncio.sleep(0)
        assert [each for each in gc.get_objects() if type(each) is WorkerConnection] == []
    finally:
        gc.enable()


@pytest.mark.long
@pytest.mark.parametrize("each", [75, pytest.param(400, marks=pytest.mark.long)])
async def test_thousands_of_cancels(serve: Serve, pooled: MakeClient, each: int) -> None:
    """Scoreboard F10: 20 tasks cancel requests at random moments, then 30 of 30 succeed and nothing is left."""

    async def polite(peer: Peer) -> None:
        while True:
            await peer.request()
            peer.send(REPLY[:-1])
            await asyncio.sleep(0)
            peer.send(REPLY[-1:])

    async def ask() -> bytes:
        return await (await client.send(ASK, worker.address, SOON)).body(9)

    async def cancels(count: int) -> None:
        for _ in range(count):
            task = asyncio.ensure_future(ask())
            for _ in range(dice.randrange(12)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                assert task.result() == b"hi"

    dice = random.Random(10)
    worker, client = await serve(polite), pooled(max_idle=10)
    await asyncio.gather(*(cancels(each) for _ in range(20)))
    assert await asyncio.wait_for(asyncio.gather(*(ask() for _ in range(30))), 30) == [b"hi"] * 30
    await soon(lambda: client.open == client.idle)
    assert client.idle <= 10
    await soon(lambda: sum(not task.done() for task in worker.tasks) == client.idle)
