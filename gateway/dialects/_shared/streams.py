"""The base of the writers of streams that are not OpenAI's chunks."""

from __future__ import annotations

from gateway.core.errors import GatewayError
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.http import Headers
from gateway.core.usage import Usage
from gateway.wire import sse

PIECE = 64
"""About how many bytes of memory a piece of text takes in addition to its characters."""


class EventWriter:
    """Canonical events to one client's stream, server-sent events by default. Implements core.ports.StreamWriter.

    A dialect's `write` handles deltas itself, as most events are deltas. It passes all other events to `other`, which
    calls the hook of each. A hook that a dialect does not override writes nothing.

    usage   the last usage that the worker reported
    finish  the end of the last choice that ended
    """

    headers: Headers = sse.HEADERS
    clean_end = False

    def __init__(self) -> None:
        self.buffered_bytes = 0
        self.usage: Usage | None = None
        self.finish = Finish(0, "stop", "stop")

    def keepalive(self) -> bytes:
        return sse.KEEPALIVE

    def other(self, event: Event) -> bytes:
        match event:
            case PartStart():
                return self.part_started(event)
            case PartEnd():
                return self.part_ended(event)
            case Start():
                return self.started(event)
            case Finish():
                self.finish = event
                return self.finished(event)
            case UsageReport():
                self.usage = event.usage
                return self.used(event.usage)
            case End():
                return self.ended()
            case Failed():
                return self.failed(event.error)
            case Delta():
                raise TypeError("`write` handles deltas")

    def started(self, event: Start) -> bytes:
        return b""

    def part_started(self, event: PartStart) -> bytes:
        return b""

    def part_ended(self, event: PartEnd) -> bytes:
        return b""

    def finished(self, event: Finish) -> bytes:
        return b""

    def used(self, usage: Usage) -> bytes:
        return b""

    def ended(self) -> bytes:
        """The bytes that end a complete stream."""
        raise NotImplementedError

    def failed(self, error: GatewayError) -> bytes:
        """The bytes that end a failed stream."""
        raise NotImplementedError


class WholeCallWriter(EventWriter):
    """The base for wires on which a call is one piece, written when the call is complete, and a refusal is text."""

    def __init__(self) -> None:
        super().__init__()
        # Choice and part -> the call's start and the pieces of its arguments.
        self._calls: dict[tuple[int, int], tuple[PartStart, list[str]]] = {}

    def part_started(self, event: PartStart) -> bytes:
        match event.kind:
            case "tool":
                self._calls[event.choice, event.index] = (event, [])
            case "thinking" | "text" | "refusal":
                self.text_started(event, event.kind == "thinking")
        return b""

    def text_started(self, event: PartStart, thinking: bool) -> None:
        """A part begins whose text is shown as it comes, if it is shown."""
        raise NotImplementedError

    def gather(self, event: Delta) -> bytes:
        """Keeps more of a call; a text of any other part is left out."""
        call = self._calls.get((event.choice, event.index))
        if call is not None:
            call[1].append(event.text)
            self.buffered_bytes += PIECE + len(event.text)
        return b""

    def part_ended(self, event: PartEnd) -> bytes:
        call = self._calls.pop((event.choice, event.index), None)
        if call is None:
            return b""
        start, pieces = call
        text = "".join(pieces)
        self.buffered_bytes -= PIECE * len(pieces) + len(text)
        return self.called(start, text)

    def called(self, start: PartStart, text: str) -> bytes:
        """The piece for a call; text: its arguments."""
        raise NotImplementedError
