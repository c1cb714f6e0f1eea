"""A whole reply as the events of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Raw

from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartStart, UsageReport
from gateway.core.lifecycle import Reply, ReplyPart

_PIECE = 256
"""Characters of a text that come together, unless it has tokens: guards see a stream in windows."""


class Replayed:
    """A stream that comes as one block. Implements core.ports.StreamReader."""

    buffered_bytes = 0

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def feed(self, block: bytes) -> Iterable[Event]:
        return events_of(self._reply)

    def eof(self) -> Iterable[Event]:
        return ()


def events_of(reply: Reply) -> Iterator[Event]:
    """The events that `core.lifecycle.fold` makes the reply of."""
    yield reply.start
    for choice in reply.choices:
        for index, part in enumerate(choice.parts):
            yield PartStart(choice.index, index, part.kind, part.call_id, part.name)
            yield from _deltas(choice.index, index, part)
            yield PartEnd(choice.index, index)
        yield Finish(
            choice.index, choice.reason, choice.raw_reason, choice.stop_sequence, choice.extra, choice.end_token
        )
    if reply.usage is not None:
        yield UsageReport(reply.usage)
    yield End()


def _deltas(choice: int, index: int, part: ReplyPart) -> Iterator[Delta]:
    if part.tokens or part.logprobs:
        yield Delta(choice, index, part.text, part.tokens, _joined(part.logprobs))
        return
    for begin in range(0, len(part.text), _PIECE):
        yield Delta(choice, index, part.text[begin : begin + _PIECE])


def _joined(lists: Sequence[Raw]) -> Raw | None:
    """One JSON array of the items of several; None for none."""
    if not lists:
        return None
    items = [inner for one in lists if (inner := bytes(one).strip()[1:-1].strip())]
    return Raw(b"[" + b",".join(items) + b"]")
