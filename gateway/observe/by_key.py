"""Sums by key for `/metrics`: of the keys that are used most, the others together.

The first keys that are used have series of their own. Once an hour those that are used most take the slots of those
that are hardly used. A series begins at 0 with its slot, and what came before stays in `other`, so that no counter of
a process ever falls: a series ends, or it grows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from heapq import nlargest
from operator import itemgetter

from msgspec import UNSET
from prometheus_client.core import Metric

from gateway.core.ports import RequestRecord
from gateway.observe.exposition import family

OTHER, NONE = "other", "none"
_EVERY_S = 3600.0
_WATCHED = 4096
"""Most keys without a slot whose requests are counted in an hour."""
_CLEARLY = 2
"""A key takes the slot of another one that made fewer than half as many requests: slots seldom change."""

_Whose = tuple[str, str]
"""(key, team)"""


class _Sums:
    __slots__ = ("cost", "input", "lately", "outcomes", "output", "refused")

    def __init__(self) -> None:
        self.outcomes = Counter[str]()
        self.refused = Counter[str]()
        self.input = self.output = self.cost = self.lately = 0


class ByKey:
    """most     keys that have series of their own; fewer from the next hour on where it was lowered
    settled  they keep their slots: other processes have series of the same names, and the sum would fall
    clock    returns seconds
    """

    def __init__(self, most: int, settled: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._settled = settled
        self._clock = clock
        self._next = clock() + _EVERY_S
        self._listed: dict[_Whose, _Sums] = {}
        self._rest: dict[_Whose, _Sums] = {}
        self._waiting: dict[_Whose, int] = {}

    def add(self, record: RequestRecord) -> None:
        whose = (record.key or NONE, record.team or NONE)
        sums = self._listed.get(whose) or self._unlisted(whose)
        sums.lately += 1
        sums.outcomes[record.outcome] += 1
        if record.outcome == "refused":
            sums.refused["request" if record.limit is None else "limit"] += 1
        if (usage := record.usage) is not None:
            sums.input += usage.input or 0
            sums.output += usage.output or 0
        if record.cost is not UNSET:
            sums.cost += record.cost

    def _unlisted(self, whose: _Whose) -> _Sums:
        if whose[0] == NONE:
            return self._rest.setdefault((NONE, NONE), _Sums())
        if len(self._listed) < self.most:
            return self._listed.setdefault(whose, _Sums())
        if whose in self._waiting or len(self._waiting) < _WATCHED:
            self._waiting[whose] = self._waiting.get(whose, 0) + 1
        return self._rest.setdefault((OTHER, OTHER), _Sums())

    def turn(self) -> None:
        """Once an hour: keys that are used more take slots. Call it now and then."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + _EVERY_S
        if not self._settled:
            least = sorted(self._listed, key=lambda whose: self._listed[whose].lately)
            for whose in least[: max(0, len(least) - self.most)]:
                del self._listed[whose]
            least = least[-self.most :]
            for (whose, requests), last in zip(
                nlargest(self.most, self._waiting.items(), key=itemgetter(1)), least, strict=False
            ):
                if requests <= _CLEARLY * self._listed[last].lately:
                    break
                del self._listed[last]
                self._listed[whose] = _Sums()
        for sums in self._listed.values():
            sums.lately = 0
        self._waiting.clear()

    def collect(self) -> Iterator[Metric]:
        every = [*self._rest.items(), *self._listed.items()]
        yield _family("requests", (((*whose, one), n) for whose, sums in every for one, n in sums.outcomes.items()))
        yield _family("refusals", (((*whose, one), n) for whose, sums in every for one, n in sums.refused.items()))
        directions = ("input", "output")
        yield _family("tokens", (((*whose, one), getattr(sums, one)) for whose, sums in every for one in directions))
        yield _family("cost_nano", ((whose, sums.cost) for whose, sums in every if sums.cost))


def _family(name: str, parts: Iterator[tuple[tuple[str, ...], int]]) -> Metric:
    """A key may have the name `other`: series with the same labels are one."""
    sums = Counter[tuple[str, ...]]()
    for labels, count in parts:
        sums[labels] += count
    return family(f"dragoman_key_{name}_total", sums.items())
