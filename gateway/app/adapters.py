"""LoRA adapters that workers have loaded, offered as models beside the model that they belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import cast

import httpx
from msgspec.structs import replace

from gateway.config import Config
from gateway.core.rounds import going_on
from gateway.fleet.adapters import AdapterPool
from gateway.fleet.pool import Pool
from gateway.fleet.worker import Worker
from gateway.pipeline import ServedModel
from gateway.pipeline.mirror import Mirror
from gateway.pipeline.watch import Watchers

_MOST = 1_000
"""Adapters of one model that are offered, the first ones by name: what a worker says is bounded."""


class Adapters:
    """Of one configuration, for the models that have `adapters: true`.

    models  what is served by name: adapters are added to it and taken out
    fleet   the workers of a model
    client_of  makes the HTTP client for a model's workers; it is closed with this object
    ask     asks a worker of a model what it has loaded; must not raise
    renew   called with a model whose workers were asked: it calls `offer`
    told    called with (model, adapter, whether it is offered) when that changed
    """

    def __init__(
        self,
        config: Config,
        models: dict[str, ServedModel],
        fleet: Callable[[str], Iterable[Worker]],
        client_of: Callable[[str], httpx.AsyncClient],
        ask: Callable[[str, Worker, httpx.AsyncClient], Awaitable[None]],
        renew: Callable[[str], None],
        told: Callable[[str, str, bool], None],
    ) -> None:
        self._interval_s = config.health.interval_s
        self._names = [name for name, options in config.models.items() if options.adapters]
        self._taken = frozenset(config.model_names)
        self._models = models
        self._fleet = fleet
        self._client_of = client_of
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._ask = ask
        self._renew = renew
        self._told = told
        self._offered: dict[str, str] = {}
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
            await asyncio.gather(*(self._ask(model, worker, client) for worker in self._fleet(model) if worker.ready))
            self._renew(model)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            with going_on("adapters"):
                await self.look()

    def offer(self, model: str) -> None:
        """Offers what the workers of `model` say now, but no name that the configuration or another model has."""
        if model not in self._names:
            return
        served = self._models[model]
        having: dict[str, set[Worker]] = {}
        for worker in self._fleet(model):
            for adapter in worker.facts.adapters:
                having.setdefault(adapter, set()).add(worker)
        free = (one for one in sorted(having) if one not in self._taken and self._offered.get(one, model) == model)
        wanted = [name for name, _ in zip(free, range(_MOST), strict=False)]
        changed = False
        for gone in [one for one, base in self._offered.items() if base == model and one not in having]:
            changed |= _have(self._models[gone], frozenset())
            del self._offered[gone], self._models[gone]
            self._told(model, gone, False)
        for adapter in wanted:
            if adapter not in self._offered:
                self._offered[adapter] = model
                self._models[adapter] = _adapted(served, adapter)
                self._told(model, adapter, True)
            found = self._models[adapter]
            found.can = replace(served.can, upstream_model=adapter)
            changed |= _have(found, frozenset(having[adapter]))
        if changed:  # requests that wait for one of them may have another choice now
            for pool in _pools(served):
                if isinstance(pool, Pool):
                    pool.refit_waiting()


def _pools(model: ServedModel) -> tuple[object, ...]:
    return (model.pool,) if model.prefill is None else (model.pool, model.prefill.pool)


def _have(model: ServedModel, workers: frozenset[Worker]) -> bool:
    """Tells the pools of an adapter who has it. Whether that is news."""
    news = False
    for pool in _pools(model):
        if isinstance(pool, AdapterPool):
            news |= pool.having != workers
            pool.having = workers
    return news


def _adapted(served: ServedModel, adapter: str) -> ServedModel:
    """The model `served` with an adapter. Keys, limits and metrics take it for the model itself. Other models do not
    have it: none answers instead, none gets copies."""
    prefill = served.prefill
    if prefill is not None:
        prefill = replace(prefill, pool=AdapterPool(cast(Pool, prefill.pool), adapter))
    return replace(
        served,
        pool=AdapterPool(cast(Pool, served.pool), adapter),
        prefill=prefill,
        aliases=(),
        adapter=adapter,
        detours=None,
        watchers=Watchers(*(one for one in served.watchers.all if not isinstance(one, Mirror))),
        stages=(),
    )
