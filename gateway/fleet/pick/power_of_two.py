"""Picks the less busy of two workers drawn at random."""

from __future__ import annotations

import random
from collections.abc import Sequence

from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.pick.policy import Forgetful
from gateway.fleet.worker import Worker


class PowerOfTwo(Forgetful):
    """Picks from two workers drawn at random: the one with fewer of our requests for its weight. So gateways that share
    no state do not all choose the same idle worker."""

    name = "power_of_two"
    needs = ""

    def __init__(self) -> None:
        self._random = random.Random()  # not a secret

    def pick(self, workers: Sequence[Worker], now: float, routing: RoutingFacts) -> Worker:
        routing.why = "load"
        if len(workers) > 2:
            workers = self._random.sample(workers, 2)
        return min(workers, key=lambda worker: ((worker.in_flight + 1) / worker.strength(now), worker.turn))
