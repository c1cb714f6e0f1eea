"""LoRA adapters that workers have loaded, offered as models beside the model that they belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import httpx
from msgspec import Struct
from msgspec.structs import replace

from gateway.config import Config
from gateway.core.background import keep_running
from gateway.core.http import Headers
from gateway.core.messages import Op
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.pool import Pool
from gateway.fleet.served import Served
from gateway.fleet.worker import Worker

_MOST = 1_000
"""Adapters of one model that are offered, the first ones by name: what a worker says is bounded."""


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


class Offered(Struct):
    """An adapter that is served. pools: for those of its model, in the same order."""

    model: str
    pools: list[AdapterPool]

    def have(self, workers: frozenset[Worker]) -> bool:
        """Sets which workers have the adapter. Returns whether that has changed."""
        changed = any(pool.having != workers for pool in self.pools)
        for pool in self.pools:
            pool.having = workers
        return changed


class Offers(Protocol):
    """Serves adapters as models of their own."""

    def offered(self, model: str, adapter: str, pools: Sequence[AdapterPool]) -> None:
        """`adapter` of `model` is served from now on, by these pools: the first generates, a second one computes
        prompts."""
        ...

    def withdrawn(self, model: str, adapter: str) -> None:
        """No worker has `adapter` any more."""
        ...


class Adapters:
    """Of one configuration, for the models that have `adapters: true`.

    models  what is served, by name, adapters too
    pools   of a model
    client_of  makes the HTTP client for a model's workers; it is closed with this object
    ask     asks a worker of a model what it has loaded; must not raise
    renew   called with a model whose workers were asked: it calls `offer`
    offers  serves an adapter, or no longer
    """

    def __init__(
        self,
        config: Config,
        models: Mapping[str, Served],
        pools: Callable[[str], Sequence[Pool]],
        client_of: Callable[[str], httpx.AsyncClient],
        ask: Callable[[str, Worker, httpx.AsyncClient], Awaitable[None]],
        renew: Callable[[str], None],
        offers: Offers,
    ) -> None:
        self._interval_s = config.health.interval_s
        self._names = [name for name, options in config.models.items() if options.adapters]
        self._taken = frozenset(config.model_names)
        self._models = models
        self._pools = pools
        self._client_of = client_of
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._ask = ask
        self._renew = renew
        self._offers = offers
        self._offered: dict[str, Offered] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._names:
            self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        for client in self._clients.values():
            await client.aclose()

    async def look(self) -> None:
        """Asks every ready worker now."""
        for model in self._names:
            if model not in self._clients:
                self._clients[model] = self._client_of(model)
            client = self._clients[model]
            await asyncio.gather(*(self._ask(model, worker, client) for worker in self._workers(model) if worker.ready))
            self._renew(model)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            with keep_running("adapters"):
                await self.look()

    def offer(self, model: str) -> None:
        """Offers what the workers of `model` say now, but no name that the configuration or another model has."""
        if model not in self._names:
            return
        served = self._models[model]
        having: dict[str, set[Worker]] = {}
        for worker in self._workers(model):
            for adapter in worker.facts.adapters:
                having.setdefault(adapter, set()).add(worker)
        offered = self._offered
        free = (one for one in sorted(having) if one not in self._taken and self._model_of(one) in (None, model))
        wanted = [name for name, _ in zip(free, range(_MOST), strict=False)]
        changed = False
        for gone in [one for one in offered if self._model_of(one) == model and one not in having]:
            changed |= offered.pop(gone).have(frozenset())
            self._offers.withdrawn(model, gone)
        for adapter in wanted:
            if adapter not in offered:
                pools = [AdapterPool(pool, adapter) for pool in self._pools(model)]
                offered[adapter] = Offered(model, pools)
                self._offers.offered(model, adapter, pools)
            self._models[adapter].can = replace(served.can, upstream_model=adapter)
            changed |= offered[adapter].have(frozenset(having[adapter]))
        if changed:  # requests that wait for one of them may have another choice now
            for pool in self._pools(model):
                pool.refit_waiting()

    def _model_of(self, adapter: str) -> str | None:
        offered = self._offered.get(adapter)
        return None if offered is None else offered.model

    def _workers(self, model: str) -> list[Worker]:
        return [worker for pool in self._pools(model) for worker in pool.workers]
