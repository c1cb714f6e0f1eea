"""How many requests a worker takes, learnt from its engine: it is full while requests wait in it."""

from __future__ import annotations

from math import ceil

from gateway.fleet.worker import EngineLoad, Worker

READINGS = 2
"""So many readings in a row must show that requests wait: a burst waits for a moment in an engine that has room."""


def learn(worker: Worker, load: EngineLoad) -> None:
    """Sets `worker.max_in_flight` by a new reading, where it learns.

    Full: what of ours the engine runs, and an eighth more, at least one, so that it always finds its next request. When
    nothing waits although we sent all that we may, a quarter more. When less than half of that is sent, no limit.
    """
    if not worker.learns:
        return
    limit = worker.max_in_flight
    if load.waiting > 0:
        worker.full_readings += 1
        if worker.full_readings >= READINGS:
            share = min(1.0, load.in_flight / (load.running + load.waiting))
            running = max(1, ceil(load.running * share))
            worker.max_in_flight = running + max(1, running // 8)
    else:
        worker.full_readings = 0
        if limit is not None and load.in_flight >= limit:
            worker.max_in_flight = limit + max(1, limit // 4)
        elif limit is not None and 2 * load.in_flight < limit:
            worker.max_in_flight = None
    _notify(worker, limit)


def forget(worker: Worker) -> None:
    """Drops a learned limit: the worker's engine reports no load any more."""
    if worker.learns:
        limit, worker.max_in_flight, worker.full_readings = worker.max_in_flight, None, 0
        _notify(worker, limit)


def _notify(worker: Worker, before: int | None) -> None:
    after = worker.max_in_flight
    if before is not None and (after is None or after > before):
        worker.freed()
