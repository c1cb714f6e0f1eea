"""Push, pull, and back-pressure in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request
from gateway.core.ports import Deadlines, Exchange, Transport
from gateway.transport.connection import JOINED_BYTES, WorkerConnection
from gateway.transport.incoming import READ_BYTES, Incoming
from gateway.transport.pooled import Pooled
from tests.unit.transport.conftest import once

if TYPE_CHECKING:
    from tests.unit.transport.conftest import MakeClient, Peer, Serve


ASK = Request("GET", "/")
SOON = Deadlines(connect=30, first_byte=30, idle=30)
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
MANY = 64 * 1024 * 1024


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Sink:
    """Keeps what comes; `on_block` may act on it."""

    def __init__(self, on_block: Callable[[bytes], None] = lambda data: None) -> None:
        self.blocks: list[bytes] = []
        self.ends: list[GatewayError | None] = []
        self.done = asyncio.Event()
        self.arrived = asyncio.Event()
        self.on_block = on_block

    def block(self, data: bytes) -> None:
        assert not self.ends
        self.blocks.append(data)
        self.arrived.set()
        self.on_block(data)

    def finished(self, error: GatewayError | None) -> None:
        self.ends.append(error)
        self.done.set()

    @property
    def body(self) -> bytes:
        return b"".join(self.blocks)


class Tap:
    """A worker's script that sends a head, and then what the test says."""

    def __init__(self, first: bytes = CHUNKED) -> None:
        self.first = first
        self.orders: asyncio.Queue[bytes] = asyncio.Queue()

    async def __call__(self, peer: Peer) -> None:
        await peer.request()
        peer.send(self.first)
        while order := await self.orders.get():
            peer.send(order)

    def say(self, data: bytes) -> None:
        """Sends this; b"" ends the connection."""
        self.orders.put_nowait(data)


async def test_the_client_is_what_the_seam_asks_for(pooled: MakeClient) -> None:
    transport: Transport = pooled()
    exchange: Exchange = Incoming(None)
    assert transport
    assert exchange


async def test_push(serve: Serve, pooled: MakeClient) -> None:
    tap, sink, client = Tap(CHUNKED + chunk(b"one ")), Sink(), pooled()
    worker = await serve(tap)
    exchange = await client.send(ASK, worker.address, SOON)
    exchange.pipe(sink)
    for word in (b"two ", b"three "):
        await asyncio.wait_for(sink.arrived.wait(), 30)
        sink.arrived.clear()
        tap.say(chunk(word))
    tap.say(b"0\r\n\r\n")
    await asyncio.wait_for(sink.done.wait(), 30)
    assert sink.blocks == [b"one ", b"two ", b"three "]
    assert sink.ends == [None]
    assert client.idle == 1


async def test_push_of_what_is_whole_already(serve: Serve, pooled: MakeClient) -> None:
    worker = await serve(Tap(CHUNKED + chunk(b"one ") + chunk(b"two") + b"0\r\n\r\n"))
    exchange = await pooled().send(ASK, worker.address, SOON)
    sink = Sink()
    exchange.pipe(sink)
    assert (sink.body, sink.ends) == (b"one two", [None])
    exchange.close()
    assert sink.ends == [None]


async def test_push_of_a_broken_body(serve: Serve, pooled: MakeClient) -> None:
    tap, sink = Tap(CHUNKED + chunk(b"one")), Sink()
    worker = await serve(tap)
    (await pooled().send(ASK, worker.address, SOON)).pipe(sink)
    tap.say(b"")
    await asyncio.wait_for(sink.done.wait(), 30)
    assert sink.body == b"one"
    assert sink.ends[0] is not None
    assert sink.ends[0].kind is Kind.TRUNCATED


async def test_pause_holds_blocks_and_the_end(serve: Serve, pooled: MakeClient) -> None:
    tap = Tap()
    worker, client = await serve(tap), pooled()
    exchange = await client.send(ASK, worker.address, SOON)
    sink = Sink(lambda data: exchange.pause())
    exchange.pipe(sink)
    tap.say(chunk(b"one ") + chunk(b"two"))
    await asyncio.wait_for(sink.arrived.wait(), 30)
    sink.arrived.clear()
    tap.say(chunk(b" three ") + chunk(b"four") + b"0\r\n\r\n")
    exchange.resume()
    # What comes in one segment is one block, so the pause comes while the end is at hand already.
    await asyncio.wait_for(sink.arrived.wait(), 30)
    assert (sink.blocks, sink.ends) == ([b"one two", b" three four"], [])
    assert client.idle == 1  # the worker is done, though the reader is not
    exchange.resume()
    assert sink.ends == [None]


async def test_a_pause_does_not_outlive_its_response(serve: Serve, pooled: MakeClient) -> None:
    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            peer.send(CHUNKED)
            await piped.wait()
            peer.send(chunk(b"one") + b"0\r\n\r\n")

    piped = asyncio.Event()
    worker, client = await serve(script), pooled()
    exchange = await client.send(ASK, worker.address, SOON)
    sink = Sink(lambda data: exchange.pause())
    exchange.pipe(sink)
    piped.set()
    await asyncio.wait_for(sink.arrived.wait(), 30)
    assert await (await client.send(ASK, worker.address, SOON)).body(9) == b"one"
    assert len(worker.peers) == 1
    assert sink.ends == []
    exchange.resume()
    assert sink.ends == [None]


async def test_resume_from_within_a_block(serve: Serve, pooled: MakeClient) -> None:
    def toggle(data: bytes) -> None:
        exchange.pause()
        exchange.resume()

    tap, sink = Tap(CHUNKED + chunk(b"a") + chunk(b"b")), Sink(toggle)
    worker = await serve(tap)
    exchange = await pooled().send(ASK, worker.address, SOON)
    exchange.pipe(sink)
    tap.say(chunk(b"c") + b"0\r\n\r\n")
    await asyncio.wait_for(sink.done.wait(), 30)
    assert (sink.body, sink.ends) == (b"abc", [None])


async def test_close_from_within_a_block(serve: Serve, pooled: MakeClient) -> None:
    tap = Tap()
    worker, client = await serve(tap), pooled()
    exchange = await client.send(ASK, worker.address, SOON)
    sink = Sink(lambda data: exchange.close())
    exchange.pipe(sink)
    tap.say(chunk(b"one") + chunk(b"two") + b"0\r\n\r\n")
    await asyncio.wait_for(sink.arrived.wait(), 30)
    await worker.peers[0].gone()
    assert (sink.blocks, sink.ends, client.idle) == ([b"onetwo"], [], 0)
    tap.say(b"")


@pytest.mark.parametrize("end", [b"", b"0\r\n\r\n", b"zz\r\n"], ids=["under way", "whole", "broken"])
async def test_a_sink_that_raises(end: bytes, serve: Serve, pooled: MakeClient) -> None:
    def bug(data: bytes) -> None:
        raise ZeroDivisionError

    tap, sink, client = Tap(), Sink(bug), pooled()
    worker = await serve(tap)
    (await client.send(ASK, worker.address, SOON)).pipe(sink)
    tap.say(chunk(b"one") + chunk(b"two") + end)
    await asyncio.wait_for(sink.done.wait(), 30)
    (error,) = sink.ends
    assert error is not None
    assert error.kind is Kind.INTERNAL
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert client.open == 0


@pytest.mark.parametrize("way", ["pull", "push"])
async def test_a_reader_who_does_not_read_stops_the_worker(way: str, serve: Serve, pooled: MakeClient) -> None:
    block, sent = bytes(1 << 16), 0

    async def flood(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % MANY)
        for _ in range(MANY // len(block)):
            peer.send(block)
            await peer.writer.drain()
            sent += len(block)
        await peer.request()

    worker, client = await serve(flood), pooled()
    exchange = await client.send(ASK, worker.address, SOON)
    sink = Sink(lambda data: exchange.pause())
    if way == "push":
        exchange.pipe(sink)
    before = -1
    while before != sent:
        before = sent
        await asyncio.sleep(0.05)
    reading_paused = len(sink.body) + exchange._size  # the bytes that nobody has read yet
    assert reading_paused <= 2 * READ_BYTES
    assert sent < MANY / 4  # what the kernel's own buffers take
    size = len(sink.body)
    if way == "push":
        sink.on_block = lambda data: None
        exchange.resume()
        await asyncio.wait_for(sink.done.wait(), 20)
        size = len(sink.body)
    else:
        while got := await exchange.read():
            size += len(got)
    assert size == MANY
    assert client.idle == 1


@pytest.mark.parametrize("framing", ["content-length", "chunks of one byte"])
async def test_a_fast_worker_takes_a_bounded_part_of_a_turn(framing: str, serve: Serve, pooled: MakeClient) -> None:
    """However fast it sends: blocks are of bounded size, and others have their turns between them."""
    size = 2_000_000
    if framing == "content-length":
        answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (size, bytes(size))
    else:
        size //= 6
        answer = CHUNKED + chunk(b"x") * size + b"0\r\n\r\n"

    blocks: list[int] = []
    turn, over = 0, False

    def count() -> None:
        nonlocal turn
        turn += 1
        if not over:
            loop.call_soon(count)

    loop = asyncio.get_running_loop()
    worker, client = await serve(once(answer)), pooled()
    exchange = await client.send(ASK, worker.address, SOON)
    sink = Sink(lambda data: blocks.append(turn))
    exchange.pipe(sink)
    count()
    await asyncio.wait_for(sink.done.wait(), 20)
    over = True
    assert len(sink.body) == size
    assert max(map(len, sink.blocks)) <= READ_BYTES
    assert max(blocks.count(at) for at in set(blocks)) <= 2


async def test_reads_what_is_there_without_a_turn_of_the_loop(serve: Serve, pooled: MakeClient) -> None:
    worker = await serve(Tap(CHUNKED + chunk(b"one ") + chunk(b"two")))
    exchange = await pooled().send(ASK, worker.address, SOON)
    with pytest.raises(StopIteration) as stopped:
        exchange.read().send(None)
    assert stopped.value.value == b"one two"


@pytest.mark.parametrize("size", [0, 1, JOINED_BYTES, JOINED_BYTES + 1, 20_000_000])
async def test_request_bodies(size: int, serve: Serve, pooled: MakeClient) -> None:
    async def script(peer: Peer) -> None:
        for _ in range(2):
            got.append(await peer.request())
            peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await peer.gone()

    got: list[bytes] = []
    body = (b"0123456789abcde" * (size // 15 + 1))[:size]
    worker, client = await serve(script), pooled()
    for _ in range(2):
        await client.send(Request("POST", "/", [], body), worker.address, SOON)
        assert got.pop().partition(b"\r\n\r\n")[2] == body
    assert len(worker.peers) == 1


async def test_a_large_request_waits_for_the_worker(serve: Serve, pooled: MakeClient) -> None:
    async def script(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await slow.wait()
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await peer.request()) > MANY
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    slow = asyncio.Event()
    worker, client = await serve(script), pooled()
    sending = asyncio.ensure_future(client.send(Request("POST", "/", [], bytes(MANY)), worker.address, SOON))
    before = -1
    while (now := queued(client)) != before:
        before = now
        await asyncio.sleep(0.05)
    assert 0 < now < 1 << 20
    slow.set()
    assert (await sending).status == 200


def queued(client: Pooled) -> int:
    """Bytes of requests that wait in the transports of a client."""
    every = [each for origin in client.origins.values() for each in origin.connections]
    connections = [each for each in every if isinstance(each, WorkerConnection)]
    return sum(each.transport.get_write_buffer_size() for each in connections if each.transport is not None)
