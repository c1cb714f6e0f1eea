"""Picks each worker in turn."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.pick.policy import Forgetful
from gateway.fleet.worker import Worker


class RoundRobin(Forgetful):
    """Each worker in turn, whatever its load; one of weight 2 twice as often. A worker in slow start skips turns, so
    that it gets its share only."""

    name = "round_robin"
    needs = ""

    def pick(self, workers: Sequence[Worker], now: float, routing: RoutingFacts) -> Worker:
        routing.why = "turn"
        total = sum([worker.strength(now) for worker in workers])
        return min(workers, key=lambda worker: worker.turn + total / worker.strength(now))
