"""Pick policies: which of the open workers takes the next request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.fleet.worker import Worker

PickPolicy = Callable[[Sequence[Worker], float], Worker]
"""(open workers, at least one; now) -> the worker to use."""


def least_busy(workers: Sequence[Worker], now: float) -> Worker:
    """The worker with the fewest of our requests in flight. A worker in slow start counts as busier than it is. Among
    equals, the one whose last turn is longest ago."""
    return min(workers, key=lambda worker: ((worker.in_flight + 1) / worker.breaker.share(now), worker.turn))


def round_robin(workers: Sequence[Worker], now: float) -> Worker:
    """Each worker in turn, whatever its load. A worker in slow start skips turns, so that it gets its share only."""
    count = len(workers)
    return min(workers, key=lambda worker: worker.turn + count / worker.breaker.share(now))


POLICIES: dict[str, PickPolicy] = {"least_busy": least_busy, "round_robin": round_robin}
