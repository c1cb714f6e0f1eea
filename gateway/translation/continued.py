"""A reply that another worker goes on with: its events, as if the first worker had sent them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from gateway.core.continuation import joined_usage, without_prefix
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.ports import StreamReader


class ContinuedReader(Struct):
    """Reads the stream of a worker that goes on with a text. Leaves out what the client has already: the start of the
    reply, the start of its text, and what of the text comes again. The worker's choice, by whatever index, is the
    client's: only replies of one choice go on. Implements core.ports.StreamReader.

    part    the client's text, which is open; None if it has not begun
    before  output deltas that the client was sent
    """

    _reader: StreamReader
    _repeated: str
    _part: PartStart | None
    _before: int
    _again: int = 0
    # The difference between the client's index of a part and the worker's; None before the worker's first part.
    _shift: int | None = None

    @property
    def _choice(self) -> int:
        return self._part.choice if self._part is not None else 0

    @property
    def buffered_bytes(self) -> int:
        return self._reader.buffered_bytes

    def feed(self, block: bytes) -> Iterable[Event]:
        return self._joined(self._reader.feed(block))

    def eof(self) -> Iterable[Event]:
        return self._joined(self._reader.eof())

    def _joined(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            match event:
                case Start():
                    pass
                case Delta():
                    if self._repeated:
                        text, self._repeated = without_prefix(event.text, self._repeated)
                        if not text:
                            self._again += 1
                            continue
                        event = replace(event, text=text)
                    if self._shift or event.choice != self._choice:
                        event = replace(event, choice=self._choice, index=event.index + (self._shift or 0))
                    yield event
                case PartStart():
                    yield from self._begun(event)
                case PartEnd():
                    yield PartEnd(self._choice, event.index + (self._shift or 0))
                case Finish():
                    yield from self._closed()
                    yield replace(event, choice=self._choice)
                case UsageReport():
                    yield UsageReport(joined_usage(event.usage, self._before, self._again))
                case End() | Failed():
                    yield event

    def _begun(self, event: PartStart) -> Iterator[Event]:
        if event.kind == "thinking" and self._before:
            # The client was sent the text that this thinking should have come before.
            message = "the reply could not be continued: the other worker began with its thinking"
            yield Failed(GatewayError(Kind.UPSTREAM, message))
            return
        if self._shift is None and self._part is not None and event.kind == "text":
            self._shift = self._part.index - event.index
            return
        yield from self._closed()
        self._repeated = ""
        assert self._shift is not None
        yield replace(event, choice=self._choice, index=event.index + self._shift)

    def _closed(self) -> Iterator[Event]:
        """Ends the client's text, if the worker has nothing to add to it."""
        if self._shift is None:
            self._shift = 0
            if self._part is not None:
                self._shift = self._part.index + 1
                yield PartEnd(self._part.choice, self._part.index)
