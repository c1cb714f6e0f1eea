"""The place of a conversation: weighted rendezvous hashing, the same in every gateway.

A worker that had more than its part of the recent work gets a smaller share of the places, until it has caught up:

    share(w) = 1 - (recent(w) - mean) / (SPREAD * mean + SLACK), at least LEAST and at most 1

with recent(w) for a worker's recent work, divided by its weight. As little moves as the shares differ: if a share falls
by a tenth, a tenth of that worker's places goes to others, and returns when the share does. So gateways that share
nothing look for most conversations at the same worker although each reads the engines at its own time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

from gateway.fleet.worker import HALF_LIFE_S, Worker

SPREAD = 0.15
"""A worker with so much more of the recent work than the mean, as a share of it, gets the fewest places."""
SLACK = 16_384
"""Tokens more, because a few long conversations are not a trend."""
LEAST = 1 / 64
"""The smallest share of a worker."""
_ALL = (1 << 64) - 1
_UNIT = 2.0**-53
_WHOLE: Mapping[Worker, float] = {}


class Places:
    """See the module. `sent` and `keep` are as those of pick policies."""

    def __init__(self) -> None:
        # The recent work of each worker in tokens, halved every HALF_LIFE_S, and when it was halved last.
        self._recent: dict[Worker, float] = {}
        self._halved = 0.0
        # The shares below 1, and the recent work that engines had reported when the shares were computed.
        self._shares: dict[Worker, float] = {}
        self._weighed: list[float] = []

    def sent(self, worker: Worker, tokens: int) -> None:
        """`worker` was sent so much work."""
        self._recent[worker] = self._recent.get(worker, 0.0) + tokens

    def keep(self, workers: Sequence[Worker]) -> None:
        self._recent = {worker: self._recent[worker] for worker in workers if worker in self._recent}
        self._weighed = []

    def lasting(self, workers: Sequence[Worker], key: int, now: float) -> Worker:
        """The place of `key` whatever the workers had to do. When a worker comes or goes, only the keys that it gets or
        had move. A worker in slow start gets its keys back one after the other."""
        return self._first(workers, key, now, _WHOLE)

    def of(self, workers: Sequence[Worker], key: int, now: float, among: Sequence[Worker] = ()) -> Worker:
        """The place of `key` while `workers` have the shares of the module; with `among`, its place among these of
        them. During a slow start all shares are whole: those that stayed have had more work because the others were
        away."""
        among = among or workers
        if any(worker.breaker.returned_at is not None for worker in workers):
            return self._first(among, key, now, _WHOLE)
        # All gateways read the same work from the engines; these reports count if all engines make them.
        loads = [worker.recent for worker in workers if worker.recent is not None]
        if len(loads) < len(workers):
            self._weighed, self._shares = [], self._weigh(workers, self._sent(workers, now))
        elif loads != self._weighed:
            self._weighed, self._shares = loads, self._weigh(workers, loads)
        return self._first(among, key, now, self._shares)

    @staticmethod
    def _first(workers: Sequence[Worker], key: int, now: float, shares: Mapping[Worker, float]) -> Worker:
        best, highest = workers[0], -1.0
        for worker in workers:
            mixed = (key ^ worker.place) * 0x9E3779B97F4A7C15 & _ALL
            mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 & _ALL
            strength = worker.weight
            if worker.breaker.returned_at is not None:
                strength = worker.strength(now) ** 2 / strength  # the shares of many that return together add up
            if worker in shares:
                strength *= shares[worker]
            score = strength / -log((mixed >> 11 | 1) * _UNIT)
            if score > highest:
                best, highest = worker, score
        return best

    def _sent(self, workers: Sequence[Worker], now: float) -> list[float]:
        """The work that this gateway sent to each worker lately."""
        if now >= self._halved + HALF_LIFE_S:
            part = 0.5 ** ((now - self._halved) // HALF_LIFE_S)
            self._recent = {worker: work * part for worker, work in self._recent.items()}
            self._halved = now
        return [self._recent.get(worker, 0.0) for worker in workers]

    @staticmethod
    def _weigh(workers: Sequence[Worker], recent: Sequence[float]) -> dict[Worker, float]:
        """The shares below 1 of workers that had so much work lately."""
        mean = sum(recent) / sum([worker.weight for worker in workers])
        shares = {}
        for worker, work in zip(workers, recent, strict=True):
            share = 1.0 - (work / worker.weight - mean) / (SPREAD * mean + SLACK)
            if share < 1.0:
                shares[worker] = max(LEAST, share)
        return shares
