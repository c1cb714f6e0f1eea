"""LoRA adapters: the workers of a model that have loaded one, as a pool of their own."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.http import Headers
from gateway.core.messages import Op
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.pool import Pool
from gateway.fleet.worker import Worker


class AdapterPool:
    """Those workers of `pool` that have the adapter `name`. Implements core.ports.Pool; load, queue and breakers are
    those of `pool`.

    having  the workers that have loaded it; set by whoever asks them, who then calls `refit_waiting` of `pool`
    """

    def __init__(self, pool: Pool, name: str) -> None:
        self._pool = pool
        self._name = name
        self.having: frozenset[Worker] = frozenset()
        self.release = pool.release
        self.answered = pool.answered
        self.succeeded = pool.succeeded
        self.failed = pool.failed
        self.abandoned = pool.abandoned

    @property
    def ready(self) -> bool:
        return any(worker.serving for worker in self.having)

    @property
    def without_cache_events(self) -> None:
        """Only newer engines name the adapter of a block."""
        return None

    def routing(self, op: Op, headers: Headers) -> RoutingFacts:
        """An adapter changes what a prompt leaves in the cache: its prompts match no other's."""
        return self._pool.routing(op, headers, self._name)

    async def acquire(self, exclude: Sequence[Worker], priority: int, routing: RoutingFacts) -> Worker:
        return await self._pool.acquire(exclude, priority, routing, self._lacking)

    def try_acquire(self, exclude: Sequence[Worker], routing: RoutingFacts) -> Worker | None:
        return self._pool.try_acquire(self._without(exclude), routing)

    def borrow(self, exclude: Sequence[Worker]) -> Worker:
        return self._pool.borrow(self._without(exclude))

    def _lacking(self) -> frozenset[Worker]:
        return frozenset(self._pool.workers) - self.having

    def _without(self, exclude: Sequence[Worker]) -> list[Worker]:
        return [*exclude, *self._lacking()]
