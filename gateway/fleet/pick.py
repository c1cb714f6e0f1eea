"""Which of the open workers takes the next request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.fleet.worker import Worker

PickPolicy = Callable[[Sequence[Worker], float], Worker]
"""(open workers, at least one; now) -> the one to use."""


def least_busy(workers: Sequence[Worker], now: float) -> Worker:
    """The fewest of our requests in flight, a returning worker counting as busier than it is; among equals the one
    that has waited longest for its turn."""
    return min(workers, key=lambda worker: ((worker.in_flight + 1) / worker.breaker.share(now), worker.turn))


def round_robin(workers: Sequence[Worker], now: float) -> Worker:
    """In turn, whatever their load; a returning worker misses turns, so that it has no more than its share."""
    count = len(workers)
    return min(workers, key=lambda worker: worker.turn + count / worker.breaker.share(now))


POLICIES: dict[str, PickPolicy] = {"least_busy": least_busy, "round_robin": round_robin}
