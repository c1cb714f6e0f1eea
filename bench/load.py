"""The load generator: raw HTTP/1.1 over asyncio, so that it costs less than what it measures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from msgspec import Struct

from bench.process import BenchError, Stopped
from bench.replies import MARK
from bench.rows import Row

HOST = "127.0.0.1"


class Sample(Struct, frozen=True):
    """One steady window. count: requests or chunks; cpu, wall: seconds."""

    count: int
    cpu: float
    wall: float

    @property
    def micros(self) -> float:
        """CPU microseconds for one request or chunk."""
        return self.cpu / self.count * 1e6


class Load:
    """What all connections of one run share."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.count = 0
        self.stopped = False
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, reason: str) -> None:
        """Ends the run."""
        if not self.stopped and not self.failure.done():
            self.failure.set_exception(BenchError(reason))

    async def wait(self, seconds: float) -> None:
        """Sleeps, or raises what `fail` was told, or Stopped."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            done, _ = await asyncio.wait([self.failure], timeout=min(left, 0.2))
            for future in done:
                future.result()
            Stopped.check()


class Connection(asyncio.Protocol):
    """Sends the request once connected; subclasses read the answer."""

    def __init__(self, load: Load) -> None:
        self.load = load

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, not the class.
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self.load.request)

    def connection_lost(self, exc: Exception | None) -> None:
        self.load.fail(f"a connection was closed during the run: {exc}")


class Plain(Connection):
    """Sends the next request as soon as a reply is whole."""

    buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        if not self.buffer.startswith(b"HTTP/1.1 200"):
            self.load.fail(f"not a 200: {self.buffer[:600].decode(errors='replace')}")
            return
        _, found, rest = self.buffer[:end].lower().partition(b"\r\ncontent-length:")
        if not found:
            self.load.fail(f"a plain reply without content-length: {self.buffer[:600].decode(errors='replace')}")
        elif len(self.buffer) >= end + 4 + int(rest.partition(b"\r\n")[0]):
            self.buffer = b""
            self.load.count += 1
            if not self.load.stopped:
                self.transport.write(self.load.request)


class Stream(Connection):
    """Counts chunks by the mark in each one's text, wherever the blocks are cut and however they are framed."""

    tail = b""
    started = False

    def data_received(self, data: bytes) -> None:
        if not self.started:
            self.started = True
            if not data.startswith(b"HTTP/1.1 200"):
                self.load.fail(f"not a 200: {data[:600].decode(errors='replace')}")
                return
        data = self.tail + data
        self.load.count += data.count(MARK)
        # A mark cut by the block's end is counted with the next one; a whole mark is longer than this, never twice.
        self.tail = data[1 - len(MARK) :]


async def measure(
    row: Row, port: int, connections: int, warm_up: float, seconds: float, cpu: Callable[[], float]
) -> Sample:
    """Runs `row` against `port` on that many connections and takes one window after `warm_up` seconds."""
    load = Load(row.request(f"{HOST}:{port}"))
    loop = asyncio.get_running_loop()
    kind = Plain if row.kind == "plain" else Stream
    opened: list[Connection] = []
    try:
        for _ in range(connections):
            _, connection = await loop.create_connection(lambda: kind(load), HOST, port)
            opened.append(connection)
        await load.wait(warm_up)
        count, used, start = load.count, cpu(), loop.time()
        await load.wait(seconds)
        sample = Sample(load.count - count, cpu() - used, loop.time() - start)
    finally:
        load.stopped = True
        await hang_up(opened)
    if sample.count == 0:
        raise BenchError(f"{row.name}: nothing was received in {seconds} s")
    return sample


async def hang_up(connections: Sequence[Connection]) -> None:
    """Closes all, and lets the far side notice before the next run starts."""
    for connection in connections:
        connection.transport.abort()
    await asyncio.sleep(0.3)
