"""Keeps the reply that a dialect writes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from gateway.core.events import Delta, End, Event, Finish
from gateway.core.http import Response
from gateway.core.lifecycle import Embeddings, Reply, WholeReply, fold
from gateway.core.messages import Generate, Op
from gateway.core.ports import Dialect, StreamWriter
from gateway.features.reply_cache.entries import Entries
from gateway.translation.tee import TeeDialect, TeeWriter
from gateway.wire.json import encode

_EVENT = 256
"""Bytes of memory that an event takes beside what it holds."""
_LONG = 1024
"""Characters. Shorter deltas are held as one, if they have nothing but text."""


decode_reply: Callable[[bytes], Reply] = msgspec.json.Decoder(Reply).decode
decode_embeddings: Callable[[bytes], Embeddings] = msgspec.json.Decoder(Embeddings).decode


class Recording(TeeDialect):
    """A dialect that keeps a reply which it writes. give_up: called once it is known that the reply is not kept."""

    def __init__(self, dialect: Dialect, entries: Entries, give_up: Callable[[], None]) -> None:
        super().__init__(dialect)
        self._entries = entries
        self.give_up = give_up
        self._bytes = 0  # of events that are held
        self._whole: bytes | None = None
        self.stream: list[Event] | None = None

    def write(self, reply: WholeReply, op: Op) -> Response:
        filtered = isinstance(reply, Reply) and any(one.reason == "content_filter" for one in reply.choices)
        if isinstance(reply, Reply | Embeddings) and not filtered:
            self._whole = encode(reply)  # the dialect may change it
        return self._dialect.write(reply, op)

    def writer(self, op: Generate) -> StreamWriter:
        return _Writer(self._dialect.writer(op), self)

    def entry(self, status: int) -> bytes | None:
        """The reply, if it came to its end; status: that of the client's reply, by which a whole one did."""
        if self.stream is not None:
            return encode(fold(self.stream))
        return self._whole if status == 200 else None

    def take(self, size: int) -> bool:
        """Takes room for an event. Returns whether there was enough."""
        fits = self._bytes + size <= self._entries.max_entry_bytes and self._entries.take(size)
        if fits:
            self._bytes += size
        return fits

    def close(self) -> None:
        """Lets go of all that is held. Idempotent."""
        self._entries.give_back(self._bytes)
        self._bytes, self.stream, self._whole = 0, None, None


class _Writer(TeeWriter):
    """Keeps the events of one stream."""

    def __init__(self, writer: StreamWriter, recording: Recording) -> None:
        super().__init__(writer)
        self._recording = recording
        self._events: list[Event] | None = []

    def take(self, event: Event) -> None:
        if self._events is not None and not self._add(self._events, event):
            self._events = None
            self._recording.give_up()

    def _add(self, events: list[Event], event: Event) -> bool:
        """Keeps an event. Returns whether the reply may still be kept."""
        if type(event) is Finish and event.reason == "content_filter":
            return False
        size, longer = _EVENT, None
        if type(event) is Delta:
            size += len(event.text) + 8 * len(event.tokens)
            size += 0 if event.logprobs is None else memoryview(event.logprobs).nbytes
            longer = _longer(events[-1], event)
        if not self._recording.take(size if longer is None else len(event.text)):  # type: ignore[union-attr]
            return False
        if longer is None:
            events.append(event)
        else:
            events[-1] = longer
        if type(event) is End:
            self._recording.stream = events
        return True


def _longer(before: Event, event: Delta) -> Delta | None:
    """Both as one, if they are nothing but text; else None."""
    if type(before) is not Delta or len(before.text) >= _LONG:
        return None
    bare = not (before.tokens or event.tokens) and before.logprobs is event.logprobs is None
    same = (before.choice, before.index) == (event.choice, event.index)
    return replace(before, text=before.text + event.text, last=event.last) if bare and same else None
