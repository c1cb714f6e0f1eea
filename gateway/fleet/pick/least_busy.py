"""Picks the worker with the fewest of our requests in flight."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.pick.policy import Forgetful
from gateway.fleet.worker import Worker


class LeastBusy(Forgetful):
    """The worker with the fewest of our requests in flight for its weight. A worker in slow start counts as busier than
    it is. Among equals, the one whose last turn is longest ago."""

    name = "least_busy"
    needs = ""

    def pick(self, workers: Sequence[Worker], now: float, routing: RoutingFacts) -> Worker:
        routing.why = "load"
        return min(workers, key=lambda worker: ((worker.in_flight + 1) / worker.strength(now), worker.turn))
