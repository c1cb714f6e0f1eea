"""Clients that leave before the first byte, as evidence of an engine that hangs.

A client that leaves says little: it may have no patience. Clients that leave one worker, one after the other, while
the model's other workers answer such requests in that time, say much: chance alone explains it less with each of them.
So a departure weighs as much as it is unlikely at the others. In an overloaded fleet clients leave all workers, so each
departure weighs next to nothing.

Like is compared with like. A departure is compared with requests of the same operation, streamed or not, that are as
large, without what the cache spares, and ask for as much output. Another request that is under way and larger than any
that the others have answered is an excuse: its prompt may keep the engine busy. Any answer of the worker ends the
count.

There is no clock here: each call is given the time, in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from math import log
from typing import Any, NamedTuple

from gateway.core.routing_facts import RoutingFacts

LEAST = 5
"""Departures in a row, the fewest that make a worker suspect."""
PROOF = -log(1e-4)
"""The sum of their weights that does: by chance, with each by itself, they would be one in ten thousand."""
WINDOW_S = 120.0
"""Seconds for which a wait is compared with others, and after which a prompt of unknown length excuses nothing."""
HALF_LIFE_S = 30.0
ORDINARY = 0.1
"""The share of clients that may leave any worker. Above it the fleet is overloaded, or too slow for its clients, and no
departure weighs anything."""
RARE = 0.2
"""Above such a chance, by like requests alone, a departure weighs nothing; so it does with fewer than four of them."""
CLEARLY = 0.5
"""Others must have answered in this share of the time that the client waited."""
TIMES = 2.0
"""Times what others took, a large prompt may keep an engine busy."""
_REMEMBERED = 256
"""The newest waits, with which a departure is compared."""
_ALIKE = 0.5
"""A request counts as large as one of so much more."""


class Wait(NamedTuple):
    """A client's wait for the first byte. like: operation, and whether it is a stream; output: tokens asked of a reply
    that comes whole, infinite if unbounded, and 0 for a stream; size: bytes of the prompt."""

    worker: Hashable
    like: Hashable
    size: float
    output: float
    seconds: float
    answered: bool
    at: float


class _Row:
    """Departures of one worker in a row: since its last answer."""

    __slots__ = ("count", "last", "since", "telling", "weight")

    def __init__(self, since: float) -> None:
        self.since = self.last = since
        self.count = self.telling = 0
        self.weight = 0.0


class Departures:
    """The waits of one model's requests at its workers."""

    def __init__(self) -> None:
        self._waits: deque[Wait] = deque(maxlen=_REMEMBERED)
        self._rows: dict[Hashable, _Row] = {}
        self._under_way: dict[Hashable, dict[int, tuple[RoutingFacts, float]]] = {}
        self._blocked: dict[Hashable, tuple[float, float]] = {}
        self._answered = self._left = self._counted_at = 0.0

    # -- requests that are under way --------------------------------------------------------------------------------

    def begin(self, worker: Hashable, routing: RoutingFacts, now: float) -> None:
        self._under_way.setdefault(worker, {})[id(routing)] = routing, now

    def end(self, worker: Hashable, routing: RoutingFacts) -> None:
        found = self._under_way.get(worker)
        if found is not None:
            found.pop(id(routing), None)
            if not found:
                del self._under_way[worker]

    # -- waits that have ended --------------------------------------------------------------------------------------

    def record(self, wait: Wait) -> float | None:
        """Records a wait. Returns since when, if its worker has become suspect by it: the first departure's begin."""
        self._waits.append(wait)
        row = self._rows.get(wait.worker)
        if wait.answered:
            faded = 0.5 ** ((wait.at - self._counted_at) / HALF_LIFE_S)
            self._answered, self._left = self._answered * faded + 1, self._left * faded
            self._counted_at = wait.at
            if row is not None:
                self._left += row.count
                self.forget(wait.worker)
            return None
        if row is None or wait.at - row.last > WINDOW_S:
            row = self._rows[wait.worker] = _Row(wait.at - wait.seconds)
        row.last = wait.at
        row.count += 1
        weight = self._weight(wait)
        if not weight:  # it may have taken long by right, and have kept others waiting
            self._blocked[wait.worker] = wait.size, wait.at
        elif not self._excused(wait):
            row.telling += 1
            row.weight += weight
        if row.telling < LEAST or row.weight < PROOF:
            return None
        self.forget(wait.worker)
        return row.since

    def keep(self, workers: Collection[Hashable]) -> None:
        """All other workers are gone."""
        by_worker: dict[Hashable, Any]
        for by_worker in (self._rows, self._blocked):
            for gone in by_worker.keys() - workers:
                del by_worker[gone]

    def forget(self, worker: Hashable) -> None:
        """The worker has shown that it answers, or is suspect: the count begins at zero."""
        self._rows.pop(worker, None)

    def _weight(self, wait: Wait) -> float:
        """The negative logarithm of the chance that a client would have got nothing from another worker in that time; 0
        if that is not rare."""
        left = self._left + sum(row.count for worker, row in self._rows.items() if worker != wait.worker)
        if left > ORDINARY * (left + self._answered):
            return 0.0
        compared = answered = 0
        for other in reversed(self._waits):
            if other.worker == wait.worker or other.like != wait.like:
                continue
            if wait.at - other.at > WINDOW_S:
                break
            if other.size >= _ALIKE * wait.size and other.output >= _ALIKE * wait.output:
                compared += 1
                answered += other.answered and other.seconds <= CLEARLY * wait.seconds
        chance = 1 - answered / (compared + 1)
        return -log(chance) if chance <= RARE else 0.0

    def _excused(self, wait: Wait) -> bool:
        """Whether the worker may have been at work on a much larger prompt, as far as others' times show."""
        if wait.at - wait.seconds < self._blocked.get(wait.worker, (0.0, 0.0))[1] and self._larger(
            self._blocked[wait.worker][0], wait
        ):
            return True
        under_way = self._under_way.get(wait.worker, {}).values()
        return any(
            self._larger(size := size_of(routing), wait) and wait.at - since < self._may_take(size, wait)
            for routing, since in under_way
        )

    def _larger(self, size: float, wait: Wait) -> bool:
        return size * _ALIKE > wait.size

    def _may_take(self, size: float, wait: Wait) -> float:
        """Seconds for which a prompt of this size may keep an engine busy."""
        taken = [
            one.seconds
            for one in self._waits
            if one.answered and one.worker != wait.worker and one.size >= _ALIKE * size
        ]
        return TIMES * max(taken) if taken else WINDOW_S


def size_of(routing: RoutingFacts) -> float:
    """Bytes of a request's prompt, without the share that its worker is believed to have in its cache."""
    prompt = routing.prompt
    if not prompt or not routing.saved:
        return routing.size
    return routing.size * (1 - min(1.0, routing.saved / prompt))
