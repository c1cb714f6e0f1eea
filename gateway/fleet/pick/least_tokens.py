"""Picks the worker with the fewest tokens in flight."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.pick.policy import Forgetful
from gateway.fleet.worker import Worker


def least_loaded(workers: Sequence[Worker], now: float, routing: RoutingFacts) -> Worker:
    """The worker that would have the fewest tokens in flight with this request, for its strength. Among equals, the one
    whose last turn is longest ago."""
    own = routing.prompt + routing.output or 1
    return min(workers, key=lambda worker: ((worker.load() + own) / worker.strength(now), worker.turn))


class LeastTokens(Forgetful):
    """The worker with the fewest tokens, ours in flight and others' in the engine, for its weight."""

    name = "least_tokens"
    needs = "tokens"

    def pick(self, workers: Sequence[Worker], now: float, routing: RoutingFacts) -> Worker:
        routing.why = "load"
        return least_loaded(workers, now, routing)
