"""The event lane, and which lane a stream takes.

A lane turns one worker's streamed bytes into one client's bytes (`core.ports.Lane`) and does no I/O. The passthrough
lane belongs to the dialect (`Dialect.passthrough`). The event lane joins a backend's reader to a dialect's writer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial

from gateway.core.continuation import FOLD_LENGTH, FOLD_MASK, NO_TEXT, SentText
from gateway.core.errors import GatewayError, reply_too_large
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartStart, UsageReport
from gateway.core.http import Headers
from gateway.core.messages import Generate, choices_of
from gateway.core.ports import Backend, Dialect, Lane, Partial, StreamReader, StreamWriter
from gateway.core.usage import Usage
from gateway.translation.continued import ContinuedReader


def lane_for(
    dialect: Dialect, backend: Backend, op: Generate, max_buffered_bytes: int = sys.maxsize, text: SentText = NO_TEXT
) -> Lane:
    """A lane for one streamed reply to `op`: the passthrough lane where dialect and backend speak the same wire, else
    the event lane. text keeps that of the reply."""
    if choices_of(op) != 1:
        text.stop("choices")
    passthrough = dialect.passthrough.get(backend.reply_wire(op))
    if passthrough is not None:
        return passthrough.lane(op, text)
    return EventLane(partial(backend.reader, op), dialect.writer(op), max_buffered_bytes, text)


class EventLane:
    """Worker bytes to events to client bytes. Implements core.ports.Lane.

    The stream fails with `reply_too_large` once reader and writer together keep more than `max_buffered_bytes`.

    reader  of the worker's bytes. The native relay does what it does with ordinary chunks, and calls `take`
    """

    keeps_op = True  # most readers and writers do
    # Where the client's text stands: None before it, and once it has ended.
    _open: PartStart | None = None

    def __init__(
        self,
        reader: Callable[[], StreamReader],
        writer: StreamWriter,
        max_buffered_bytes: int = sys.maxsize,
        text: SentText = NO_TEXT,
    ) -> None:
        self.done = False
        self.error: GatewayError | None = None
        self.usage: Usage | None = None
        self.finishes: dict[int, str] = {}
        self.produced = 0
        self._new_reader = reader
        self.reader = reader()
        self._writer = writer
        self._max_buffered_bytes = max_buffered_bytes
        self._text = text

    @property
    def headers(self) -> Headers:
        return self._writer.headers

    @property
    def clean_end(self) -> bool:
        return self._writer.clean_end

    def feed(self, block: bytes) -> bytes:
        return self.take(self.reader.feed(block))

    def take(self, events: Iterable[Event]) -> bytes:
        """Writes events of the reader's. Returns the bytes for the client."""
        out = []
        write, keep = self._writer.write, self._text.add
        try:
            for event in events:
                if type(event) is Delta:
                    self.produced = count = self.produced + 1
                    keep(text := event.text)
                    if not count & FOLD_MASK or len(text) > FOLD_LENGTH:
                        self._text.fold()
                elif not self._note(event):
                    break
                out.append(write(event))
        except GatewayError as error:
            self._refused(error)
        buffered = self._writer.buffered_bytes + self.reader.buffered_bytes
        if buffered > self._max_buffered_bytes and not self.done and self.error is None:
            self.error = reply_too_large()
        return b"".join(out)

    def _note(self, event: Event) -> bool:
        """False if the reply has failed."""
        match event:
            case PartStart():
                if event.kind != "text" or self._open is not None:
                    self._text.stop("tool_call" if event.kind == "tool" else event.kind)
                self._open = event
            case Finish():
                self.finishes[event.choice] = event.reason
            case UsageReport():
                self.usage = event.usage
            case End():
                self.done = True
            case Failed():
                self.error = event.error
                return False
            case _:
                pass
        return True

    def eof(self) -> bytes:
        return self.end_by(self.reader.eof())

    def end_by(self, events: Iterable[Event]) -> bytes:
        """Ends the reply by `events`. Returns the last bytes for the client."""
        out = []
        try:
            for event in events:
                if self._note(event):
                    out.append(self._writer.write(event))
        except GatewayError as error:
            self._refused(error)
        return b"".join(out)

    def _refused(self, error: GatewayError) -> None:
        """The writer cannot write the end of this reply as a success."""
        self.done = False
        self.error = error

    def fail(self, error: GatewayError) -> bytes:
        self.error = error
        return self._writer.write(Failed(error))

    def keepalive(self) -> bytes:
        return self._writer.keepalive()

    def partial(self) -> Partial | str:
        return self._text.partial(self.produced, bool(self.finishes))

    def splice(self, repeated: str) -> None:
        self.error = None
        part = self._open
        self.reader = ContinuedReader(self._new_reader(), repeated, part, self.produced)

    def restart(self) -> None:
        """The next bytes are those of another reply of the worker's, which goes on with this one."""
        self.error = None
        self.reader = self._new_reader()

    def conclude(self, usage: Usage) -> bytes:
        self.error = None
        events: list[Event] = []
        if not self.finishes:
            if self._open is not None:
                events.append(PartEnd(self._open.choice, self._open.index))
            events.append(Finish(self._open.choice if self._open is not None else 0, "length", "length"))
        if self.usage is None:
            events.append(UsageReport(usage))
        return self.end_by([*events, End()])
