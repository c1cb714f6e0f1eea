"""Plain numbers that are added up while requests run and shown by `/metrics`.

All of them belong to one event loop: no locks, and nothing is formatted before it is asked for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Histogram:
    """How many values lie at or below each of `bounds`, which ascend, and above the last; `total` is the sum of all.

    counts     one more than there are bounds; each value is counted once, in its own bucket
    exemplars  (trace id, value, Unix seconds) of the last traced value, by the index of its bucket
    """

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, tuple[str, float, float]] = {}

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_all(self, values: list[float]) -> None:
        """As `add` for each of `values`, which are sorted in place: only the ends of buckets are looked for."""
        values.sort()
        self.total += sum(values)
        start = 0
        for index, bound in enumerate(self.bounds):
            end = bisect_right(values, bound, start)
            self.counts[index] += end - start
            start = end
        self.counts[-1] += len(values) - start

    def add_traced(self, value: float, trace: str, at: float) -> None:
        """As `add`; `trace` becomes the exemplar of the value's bucket. at: Unix seconds."""
        index = bisect_left(self.bounds, value)
        self.counts[index] += 1
        self.total += value
        self.exemplars[index] = (trace, value, at)


class ConnectionCounts:
    """Connections to one model's workers: how many were opened, and how many requests went out on one that was open
    already."""

    __slots__ = ("opened", "reused")

    def __init__(self) -> None:
        self.opened = 0
        self.reused = 0


class Silence(NamedTuple):
    """The silence of the replies that one worker owes; seconds of the monotonic clock.

    body_at  when a piece of a body came last; None if none of these replies has got one
    since    since when the most silent of the replies has been silent, from its last piece or its request
    """

    body_at: float | None
    since: float


def merged_silence(silences: Iterable[Silence | None]) -> Silence | None:
    """Several silences of one worker as one; None if it owes no reply."""
    found = [one for one in silences if one is not None]
    if not found:
        return None
    bodies = [one.body_at for one in found if one.body_at is not None]
    return Silence(max(bodies, default=None), min(one.since for one in found))


def milliseconds(seconds: float) -> float:
    """Seconds as records have them. The figure is cut to microseconds, which is cheaper than `round`."""
    return int(seconds * 1_000_000) / 1000
