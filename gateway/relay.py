"""The two lanes, and the pump that carries a worker's stream through one of them to the client.

A lane is sans-IO (core.ports.Lane): the bytes lane is the dialect's own, the event lane below joins a backend's reader
to a dialect's writer. The pump is called from the transport for every block and writes on at once: no task switch, no
queue, and each side is paused while the other cannot follow.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

from gateway.client import Client
from gateway.core.errors import GatewayError, Kind, reply_too_large
from gateway.core.events import Delta, End, Failed, UsageReport
from gateway.core.http import Headers
from gateway.core.ports import Exchange, Lane, StreamReader, StreamWriter
from gateway.core.usage import Usage

# After the terminal mark only the framing's end is due; a worker that withholds it costs its connection, not our time.
_LINGER_S = 1.0


class EventLane:
    """Worker bytes -> events -> client bytes. Implements core.ports.Lane.

    A reply of which reader and writer keep more than `most_held` bytes fails.
    """

    def __init__(self, reader: StreamReader, writer: StreamWriter, most_held: int = sys.maxsize) -> None:
        self.done = False
        self.error: GatewayError | None = None
        self.usage: Usage | None = None
        self.produced = 0
        self._reader = reader
        self._writer = writer
        self._most_held = most_held

    @property
    def headers(self) -> Headers:
        return self._writer.headers

    @property
    def clean_end(self) -> bool:
        return self._writer.clean_end

    def feed(self, block: bytes) -> bytes:
        out = []
        write = self._writer.write
        for event in self._reader.feed(block):
            kind = type(event)
            if kind is Delta:
                self.produced += 1
            elif kind is UsageReport:
                self.usage = event.usage  # type: ignore[union-attr]  # narrowed by identity of the class
            elif kind is End:
                self.done = True
            elif kind is Failed:
                self.error = event.error  # type: ignore[union-attr]
                break
            out.append(write(event))
        buffered = self._writer.buffered_bytes + self._reader.buffered_bytes
        if buffered > self._most_held and not self.done and self.error is None:
            self.error = reply_too_large()
        return b"".join(out)

    def eof(self) -> bytes:
        out = []
        for event in self._reader.eof():
            if isinstance(event, Failed):
                self.error = event.error
                break
            self.done = self.done or isinstance(event, End)
            out.append(self._writer.write(event))
        return b"".join(out)

    def fail(self, error: GatewayError) -> bytes:
        self.error = error
        return self._writer.write(Failed(error))

    def keepalive(self) -> bytes:
        return self._writer.keepalive()


class Waiting:
    """A streaming client for whom no worker has begun to answer yet: it gets the head of a 200 and a blank, and more of
    them by `blank`. Other workers may still be tried. `lane` is there for its words, not for a worker's."""

    def __init__(self, client: Client, lane: Lane, headers: Headers) -> None:
        loop = asyncio.get_running_loop()
        self.lane = lane
        self._client = client
        self._over: asyncio.Future[None] = loop.create_future()
        self._task = loop.create_task(self._carry(headers))

    async def _carry(self, headers: Headers) -> None:
        await self._client.start(200, [*self.lane.headers, *headers])
        self.blank()
        await self._client.carry(self._over)

    def blank(self) -> None:
        if not self._over.done():
            self._client.write(self.lane.keepalive())

    async def end(self) -> None:
        """Returns when others may write to the client."""
        if not self._over.done():
            self._over.set_result(None)
        await self._task

    async def fail(self, error: GatewayError) -> None:
        """Ends the reply with `error`, in the client's own way."""
        await self.end()
        await tell(self._client, self.lane, error)

    def close(self) -> None:
        self._task.cancel()


async def tell(client: Client, lane: Lane, error: GatewayError) -> None:
    """Ends a reply whose head is out with `error`."""
    last = lane.fail(error)
    if lane.clean_end:
        await client.finish(last)
    else:
        await client.cut(last)


class Pump:
    """One streamed reply under way.

    Before the first output nothing is sent, so that an error there is still an error status, or another worker's turn.
    committed is True from the moment the client may have seen something of this reply. on_first is called with the
    first output in hand; on_done once the reply is known to be complete, before its end can have reached the client.
    heard: when the client last did, or began to wait, in the loop's time.
    """

    def __init__(self, exchange: Exchange, lane: Lane, client: Client, keepalive_s: float, heard: float) -> None:
        self.lane = lane
        self.committed = False
        self.first_output_at: float | None = None
        self.on_first: Callable[[], None] | None = None
        self.on_done: Callable[[], None] | None = None
        self._exchange = exchange
        self._client = client
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._pending = b""
        self._last = heard

    # -- called by the transport, for every block -------------------------------------------------------------------

    def block(self, data: bytes) -> None:
        if self._over.done():
            return
        try:
            self._pass_on(data)
        except Exception as error:
            self._broken(error)

    def _pass_on(self, data: bytes) -> None:
        lane = self.lane
        out = lane.feed(data)
        if out:
            self._last = self._loop.time()
            if self.first_output_at is None:
                self._first()
            if self.committed:
                self._client.write(out)
            else:
                self._pending += out
        if lane.error is not None or lane.done:
            if lane.done and self.on_done is not None:
                self.on_done()
            self._end()
        elif out and not self.committed:
            self._open()

    def finished(self, error: GatewayError | None) -> None:
        lane = self.lane
        if not lane.done and lane.error is None:
            out = b""
            if error is None:
                try:
                    out = lane.eof()
                except Exception as bug:
                    self._broken(bug)
            else:
                lane.error = error
            if out:
                self._pending += out
        self._end()
        if not self._closed.done():
            self._closed.set_result(None)

    def _broken(self, bug: Exception) -> None:
        """A bug of ours ends this reply alone: raised through the transport it would be taken for the connection's,
        and who waits for the end would not hear of it."""
        self.lane.error = GatewayError(Kind.INTERNAL, "the worker's answer could not be passed on")
        self.lane.error.__cause__ = bug
        self._end()

    # -- called by the pipeline -------------------------------------------------------------------------------------

    def interrupt(self, error: GatewayError) -> None:
        """Ends the reply with an error of ours (deadline, shutdown)."""
        if not self.lane.done and self.lane.error is None:
            self.lane.error = error
            self._end()

    async def run(self, headers: Headers) -> None:
        """Carries the whole reply.

        Raises the lane's GatewayError when it failed before anything of it was sent: the client has seen nothing, or
        blanks. A failure after that is told in the client's own way, and is left in `lane.error`.
        """
        try:
            self._exchange.pipe(self)
            await self._opened
            if self.lane.error is not None:
                raise self.lane.error
            self._client.flow(self._exchange.pause, self._exchange.resume)
            if not self._client.started:
                await self._client.start(200, [*self.lane.headers, *headers])
            self.committed = True
            self._flush()
            if not self._over.done():
                await self._client.carry(self._over)
                self._flush()
            await self._conclude()
        finally:
            self.on_done = None  # whoever is told holds this pump: a cycle, which would wait for the collector
            self._exchange.close()

    async def _conclude(self) -> None:
        error = self.lane.error
        if error is None:
            await self._client.finish(b"")
            # Lets the connection to the worker be used again.
            if not self._closed.done():
                await asyncio.wait([self._closed], timeout=_LINGER_S)
            return
        self._exchange.close()
        await tell(self._client, self.lane, error)

    def _flush(self) -> None:
        pending, self._pending = self._pending, b""
        if pending:
            self._client.write(pending)

    def _first(self) -> None:
        self.first_output_at = time.monotonic()  # uvloop's own clock is that of the turn's start
        if self.on_first is not None:
            self.on_first()

    def _open(self) -> None:
        if not self._opened.done():
            self._opened.set_result(None)

    def _end(self) -> None:
        self._open()
        if not self._over.done():
            self._over.set_result(None)

    def silence(self) -> float:
        """Keeps proxies and read timers between us and the client from giving up, if it has heard nothing for long.
        This commits to a 200, and to this reply. Returns after how many seconds to look again."""
        idle = self._loop.time() - self._last
        if idle < self._keepalive_s:
            return self._keepalive_s - idle
        blank = self.lane.keepalive()
        if blank and not self._over.done():
            if self.committed:
                self._client.write(blank)
            else:
                self._pending += blank
                if not self._opened.done():
                    self._opened.set_result(None)
            self._last = self._loop.time()
        return self._keepalive_s


def gone() -> GatewayError:
    return GatewayError(Kind.CLIENT_GONE, "the client left before its reply was complete")
