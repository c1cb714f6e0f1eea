"""Streams whose text a guard sees before their client does: held back, shown to the guard in windows, and written on.

Nothing is taken back: text that the client has was allowed. If the reply fails, the text that is held is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from msgspec.structs import replace

from gateway.core.continuation import NO_TEXT, SentText
from gateway.core.errors import GatewayError
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartStart
from gateway.core.http import Headers
from gateway.core.messages import Citation, ServerCall
from gateway.core.ports import ServerToolWriter, StreamReader, StreamWriter
from gateway.translation.lanes import EventLane
from gateway.translation.texts import Replacements, Shown, called

_Item = Event | Callable[[], bytes]
Ask = Callable[[list[Shown], bool], None]
"""Called with the texts of a window, and whether the reply ends with it. `GuardedWriter.allowed` has the answer."""
_ITEM = 256
"""Bytes of memory that an event takes beside what it holds."""
_LONG = 1024
"""Characters. Shorter deltas are held as one, if they have nothing but text."""


class GuardedWriter:
    """Holds events back until they are allowed, and has `writer` write them then. Implements
    core.ports.ServerToolWriter.

    window   characters that are shown together; None: all of the reply
    overlap  characters at the end of a choice's text that stay held, and are shown again with the next window
    ended    the reply's end has come
    over     it was written
    """

    def __init__(self, writer: StreamWriter, window: int | None, overlap: int, ask: Ask) -> None:
        self.headers: Headers = writer.headers
        self.clean_end = writer.clean_end
        self.keepalive = writer.keepalive
        self.ended = self.over = False
        self._writer = writer
        self._window = window
        self._overlap = overlap
        self._ask = ask
        self._parts: dict[tuple[int, int], PartStart] = {}
        self._empty_calls: set[tuple[int, int]] = set()  # calls without arguments so far, which were not shown
        self._pending: list[_Item] = []
        self._bytes = 0  # that they take
        self._releasable: list[_Item] = []
        self._in_review = 0  # of those held, how many are before the guard
        # Their texts, each with the positions of its deltas, or of its end.
        self._reviewed_texts: list[tuple[Shown, list[int]]] = []
        self._unreviewed = 0  # characters held that were not yet shown
        self._changed = False

    @property
    def buffered_bytes(self) -> int:
        return self._writer.buffered_bytes + self._bytes

    def write(self, event: Event) -> bytes:
        if type(event) is Failed:
            return self._writer.write(event)
        if type(event) is Delta:
            self._unreviewed += len(event.text)
            self._empty_calls.discard((event.choice, event.index))
            if self._window is None and self._lengthened(event):
                return b""
        elif type(event) is PartStart:
            self._parts[event.choice, event.index] = event
            if event.kind == "tool":
                self._empty_calls.add((event.choice, event.index))
        elif type(event) is End:
            self.ended = True
        self._pending.append(event)
        self._bytes += _bytes_of(event)
        self._show()
        return b""

    def _lengthened(self, event: Delta) -> bool:
        """Adds a text to the one that is held before it, if both are nothing but text: to write thousands of deltas at
        once would hold up the event loop."""
        before = self._pending[-1] if self._pending else None
        fits = (
            type(before) is Delta
            and len(before.text) < _LONG
            and (before.choice, before.index) == (event.choice, event.index)
            and not (before.tokens or event.tokens or event.last)
            and before.logprobs is event.logprobs is None
        )
        if fits:
            self._pending[-1] = replace(cast("Delta", before), text=cast("Delta", before).text + event.text)
            self._bytes += len(event.text)
        return fits

    def _show(self) -> None:
        """Shows what is held to the guard, if it is enough and nothing is before it."""
        if self._in_review or not (self.ended or (self._window is not None and self._unreviewed >= self._window)):
            return
        if not self._empty_calls and not any(type(event) is Delta and event.text for event in self._pending):
            self._releasable += self._pending
            self._pending, self._bytes = [], 0
            return
        self._in_review, self._unreviewed = len(self._pending), 0
        texts: dict[tuple[int, int], tuple[list[str], list[int]]] = {}
        for position, event in enumerate(self._pending):
            if type(event) is Delta:
                text, positions = texts.setdefault((event.choice, event.index), ([], []))
                text.append(event.text)
                positions.append(position)
            elif type(event) is PartEnd and (event.choice, event.index) in self._empty_calls:
                texts[event.choice, event.index] = [], [position]
        self._empty_calls -= texts.keys()
        parts = [(self._parts[key], *found) for key, found in texts.items()]
        self._reviewed_texts = [(_in_review(part, "".join(text)), positions) for part, text, positions in parts]
        self._ask([shown for shown, _ in self._reviewed_texts], self.ended)

    def allowed(self, texts: Replacements) -> None:
        """The guard allows the window that it was shown, with these texts in place of those that it had."""
        window: list[list[_Item]] = [[event] for event in self._pending[: self._in_review]]
        for (shown, positions), new in zip(self._reviewed_texts, texts, strict=True):
            if new is not None and new != shown.text:
                self._changed = True
                first, step = cast("Delta | PartEnd", self._pending[positions[0]]), self._overlap or len(new) or 1
                for position in positions:
                    window[position] = []
                # So short that they can be held back one by one.
                pieces = (new[at : at + step] for at in range(0, len(new), step))
                window[positions[0]] = [Delta(first.choice, first.index, piece) for piece in pieces]
                if type(first) is PartEnd:
                    window[positions[0]].append(first)
        free, held = self._divided([event for one in window for event in one])
        self._pending = [*held, *self._pending[self._in_review :]]
        self._releasable += free
        self._in_review = 0
        self._bytes = sum(map(_bytes_of, self._pending))
        self._show()

    def _divided(self, events: Sequence[_Item]) -> tuple[list[_Item], list[_Item]]:
        """(the events of a window that are free, those that stay): of each choice that goes on, those with its last
        `overlap` characters stay, unless it is the last window. Choices come side by side, so that what is behind one
        may be the text of another."""
        free: list[_Item] = []
        held: list[_Item] = []
        chars: dict[int, int] = {}  # of a choice, those that stay
        stay = set()
        for position in range(len(events) - 1, -1, -1):
            event = events[position]
            if type(event) is End:
                return list(events), held
            choice = getattr(event, "choice", None)
            if choice is None:
                continue
            if type(event) is Finish:
                chars[choice] = self._overlap
            if chars.setdefault(choice, 0) < self._overlap:
                stay.add(position)
                chars[choice] += len(event.text) if type(event) is Delta else 0
        for position, event in enumerate(events):
            stays = position in stay if hasattr(event, "choice") else bool(held)
            (held if stays else free).append(event)
        return free, held

    def take(self) -> bytes:
        """The bytes of events that are free. Raises GatewayError as `StreamWriter.write` does."""
        free, self._releasable = self._releasable, []
        out = []
        for event in free:
            out.append(event() if callable(event) else self._writer.write(event))
            self.over = self.over or type(event) is End
        return b"".join(out)

    # -- tools that the gateway runs: their events keep their order -------------------------------------------------

    def called(self, call: ServerCall) -> bytes:
        return self._in_order(partial(self._tool_writer.called, call))

    def returned(self, call: ServerCall) -> bytes:
        return self._in_order(partial(self._tool_writer.returned, call))

    def cite(self, index: int, citations: Sequence[Citation]) -> None:
        def cite() -> bytes:
            if not self._changed:  # their spans would be others
                self._tool_writer.cite(index, citations)
            return b""

        self._pending.append(cite)

    def _in_order(self, write: Callable[[], bytes]) -> bytes:
        (self._pending if self._pending else self._releasable).append(write)
        return self.take()

    @property
    def _tool_writer(self) -> ServerToolWriter:
        return cast("ServerToolWriter", self._writer)  # no other dialect's requests have such tools


def _in_review(part: PartStart, text: str) -> Shown:
    if part.kind == "tool":
        return called(part.name, text, choice=part.choice)
    return Shown("assistant", text, part.kind, part.name, part.choice)


def _bytes_of(item: _Item) -> int:
    """The memory that it takes, about. The log probabilities of a token have some hundred times its text."""
    if type(item) is not Delta:
        return _ITEM
    logprobs = 0 if item.logprobs is None else memoryview(item.logprobs).nbytes
    return _ITEM + len(item.text) + 8 * len(item.tokens) + logprobs


class GuardedLane(EventLane):
    """A lane whose writer waits for a guard: feed it b"" once there was an answer. It is done once the reply's end was
    allowed, and `eof` may come before that."""

    def __init__(
        self,
        reader: Callable[[], StreamReader],
        writer: GuardedWriter,
        max_buffered_bytes: int,
        text: SentText = NO_TEXT,
    ) -> None:
        super().__init__(reader, writer, max_buffered_bytes, text)
        self.guarded = writer

    def feed(self, block: bytes) -> bytes:
        if block:
            super().feed(block)
        return self._allowed()

    def eof(self) -> bytes:
        if not self.guarded.ended:
            super().eof()
        return self._allowed()

    def _allowed(self) -> bytes:
        if self.error is not None:
            return b""
        try:
            out = self.guarded.take()
        except GatewayError as error:
            self._refused(error)
            return b""
        self.done = self.guarded.over
        return out

    def _note(self, event: Event) -> bool:
        return type(event) is End or super()._note(event)


def event_lane(
    reader: Callable[[], StreamReader], writer: StreamWriter, max_buffered_bytes: int, text: SentText
) -> EventLane:
    if isinstance(writer, GuardedWriter):
        return GuardedLane(reader, writer, max_buffered_bytes, text)
    return EventLane(reader, writer, max_buffered_bytes, text)
