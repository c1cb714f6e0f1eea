"""One response under way, as its reader sees it: by pull or by push, with back-pressure. No sockets here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from gateway.core.errors import GatewayError, Kind, reply_too_large
from gateway.core.http import Headers
from gateway.core.ports import BodySink

READ_BYTES: Final = 64 * 1024
"""Most bytes taken from a socket in one turn of the event loop, and how many wait for a reader before the socket is
paused: one stalled reader holds at most twice this."""


class Source(Protocol):
    """What feeds an `Incoming`: a connection, or a script in tests."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def drop(self) -> None: ...


class Incoming:
    """One response under way: the `Exchange` that callers see. Knows nothing of sockets.

    status  0 until the head is accepted
    source  None once the response has ended, well or badly
    stale   a reused connection died before it answered: the request may be sent once more
    """

    __slots__ = (
        "_blocks", "_ended", "_paused", "_sink", "_size", "bodiless", "error", "headers", "push", "source", "stale",
        "status", "waiter",
    )  # fmt: skip

    def __init__(self, source: Source | None, bodiless: bool = False) -> None:
        self.status = 0
        self.headers: Headers = []
        self.source = source
        self.bodiless = bodiless
        self.error: GatewayError | None = None
        self.stale = False
        self.waiter: asyncio.Future[None] | None = None
        self.push: Callable[[bytes], None] | None = None
        self._sink: BodySink | None = None
        self._blocks: list[bytes] = []
        self._size = 0
        self._paused = False
        self._ended = False

    # What the caller uses.

    async def read(self) -> bytes:
        """Everything that has arrived, at least one byte; b"" once the body is whole.

        Raises GatewayError: UPSTREAM, TRUNCATED or TIMEOUT for what the worker did, after the blocks before it;
        DRAINING when the transport was closed; INTERNAL after `close()`. Cancelling it closes the connection.
        """
        while not self._blocks:
            if self._ended:
                if self.error is not None:
                    raise self.error
                return b""
            self.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.waiter
            except BaseException:
                self.close()
                raise
        return self._take()

    async def body(self, limit: int) -> bytes:
        """The whole body. Raises what `read` raises, and UPSTREAM (not retryable) over `limit` bytes."""
        parts: list[bytes] = []
        size = 0
        while block := await self.read():
            size += len(block)
            if size > limit:
                self.close()
                raise reply_too_large()
            parts.append(block)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pipe(self, sink: BodySink) -> None:
        """From now on every block goes to `sink`; what is buffered goes at once, as one block.

        After `pause()` no block and no end comes before `resume()`; after `close()` nothing comes at all.
        """
        self._sink = sink
        self._flow()

    def pause(self) -> None:
        self._paused = True
        self.push = None
        if self.source is not None:
            self.source.pause_reading()

    def resume(self) -> None:
        self._paused = False
        self._flow()
        if self.source is not None and not self._paused and self._size < READ_BYTES:
            self.source.resume_reading()

    def close(self) -> None:
        """A whole response has given its connection back already; any other loses it at once. Idempotent."""
        source, self.source = self.source, None
        if self._blocks or not self._ended:
            self.error = GatewayError(Kind.INTERNAL, "the worker's answer was closed before it was read")
        self._ended = True
        self._sink = self.push = None
        self._blocks.clear()
        if source is not None:
            source.drop()
        self.wake()

    # What the source uses.

    def arrive(self, data: bytes) -> None:
        """One block of the body, for the sink or for whoever reads next."""
        if self.push is not None:
            self.push(data)
        else:
            self.store(data)

    def store(self, data: bytes) -> None:
        """Keeps a block for whoever reads next, and stops the worker when enough is waiting."""
        self._blocks.append(data)
        self._size += len(data)
        if self._size >= READ_BYTES and self.source is not None:
            self.source.pause_reading()
        self.wake()

    def end(self, error: GatewayError | None) -> None:
        """Nothing more will come: None when the body is whole by its own framing."""
        self.source = None
        if not self._ended:
            self._ended = True
            self.error = error
            self.wake()
            self._flow()

    def wake(self) -> None:
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _take(self) -> bytes:
        blocks = self._blocks
        data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        blocks.clear()
        self._size = 0
        if self.source is not None and not self._paused:
            self.source.resume_reading()
        return data

    def _flow(self) -> None:
        """Moves the sink along: what waits, then the end or the way for later blocks. The sink may pause or close."""
        sink = self._sink
        if sink is None or self._paused:
            return
        if self._blocks:
            sink.block(self._take())
        # Asked again: the sink may have paused, closed, or (through resume) been here already.
        if self._sink is None or self._paused:
            return
        if self._ended:
            self._sink = self.push = None
            sink.finished(self.error)
        else:
            self.push = sink.block
