"""Text completions whose choices no single request can ask for: several requests, and one reply.

A worker takes one seed, and draws choice i with that seed plus i. So the choices of a list of seeds come by as many
requests as the list has runs that rise by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from gateway.core.events import Delta, End, Event, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.lifecycle import Reply
from gateway.core.messages import Complete
from gateway.core.ports import StreamReader
from gateway.core.usage import Usage


def runs(op: Complete) -> Sequence[Complete]:
    """The requests for the choices of `op`, in order; `op` alone if it can ask for all."""
    seeds = op.seeds
    begins = [index for index, seed in enumerate(seeds) if not index or seed != seeds[index - 1] + 1]
    if len(begins) < 2:
        return (op,)
    parts = [seeds[begin:end] for begin, end in zip(begins, [*begins[1:], len(seeds)], strict=True)]
    return [replace(op, n=len(part), seeds=part) for part in parts]


def joined(replies: Sequence[Reply]) -> Reply:
    """One reply with the choices of all, in order."""
    choices = [choice for reply in replies for choice in reply.choices]
    for index, choice in enumerate(choices):
        choice.index = index
    return replace(replies[0], choices=choices, usage=joined_usage([reply.usage for reply in replies]))


def joined_usage(usages: Sequence[Usage | None]) -> Usage | None:
    """The usage of a reply whose parts have these: the prompt counts once, as it does for several choices of one
    request. None if a part has none."""
    known = [usage for usage in usages if usage is not None]
    if len(known) < len(usages):
        return None
    outputs = [usage.output for usage in known]
    output = None if None in outputs else sum(count or 0 for count in outputs)
    reasoning = [usage.reasoning for usage in known]
    thought = None if None in reasoning else sum(count or 0 for count in reasoning)
    return replace(known[0], output=output, reasoning=thought)


class SeriesReader:
    """The streams of several requests, one after the other, as one reply. Implements core.ports.StreamReader.

    Choices have the numbers of the whole reply; its start is that of the first stream, its usage and its end come with
    the last one. A stream that ends before the worker's mark is the end of all. reader: makes that of one request
    """

    def __init__(self, reader: Callable[[Complete], StreamReader], series: Sequence[Complete]) -> None:
        self._reader = reader(series[0])
        self._make = reader
        self._series = series
        self._usages: list[Usage | None] = [None]
        self._before = 0  # choices of the streams before
        self._ended = False

    @property
    def buffered_bytes(self) -> int:
        return self._reader.buffered_bytes

    @property
    def _last(self) -> bool:
        return len(self._usages) == len(self._series)

    def feed(self, block: bytes) -> Iterable[Event]:
        return self._of_reply(self._reader.feed(block))

    def eof(self) -> Iterable[Event]:
        if not self._ended or self._last:
            return self._of_reply(self._reader.eof())
        asked = len(self._usages)
        self._before += self._series[asked - 1].n
        self._reader, self._ended = self._make(self._series[asked]), False
        self._usages.append(None)
        return ()

    def _of_reply(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            match event:
                case Delta() | PartStart() | PartEnd() | Finish():
                    yield replace(event, choice=event.choice + self._before)
                case Start():
                    if not self._before:
                        yield event
                case UsageReport():
                    self._usages[-1] = event.usage
                case End():
                    self._ended = True
                    if self._last:
                        usage = joined_usage(self._usages)
                        if usage is not None:
                            yield UsageReport(usage)
                        yield event
                case _:
                    yield event
