"""A worker that sends exactly the bytes it is told, over real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
import pytest_asyncio
import uvloop

from gateway.transport.pooled import Pooled

PATIENCE = 30.0
"""Seconds after which a test is told that what it waits for does not come."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    both = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    # httpx runs alike on both: the gateway's own is enough.
    return {"uvloop": both["uvloop"]} if "httpx" in item.nodeid.partition("::")[0] else both


class Peer:
    """The worker's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def head(self) -> bytes:
        """One request head. Raises EOFError when the client has closed instead."""
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)

    async def request(self) -> bytes:
        """One whole request."""
        head = await self.head()
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b": ")
            if name == b"content-length":
                return head + await self.reader.readexactly(int(value))
        return head

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def finish(self) -> None:
        """FIN after what was sent."""
        self.writer.close()

    def reset(self) -> None:
        """RST, now."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Returns when the client has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await asyncio.wait_for(self.reader.read(1 << 16), PATIENCE):
                pass

    @property
    def socket(self) -> Any:
        return self.writer.get_extra_info("socket")


Script = Callable[[Peer], Awaitable[None]]
REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


async def polite(peer: Peer) -> None:
    """Answers every request with `REPLY`."""
    while True:
        await peer.request()
        peer.send(REPLY)


def once(data: bytes, asked: asyncio.Event | None = None) -> Script:
    """Reads one request, sets `asked`, sends `data`, and waits until the client has closed."""

    async def script(peer: Peer) -> None:
        await peer.request()
        if asked is not None:
            asked.set()
        peer.send(data)
        await peer.gone()

    return script


class Worker:
    """Runs one script for each connection, the last one for all further; what a script raises fails the test."""

    def __init__(self, scripts: tuple[Script, ...]) -> None:
        self.scripts = scripts
        self.peers: list[Peer] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.port = 0
        self.scheme = "http"

    @property
    def address(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        script = self.scripts[min(len(self.peers), len(self.scripts) - 1)]
        self.peers.append(peer)
        self.tasks.append(asyncio.ensure_future(self._play(script, peer)))

    async def left(self, number: int) -> None:
        """Returns when the script of a connection is over, as it is when the client has closed."""
        await asyncio.wait_for(asyncio.wait([self.tasks[number]]), PATIENCE)

    async def _play(self, script: Script, peer: Peer) -> None:
        try:
            await script(peer)
        finally:
            peer.writer.close()


Serve = Callable[..., Awaitable[Worker]]
MakeClient = Callable[..., Pooled]


@pytest_asyncio.fixture
async def serve() -> AsyncIterator[Serve]:
    """`await serve(script, ...)`: a worker on a free port."""
    running: list[tuple[asyncio.Server, Worker]] = []

    async def start(*scripts: Script, tls: ssl.SSLContext | None = None) -> Worker:
        worker = Worker(scripts)
        server = await asyncio.start_server(worker.meet, "127.0.0.1", 0, ssl=tls)
        worker.port = server.sockets[0].getsockname()[1]
        worker.scheme = "https" if tls else "http"
        running.append((server, worker))
        return worker

    yield start
    for server, worker in running:
        server.close()
        for task in worker.tasks:
            if not task.done():
                task.cancel()
        for result in await asyncio.gather(*worker.tasks, return_exceptions=True):
            # A client that leaves is the end of most scripts.
            if isinstance(result, Exception) and not isinstance(result, (EOFError, ConnectionError)):
                raise result
        for peer in worker.peers:
            with contextlib.suppress(OSError):
                await peer.writer.wait_closed()


@pytest_asyncio.fixture
async def pooled() -> AsyncIterator[MakeClient]:
    """`pooled(**arguments)`: a client that is closed, and leaves no connection, at the end of the test."""
    made: list[Pooled] = []

    def make(**arguments: Any) -> Pooled:
        made.append(Pooled(**arguments))
        return made[-1]

    yield make
    for client in made:
        await asyncio.wait_for(client.close(), PATIENCE)
        assert client.open == client.idle == 0
