"""The home of a conversation: consistent hashing, the same in every gateway.

Workers have points on a ring, as many as their weights are. The home of a key is the worker of the first point behind
it, unless that worker passes the key on to the next point. A worker that had more than its part of the recent work
passes keys on until it has caught up; it keeps

    share(w) = 1 - (recent(w) - mean) / (SPREAD * mean + SLACK), at least LEAST and at most 1

with recent(w) for a worker's recent work, divided by its weight. As little moves as the shares differ: if a share falls
by a tenth, a tenth of that worker's keys goes to others, and returns when the share does. So gateways that share
nothing look for most conversations at the same worker although each reads the engines at its own time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import shake_128
from math import floor, log, log2
from struct import unpack

from gateway.fleet.candidates import Candidates
from gateway.fleet.worker import HALF_LIFE_S, Worker

SPREAD = 0.15
"""A worker with so much more of the recent work than the mean, as a share of it, gets the fewest keys."""
SLACK = 16_384
"""Tokens more, because a few long conversations are not a trend."""
LEAST = 1 / 64
"""The smallest share of a worker."""
POINTS = 256
"""For each worker: the keys of equal ones differ by about a sixteenth."""
WALK = 32
"""Points that are looked at."""
FEW = 8
"""Fewer workers than one of so many are compared with each other: the ring would be long in coming to one."""
_RINGS = 4
_LAST_S = 0.02
_LAST_LOOKS = 8
"""Seconds, and looks at the workers, for which the mean of the recent work stands: it changes slowly."""
_ALL = (1 << 64) - 1
_UNIT = 2.0**-53
_NUMBERS = (1 << 32) - 1


class Ring:
    """The points of some workers.

    points   32 bits each, in their order
    numbers  of the worker of each point
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers
        self._weights = [worker.weight for worker in workers]
        heaviest = 2.0 ** floor(log2(max(self._weights)))
        points: list[int] = []
        for number, worker in enumerate(workers):
            count = max(1, round(POINTS * worker.weight / heaviest))
            drawn = unpack(f">{count}I", shake_128(worker.address.encode()).digest(4 * count))
            points += [point << 32 | number for point in drawn]
        points.sort()
        self.points = array("I", [point >> 32 for point in points])
        self.numbers = array("I", [point & _NUMBERS for point in points])

    def is_of(self, workers: Sequence[Worker]) -> bool:
        return self.workers == workers and self._weights == [worker.weight for worker in workers]


class Shares:
    """The shares of candidates. During a slow start all are whole but for those that return: the others have had more
    work because these were away.

    sent      the work that this gateway sent lately; None if all engines report theirs
    strength  of all candidates together
    """

    def __init__(self, candidates: Candidates, ring: Ring, sent: Mapping[Worker, float] | None) -> None:
        self.candidates = candidates
        self.ring = ring
        self.strength = sum(candidates.strengths)
        self._sent = sent
        self._of = candidates.workers
        self._until = candidates.now + _LAST_S
        self._left = _LAST_LOOKS
        returned = [one.breaker.returned_at is not None for one in candidates.workers]
        # Nobody's is whole if all return together.
        self._slow = max([self._grown(one) for one in candidates.workers]) if True in returned else 0.0
        self._mean = sum(map(self._recent, candidates.workers)) / self.strength
        self._scale = 1 / (SPREAD * self._mean + SLACK)

    def stand(self) -> bool:
        """Whether they stand for one more look at the workers: for a while, if these are the same."""
        self._left -= 1
        return self._left > 0 and self.candidates.now < self._until and self.candidates.workers == self._of

    def _recent(self, worker: Worker) -> float:
        return (worker.recent or 0.0) if self._sent is None else self._sent.get(worker, 0.0)

    def _grown(self, worker: Worker) -> float:
        """The shares of many that return together add up."""
        breaker = worker.breaker
        return 1.0 if breaker.returned_at is None else breaker.share(self.candidates.now) ** 2

    def of(self, worker: Worker, lasting: bool = False) -> float:
        """lasting: whatever it had to do."""
        if self._slow or lasting:
            return self._grown(worker) / (self._slow or 1.0)
        return max(LEAST, 1.0 - (self._recent(worker) / worker.weight - self._mean) * self._scale)


class ConsistentHashing:
    """See the module. `sent` and `keep` are as those of pick policies."""

    def __init__(self) -> None:
        # The recent work of each worker in tokens, halved every HALF_LIFE_S, and when it was halved last.
        self._recent: dict[Worker, float] = {}
        self._halved = 0.0
        self._rings: list[Ring] = []

    def sent(self, worker: Worker, tokens: int) -> None:
        """`worker` was sent so much work."""
        self._recent[worker] = self._recent.get(worker, 0.0) + tokens

    def keep(self, workers: Sequence[Worker]) -> None:
        self._recent = {worker: self._recent[worker] for worker in workers if worker in self._recent}

    def shares(self, candidates: Candidates, now: float) -> Shares:
        """The shares of workers that were just looked at, of which there is at least one."""
        # All gateways read the same work from the engines; these reports count if all engines make them.
        if None not in [worker.recent for worker in candidates.workers]:
            return Shares(candidates, self._ring(candidates.every), None)
        if now >= self._halved + HALF_LIFE_S:
            part = 0.5 ** ((now - self._halved) // HALF_LIFE_S)
            self._recent = {worker: work * part for worker, work in self._recent.items()}
            self._halved = now
        return Shares(candidates, self._ring(candidates.every), self._recent)

    def _ring(self, workers: Sequence[Worker]) -> Ring:
        for ring in self._rings:
            if ring.workers is workers:
                return ring
        ring = next((ring for ring in self._rings if ring.is_of(workers)), None) or Ring(workers)
        ring.workers = workers
        self._rings = [ring, *(other for other in self._rings if other is not ring)][:_RINGS]
        return ring


Fits = Callable[[Worker], bool]


def worker_of(key: int, shares: Shares, fits: Fits, *, lasting: bool = False) -> Worker | None:
    """The home of `key` among the workers that fit; None if hardly any does. When a worker comes or goes, only the
    keys that it gets or had move. A worker in slow start gets its keys back one after the other."""
    if len(shares.candidates.workers) * FEW < len(shares.ring.workers):
        return best_of(key, shares, shares.candidates.workers, fits)
    other, ring = None, shares.ring
    workers, numbers = ring.workers, ring.numbers
    first = bisect_left(ring.points, key >> 32) - len(numbers)
    for index in range(first, first + WALK):  # the first point comes behind the last one
        worker = workers[numbers[index]]
        if fits(worker):
            share = shares.of(worker, lasting)
            if share >= 1.0 or _draw(key, worker) < share:
                return worker
            other = other or worker
    return other


def best_of(key: int, shares: Shares, few: Iterable[Worker], fits: Fits) -> Worker | None:
    """The home of `key` among those of a few workers that fit: the ring would be long in coming to one."""
    return max(
        filter(fits, few),
        key=lambda worker: worker.weight * shares.of(worker) / -log(_draw(key, worker)),
        default=None,
    )


def _draw(key: int, worker: Worker) -> float:
    """A number between 0 and 1, the same in every gateway."""
    mixed = (key ^ worker.ring_hash) * 0x9E3779B97F4A7C15 & _ALL
    mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 & _ALL
    return (mixed >> 11 | 1) * _UNIT
