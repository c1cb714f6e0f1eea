"""The policies that remember nothing of what they sent. They pick by work, at random, or in turn."""

from __future__ import annotations

import random
from collections.abc import Sequence

from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.pick.policy import PickPolicy
from gateway.fleet.worker import Worker


def least_loaded(workers: Sequence[Worker], now: float, routing: RoutingFacts) -> Worker:
    """The worker that would have the fewest tokens in flight with this request, for its strength. Among equals, the one
    whose last turn is longest ago."""
    own = routing.prompt + routing.output or 1
    return min(workers, key=lambda worker: ((worker.load() + own) / worker.strength(now), worker.turn))


class LeastTokens(PickPolicy):
    """The worker with the fewest tokens, ours in flight and others' in the engine, for its weight."""

    name = "least_tokens"
    needs = "tokens"

    def pick(self, workers: Sequence[Worker], now: float, routing: RoutingFacts) -> Worker:
        routing.why = "load"
        return least_loaded(workers, now, routing)


class LeastBusy(PickPolicy):
    """The worker with the fewest of our requests in flight for its weight. A worker in slow start counts as busier than
    it is. Among equals, the one whose last turn is longest ago."""

    name = "least_busy"

    def pick(self, workers: Sequence[Worker], now: float, routing: RoutingFacts) -> Worker:
        routing.why = "load"
        return min(workers, key=lambda worker: ((worker.in_flight + 1) / worker.strength(now), worker.turn))


class PowerOfTwo(LeastBusy):
    """The less busy of two workers drawn at random. So gateways that share no state do not all choose the same idle
    worker."""

    name = "power_of_two"

    def __init__(self) -> None:
        self._random = random.Random()  # not a secret

    def pick(self, workers: Sequence[Worker], now: float, routing: RoutingFacts) -> Worker:
        return super().pick(self._random.sample(workers, 2) if len(workers) > 2 else workers, now, routing)


class RoundRobin(PickPolicy):
    """Each worker in turn, whatever its load; one of weight 2 twice as often. A worker in slow start skips turns, so
    that it gets its share only."""

    name = "round_robin"

    def pick(self, workers: Sequence[Worker], now: float, routing: RoutingFacts) -> Worker:
        routing.why = "turn"
        total = sum([worker.strength(now) for worker in workers])
        return min(workers, key=lambda worker: worker.turn + total / worker.strength(now))
