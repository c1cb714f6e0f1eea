"""ZeroMQ's wire, read with bounds: with libzmq's own sockets, and with peers that say what they like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, nullcontext, suppress
from typing import Any, cast

import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.zmtp import _GREETING, Peer, Unfit
from tests.support.steps import rounds

MOST = 1 << 20
READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
Said = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def saying(said: Said) -> AsyncIterator[int]:
    """The port of a server that says this to one client. It has closed its side when this is left."""
    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await said(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        over.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await over.wait()
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def bound(kind: int, **options: int) -> AsyncIterator[tuple[zmq.asyncio.Socket, int]]:
    context = zmq.asyncio.Context()
    socket = context.socket(kind)
    for name, value in options.items():
        setattr(socket, name, value)
    try:
        yield socket, socket.bind_to_random_port("tcp://127.0.0.1")
    finally:
        context.destroy(linger=0)


async def test_messages_of_a_publisher_come_whole_and_in_order() -> None:
    sizes = [0, 1, 255, 256, 65_536, MOST - 9]
    async with bound(zmq.XPUB) as (socket, port):
        with closing(await Peer.connect("127.0.0.1", port, "SUB", MOST)) as peer:
            assert await socket.recv() == b"\x01"
            for number, size in enumerate(sizes):
                await socket.send_multipart([b"", number.to_bytes(8, "big"), bytes(size)])
            for number, size in enumerate(sizes):
                async with asyncio.timeout(30):
                    topic, counted, payload = await peer.receive()
                assert (topic, int.from_bytes(counted, "big"), len(payload)) == (b"", number, size)


async def test_a_router_answers() -> None:
    async with bound(zmq.ROUTER) as (socket, port):
        with closing(await Peer.connect("127.0.0.1", port, "DEALER", MOST)) as peer:
            peer.send(b"", b"\x00" * 8)
            name, *frames = await socket.recv_multipart()
            assert frames == [b"", b"\x00" * 8]
            await socket.send_multipart([name, b"", b"1", b"2"])
            assert await peer.receive() == [b"", b"1", b"2"]


async def test_heartbeats_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    beats, obey = asyncio.Semaphore(0), Peer._obey  # counts heartbeats

    def counted(self: Peer, command: bytes) -> None:
        obey(self, command)
        beats.release()

    monkeypatch.setattr(Peer, "_obey", counted)
    async with bound(zmq.XPUB, heartbeat_ivl=10, heartbeat_timeout=10_000) as (socket, port):
        with closing(await Peer.connect("127.0.0.1", port, "SUB", MOST)) as peer:
            heard = asyncio.create_task(peer.receive())
            for _ in range(5):
                async with asyncio.timeout(30):
                    await beats.acquire()
            await socket.send_multipart([b"a"])
            assert await heard == [b"a"]


@pytest.mark.parametrize("size", [0, 1, 200_000])
async def test_a_message_without_an_end_is_not_held(size: int) -> None:
    """libzmq takes it all: the bound of its socket is one of frames."""
    sent = 0

    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(_GREETING + READY)
        frame = (b"\x03" + size.to_bytes(8, "big") + bytes(size)) * (100_000 // (size + 9) + 1)
        while sent < 100_000_000:
            writer.write(frame)
            await writer.drain()
            await asyncio.sleep(0)
            sent += len(frame)

    async with asyncio.timeout(60), saying(said) as port:
        peer = await Peer.connect("127.0.0.1", port, "SUB", MOST)
        with pytest.raises(Unfit):
            await peer.receive()
        assert len(peer._reader._buffer) < MOST  # type: ignore[attr-defined]  # what is held
        peer.close()
    assert sent < 32_000_000, "the rest is what the kernel's buffers take"


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".ljust(64),
        _GREETING.replace(b"NULL\0", b"PLAIN"),
        _GREETING.replace(b"\x7f\x03", b"\x7f\x01"),
        _GREETING + b"\x00\x05READY",
        _GREETING + b"\x04\x05ERROR",
        _GREETING + b"\x06" + (1 << 40).to_bytes(8, "big"),
        _GREETING + READY + b"\x02" + (1 << 62).to_bytes(8, "big"),
        _GREETING + READY + b"\x06" + (1 << 20).to_bytes(8, "big"),
    ],
)
async def test_what_does_not_fit_ends_the_connection(said: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await reader.read()

    async def listen(port: int) -> Any:
        with closing(await Peer.connect("127.0.0.1", port, "SUB", MOST)) as peer:
            return await peer.receive()

    async with asyncio.timeout(30), saying(answer) as port:
        with pytest.raises(Unfit):
            await listen(port)


@pytest.mark.parametrize("size", [1024, 1025])
async def test_a_command_of_at_most_1024_bytes_is_read(size: int) -> None:
    reader: Any = asyncio.StreamReader()
    reader.feed_data(b"\x06" + size.to_bytes(8, "big") + b"\x05OTHER".ljust(size) + b"\x00\x01a")
    with pytest.raises(Unfit) if size > 1024 else nullcontext():
        assert await Peer(reader, Sink(), MOST).receive() == [b"a"]  # type: ignore[arg-type]


class Sink:
    """Takes what is written, and lets nobody read it."""

    def __init__(self) -> None:
        self.size = 0
        self.transport = self

    def write(self, data: bytes) -> None:
        self.size += len(data)

    def get_write_buffer_size(self) -> int:
        return self.size

    def abort(self) -> None:
        pass


@given(st.binary(max_size=400), st.integers(1, 64))
async def test_any_bytes_make_messages_or_end_the_connection(said: bytes, most: int) -> None:
    reader: Any = asyncio.StreamReader()
    reader.feed_data(said)
    reader.feed_eof()
    peer = Peer(reader, Sink(), most)  # type: ignore[arg-type]
    received: list[bytes] | None = []
    while received is not None:
        assert sum(map(len, received)) <= most
        try:
            received = await peer.receive()
        except (EOFError, Unfit):
            received = None


async def test_who_asks_and_does_not_read_is_not_answered_for_ever() -> None:
    reader: Any = asyncio.StreamReader()
    reader.feed_data(b"\x04\x07\x04PING\x00\x00" * 10_000)
    reader.feed_eof()
    sink: Any = Sink()
    with pytest.raises(Unfit):
        await Peer(reader, sink, MOST).receive()
    assert sink.size < 4096


async def test_commands_in_a_row_let_others_run() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"\x04\x00" * 200 + b"\x00\x02hi")
    peer = Peer(reader, cast(asyncio.StreamWriter, None), MOST)
    with rounds() as turned:
        assert await peer.receive() == [b"hi"]
    assert turned[0] >= 200
