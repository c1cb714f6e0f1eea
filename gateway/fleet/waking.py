"""How long a model takes from the first request that finds no worker to the first worker that serves."""

from __future__ import annotations

from collections import deque
from statistics import median

_REMEMBERED = 5
"""Loads: the middle one of them is expected, so that one outage among them does not count."""
_SHORTEST_S, LONGEST_S = 1.0, 600.0
_LATE_S = 60.0
"""Longest wait of a client while a load is late, or the first one is not over: nobody knows when it will be."""


class Waking:
    """The loads of one model's workers. Times are seconds of one monotonic clock.

    since  when the first request found no worker; None while one serves, and before a request came
    took   how long the last loads took
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.took: deque[float] = deque(maxlen=_REMEMBERED)

    def asked(self, now: float) -> None:
        """A request has found no worker. An autoscaler orders one."""
        if self.since is None:
            self.since = now

    def served(self, now: float) -> None:
        """A worker serves."""
        if self.since is not None:
            self.took.append(now - self.since)
            self.since = None

    def left(self, now: float) -> float:
        """Seconds after which a client shall come back: what is left of the expected load; of one that is late, as
        long as it is late."""
        passed = now - self.since if self.since is not None else 0.0
        left = (median(self.took) if self.took else 0.0) - passed
        return min(max(left if left > 0 else min(-left, _LATE_S), _SHORTEST_S), LONGEST_S)
