"""The load generator: raw HTTP/1.1 over asyncio, so that it costs less than the measured subject."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import cycle
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


SLICE = 0.25
"""Seconds that a plain row runs in one turn."""
RUN_UP = 0.05
"""Seconds at the start of each turn that do not count, while the subject's code and data return to the CPU caches."""


class Load:
    """The state that all connections of one run share, which send `requests` in turn. resting: connections with a reply
    send no further request; busy: connections that wait for a reply."""

    def __init__(self, requests: Sequence[bytes]) -> None:
        self.requests = cycle(requests)
        self.count = 0
        self.stopped = False
        self.resting = False
        self.busy = 0
        self.rested = asyncio.Event()
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, reason: str) -> None:
        """Ends the run."""
        if not self.stopped and not self.failure.done():
            self.failure.set_exception(BenchError(reason))

    async def wait(self, seconds: float) -> None:
        """Sleeps. Raises the error given to `fail`, or Stopped."""
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
        self.transport.write(next(self.load.requests))

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
            if not self.load.resting:
                self.transport.write(next(self.load.requests))
            else:
                self.load.busy -= 1
                if self.load.busy == 0:
                    self.load.rested.set()


class Stream(Connection):
    """Counts chunks by the mark in each one's text, whatever their framing and the boundaries of blocks."""

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


class Target(Struct, frozen=True):
    """A request and where to send it. cpu: CPU seconds that the listener at this port has used so far; prompts: how
    many different ones the request has in turn."""

    row: Row
    port: int
    cpu: Callable[[], float]
    prompts: int = 1


class Run:
    """One target under load."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.load = Load(target.row.requests(f"{HOST}:{target.port}", target.prompts))
        self.opened: list[Connection] = []
        self.taken = Sample(0, 0.0, 0.0)

    async def open(self, connections: int) -> None:
        kind = Plain if self.target.row.kind == "plain" else Stream
        self.load.busy = connections
        for _ in range(connections):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: kind(self.load), HOST, self.target.port
            )
            self.opened.append(connection)

    async def take(self, seconds: float) -> None:
        """Adds a window to the sample."""
        load, loop = self.load, asyncio.get_running_loop()
        count, used, start = load.count, self.target.cpu(), loop.time()
        await load.wait(seconds)
        so_far = self.taken
        self.taken = Sample(
            so_far.count + load.count - count,
            so_far.cpu + self.target.cpu() - used,
            so_far.wall + loop.time() - start,
        )

    async def rest(self) -> None:
        """Sends no further requests; returns when all replies are in."""
        self.load.rested.clear()
        self.load.resting = True
        while not self.load.rested.is_set():
            await self.load.wait(0.01)

    def go_on(self) -> None:
        self.load.resting = False
        self.load.busy = len(self.opened)
        for connection in self.opened:
            connection.transport.write(next(self.load.requests))

    def sample(self) -> Sample:
        """The sample. Raises BenchError if it is empty."""
        if self.taken.count == 0:
            raise BenchError(f"{self.target.row.name}: nothing was received")
        return self.taken


async def measure(targets: Sequence[Target], connections: int, warm_up: float, seconds: float) -> list[Sample]:
    """Loads each target on that many connections, for `seconds` after `warm_up` seconds.

    Plain rows take turns of `SLICE`, so that a slow second or minute of the machine slows all of them and their
    differences stay true. Streams cannot be paused; they have their windows one after the other.
    """
    if targets[0].row.kind == "stream":
        return [await _alone(Run(target), connections, warm_up, seconds) for target in targets]
    runs = [Run(target) for target in targets]
    try:
        for run in runs:
            await run.open(connections)
            await run.load.wait(warm_up)
            await run.rest()
        for turn in range(max(round(seconds / SLICE), 1)):
            for run in runs if turn % 2 else runs[::-1]:
                run.go_on()
                await run.load.wait(RUN_UP)
                await run.take(min(SLICE, seconds))
                await run.rest()
    finally:
        for run in runs:
            run.load.stopped = True
            await hang_up(run.opened)
    return [run.sample() for run in runs]


async def _alone(run: Run, connections: int, warm_up: float, seconds: float) -> Sample:
    try:
        await run.open(connections)
        await run.load.wait(warm_up)
        await run.take(seconds)
    finally:
        run.load.stopped = True
        await hang_up(run.opened)
    return run.sample()


async def hang_up(connections: Sequence[Connection]) -> None:
    """Closes all connections, and waits until the other side has noticed."""
    for connection in connections:
        connection.transport.abort()
    await asyncio.sleep(0.3)
