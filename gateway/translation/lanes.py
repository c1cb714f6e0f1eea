"""The event lane, and which lane a stream takes.

A lane turns one worker's streamed bytes into one client's bytes (`core.ports.Lane`) and does no I/O. The passthrough
lane belongs to the dialect (`Dialect.passthrough`). The event lane joins a backend's reader to a dialect's writer.
"""

from __future__ import annotations

import sys

from gateway.core.errors import GatewayError, reply_too_large
from gateway.core.events import Delta, End, Failed, UsageReport
from gateway.core.http import Headers
from gateway.core.messages import Generate
from gateway.core.ports import Backend, Dialect, Lane, StreamReader, StreamWriter
from gateway.core.usage import Usage


def lane_for(dialect: Dialect, backend: Backend, op: Generate, max_buffered_bytes: int = sys.maxsize) -> Lane:
    """A lane for one streamed reply to `op`: the passthrough lane where dialect and backend speak the same wire, else
    the event lane."""
    passthrough = dialect.passthrough.get(backend.reply_wire(op))
    if passthrough is not None:
        return passthrough.lane(op)
    return EventLane(backend.reader(op), dialect.writer(op), max_buffered_bytes)


class EventLane:
    """Worker bytes to events to client bytes. Implements core.ports.Lane.

    The stream fails with `reply_too_large` once reader and writer together keep more than `max_buffered_bytes`.
    """

    keeps_op = True  # most readers and writers do

    def __init__(self, reader: StreamReader, writer: StreamWriter, max_buffered_bytes: int = sys.maxsize) -> None:
        self.done = False
        self.error: GatewayError | None = None
        self.usage: Usage | None = None
        self.produced = 0
        self._reader = reader
        self._writer = writer
        self._max_buffered_bytes = max_buffered_bytes

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
                self.error = event.error  # type: ignore[union-attr]  # narrowed by identity of the class
                break
            out.append(write(event))
        buffered = self._writer.buffered_bytes + self._reader.buffered_bytes
        if buffered > self._max_buffered_bytes and not self.done and self.error is None:
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
