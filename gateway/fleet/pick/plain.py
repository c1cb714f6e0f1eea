"""The policies that remember nothing of what they sent. They pick by work, at random, or in turn."""

from __future__ import annotations

import random
from heapq import heapify, heappop, heapreplace
from itertools import count

from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.candidates import Candidates
from gateway.fleet.pick.policy import PickPolicy
from gateway.fleet.worker import Worker, is_open

_LATER = 1 << 62
Entry = tuple[float, int, int, float, Worker]
"""(rank, last turn, number, by how much the rank grows with a request, worker). Among equals, the one whose last turn
is longest ago comes first."""


def by_tokens(candidates: Candidates, routing: RoutingFacts) -> list[Entry]:
    """By the tokens in flight with such a request, for the worker's strength."""
    own = routing.prompt + routing.output or 1
    return [
        ((worker.tokens + worker.others + own) / strength, worker.turn, number, own / strength, worker)
        for number, worker, strength in zip(count(), candidates.workers, candidates.strengths)
    ]


def take(heap: list[Entry], now: float) -> Worker | None:
    """The first worker that is still open. It goes back to its new place."""
    while heap:
        rank, turn, number, stride, worker = heap[0]
        if is_open(worker, now):
            heapreplace(heap, (rank + stride, turn + _LATER, number, stride, worker))
            return worker
        heappop(heap)
    return None


class _InOrder(PickPolicy):
    """Takes workers in an order that is made at each look at them."""

    why = "load"

    def pick(self, candidates: Candidates, now: float, routing: RoutingFacts) -> Worker | None:
        routing.why = self.why
        heap: list[Entry] | None = candidates.order
        if heap is None:
            heap = candidates.order = self._order(candidates, routing)
            heapify(heap)
        return take(heap, now)

    def _order(self, candidates: Candidates, routing: RoutingFacts) -> list[Entry]:
        raise NotImplementedError


class LeastTokens(_InOrder):
    """The worker with the fewest tokens, ours in flight and others' in the engine, for its weight."""

    name = "least_tokens"
    needs = "tokens"

    def _order(self, candidates: Candidates, routing: RoutingFacts) -> list[Entry]:
        return by_tokens(candidates, routing)


class LeastBusy(_InOrder):
    """The worker with the fewest of our requests in flight for its weight. A worker in slow start counts as busier than
    it is."""

    name = "least_busy"

    def _order(self, candidates: Candidates, routing: RoutingFacts) -> list[Entry]:
        return [
            ((worker.in_flight + 1) / strength, worker.turn, number, 1 / strength, worker)
            for number, worker, strength in zip(count(), candidates.workers, candidates.strengths)
        ]


class RoundRobin(_InOrder):
    """Each worker in turn, whatever its load; one of weight 2 twice as often. A worker in slow start skips turns, so
    that it gets its share only."""

    name = "round_robin"
    why = "turn"

    def _order(self, candidates: Candidates, routing: RoutingFacts) -> list[Entry]:
        total = sum(candidates.strengths)
        return [
            (worker.turn + total / strength, 0, number, total / strength, worker)
            for number, worker, strength in zip(count(), candidates.workers, candidates.strengths)
        ]


class PowerOfTwo(PickPolicy):
    """The less busy of two workers drawn at random. So gateways that share no state do not all choose the same idle
    worker."""

    name = "power_of_two"

    def __init__(self) -> None:
        self._random = random.Random()  # not a secret

    def pick(self, candidates: Candidates, now: float, routing: RoutingFacts) -> Worker | None:
        routing.why = "load"
        workers = candidates.workers
        while workers:
            first = int(self._random.random() * len(workers))
            second = first - 1 - int(self._random.random() * (len(workers) - 1))  # another one, if there is one
            worker = min(
                workers[first], workers[second], key=lambda one: ((one.in_flight + 1) / one.strength(now), one.turn)
            )
            if is_open(worker, now):
                return worker
            workers.remove(worker)
        return None
