"""The workers among which a request is picked one. They are looked at now and then, so that a pick costs what it costs
in a small fleet, however many there are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from gateway.fleet.worker import Worker, is_open, open_workers

_PICKS = 8
"""Workers for each pick after which they are looked at again: at every pick in a fleet of fewer than twice as many."""
_AGE_S = 1.0
"""The same for a fleet with few requests."""
_FEW = 16
"""One of so many that were just looked at is found faster than its state."""


class Candidates:
    """The workers of a pool that a request may have, and what a policy made of them at the last look.

    A worker that opened since then is found at the next look. A policy checks whether its choice is still open.

    every      all workers of the pool
    workers    those that were open, and not excluded
    now        when the last pick was
    order      what the policy keeps until the next look
    retained   what it keeps beyond that, for as long as it finds right
    """

    __slots__ = ("_excluded", "_just_looked", "_left", "_until", "every", "now", "order", "retained", "workers")

    def __init__(self, every: Sequence[Worker], excluded: Collection[Worker]) -> None:
        self.every = every
        self._excluded = excluded
        self.now = 0.0
        self._left = 0
        self._until = 0.0
        self._just_looked = False
        self.workers: list[Worker] = []
        self.order: Any = None
        self.retained: Any = None

    def count_pick(self, now: float) -> bool:
        """A pick begins: looks at the workers if that is due. Returns whether it did."""
        self._left -= 1
        self.now = now
        self._just_looked = False
        due = self._left < 0 or now >= self._until
        if due:
            self.look(now)
        return due

    def has(self, worker: Worker) -> bool:
        """Whether the worker may be picked now."""
        if self._just_looked:
            return worker in self.workers
        return worker not in self._excluded and is_open(worker, self.now)

    @property
    def strengths(self) -> list[float]:
        """Those of `workers`."""
        now = self.now
        return [
            worker.weight if worker.breaker.returned_at is None else worker.strength(now) for worker in self.workers
        ]

    def look(self, now: float) -> None:
        workers = open_workers(self.every, now)
        if excluded := self._excluded:
            workers = [worker for worker in workers if worker not in excluded]
        self.workers = workers
        self._just_looked = len(workers) <= _FEW
        self.order = None
        self._left = len(self.every) // _PICKS - 1
        self._until = now + _AGE_S
