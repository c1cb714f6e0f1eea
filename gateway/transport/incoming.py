"""One response in progress, as its reader sees it: pulled or pushed, with back-pressure. No sockets here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from gateway.core.errors import GatewayError, Kind, reply_too_large
from gateway.core.http import Headers
from gateway.core.ports import BodySink
from gateway.light_task import OneTimeEvent

READ_BYTES: Final = 64 * 1024
"""The most bytes read from a socket in one turn of the event loop, and the number of buffered bytes at which the socket
is paused. So one stalled reader holds at most twice this."""


class Source(Protocol):
    """The connection that a response comes from. None of the methods raises."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def drop(self) -> None:
        """Closes the connection at once."""


class Incoming:
    """One response in progress: the `Exchange` that callers see. It knows nothing about sockets.

    status  0 until the head is accepted
    headers until the body is piped
    source  None once the response has ended, successfully or not
    stale   a reused connection closed before it answered, so the request may be sent once more
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
        self.waiter: OneTimeEvent | None = None
        self.push: Callable[[bytes], None] | None = None
        self._sink: BodySink | None = None
        self._blocks: list[bytes] = []
        self._size = 0
        self._paused = False
        self._ended = False

    # Called by the reader.

    async def read(self) -> bytes:
        """All bytes that have arrived, at least one; b"" once the body is complete.

        Raises GatewayError: UPSTREAM, TRUNCATED or TIMEOUT for a failure of the worker, after the blocks before it;
        DRAINING if the transport was closed; INTERNAL after `close()`. Cancelling it closes the connection.
        """
        while not self._blocks:
            if self._ended:
                if self.error is not None:
                    raise self.error
                return b""
            self.waiter = OneTimeEvent()
            try:
                await self.waiter
            except BaseException:
                self.close()
                raise
        return self._take()

    async def body(self, limit: int) -> bytes:
        """The whole body. Raises what `read` raises, and UPSTREAM (not retryable) over `limit` bytes."""
        # A small reply comes in one read with its head: it is here when its head is waited for no longer.
        if self._ended and self.error is None and len(self._blocks) == 1 and len(self._blocks[0]) <= limit:
            return self._take()
        parts: list[bytes] = []
        size = 0
        while block := await self.read():
            size += len(block)
            if size > limit:
                self.close()
                parts.clear()  # the error's traceback may keep them for a while
                raise reply_too_large()
            parts.append(block)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pipe(self, sink: BodySink) -> None:
        """Sends every later block to `sink`, and the buffered bytes at once, as one block.

        After `pause()` the sink gets no block and no end until `resume()`; after `close()` it gets nothing more.
        """
        self._sink = sink
        self.headers = []  # a stream lasts long
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
        """Ends the exchange and closes its connection, unless the response is complete: then the connection is already
        back in the pool. Idempotent."""
        source, self.source = self.source, None
        if self._blocks or not self._ended:
            self.error = GatewayError(Kind.INTERNAL, "the worker's answer was closed before it was read")
        self._ended = True
        self._sink = self.push = None
        self._blocks.clear()
        if source is not None:
            source.drop()
        self.wake()

    # Called by the source.

    def arrive(self, data: bytes) -> None:
        """Takes one block of the body, for the sink or the next `read`."""
        if self.push is not None:
            self.push(data)
        else:
            self.store(data)

    def store(self, data: bytes) -> None:
        """Buffers a block for the next `read`, and pauses the worker if enough bytes are waiting."""
        self._blocks.append(data)
        self._size += len(data)
        if self._size >= READ_BYTES and self.source is not None:
            self.source.pause_reading()
        self.wake()

    def end(self, error: GatewayError | None) -> None:
        """Ends the response. `error` is None if the body is complete by its own framing."""
        self.source = None
        if not self._ended:
            self._ended = True
            self.error = error
            self.wake()
            self._flow()

    def wake(self) -> None:
        if self.waiter is not None:
            self.waiter.set()

    def _take(self) -> bytes:
        blocks = self._blocks
        data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        blocks.clear()
        self._size = 0
        if self.source is not None and not self._paused:
            self.source.resume_reading()
        return data

    def _flow(self) -> None:
        """Gives the sink the buffered bytes, then the end, or else lets later blocks through. The sink may pause or
        close."""
        sink = self._sink
        if sink is None or self._paused:
            return
        if self._blocks:
            sink.block(self._take())
        # Looked at again: the sink may have paused, closed, made way for another, or called this through resume.
        sink = self._sink
        if sink is None or self._paused:
            return
        if self._ended:
            self._sink = self.push = None
            sink.finished(self.error)
        else:
            self.push = sink.block
