"""LoRA adapters that workers have loaded, offered as models beside the model that they belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from gateway.background import cancel_tasks, keep_running
from gateway.config import Config
from gateway.core.errors import GatewayError
from gateway.core.figures import Silence
from gateway.core.http import Headers
from gateway.core.messages import Op
from gateway.core.ports import Capabilities
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.model_fleet import ModelFleet
from gateway.fleet.pool import Pool
from gateway.fleet.waiting import joined
from gateway.fleet.worker import Worker

_MOST = 1_000
"""Most adapters that are offered for one model, the first by name: a worker could report any number of them."""


class AdapterPool:
    """Those workers of `pool` that have the adapter `name`. Implements core.ports.Pool; load, queue and breakers are
    those of `pool`.

    having  the workers that have loaded it; code that changes it then calls `refit_waiting` of `pool`
    """

    def __init__(self, pool: Pool, name: str) -> None:
        self._pool = pool
        self._name = name
        self.having: frozenset[Worker] = frozenset()
        self._compared: tuple[object, object] = None, None
        self._lack: frozenset[Worker] = frozenset()
        self.release = pool.release
        self.answered = pool.answered
        self.succeeded = pool.succeeded
        self.failed = pool.failed
        self.abandoned = pool.abandoned
        self.waited = pool.waited

    @property
    def whole(self) -> Pool:
        """That of all workers of the model."""
        return self._pool

    @property
    def ready(self) -> bool:
        return any(worker.serving for worker in self.having)

    @property
    def suspects(self) -> Sequence[Worker]:
        return self._pool.suspects

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

    def may_serve(self, exclude: Sequence[Worker]) -> bool:
        return self._pool.may_serve(self._without(exclude))

    def _lacking(self) -> frozenset[Worker]:
        """The workers without it: the same object until they change, so that a request costs no step for each."""
        workers, having = self._pool.workers, self.having
        if self._compared[0] is not workers or self._compared[1] is not having:
            self._compared, self._lack = (workers, having), frozenset(workers) - having
        return self._lack

    def _without(self, exclude: Sequence[Worker]) -> frozenset[Worker]:
        return joined(self._lacking(), exclude)


class Serving(Protocol):
    """The models that are served, as far as their workers decide about them."""

    def narrowed(self, model: str, can: Capabilities) -> None:
        """`model`, which may be an adapter, can do this from now on."""

    def offered(self, model: str, adapter: str, pools: Sequence[AdapterPool]) -> None:
        """`adapter` of `model` is served from now on, by these pools: the first generates, a second one computes
        prompts."""

    def withdrawn(self, model: str, adapter: str) -> None:
        """`adapter` is not served any more: no worker has it, or too many others come before it."""

    def forget(self, model: str, address: str) -> None:
        """The worker of `model` at `address` has left."""

    def silence(self, model: str, worker: Worker, recent: float) -> Silence | None:
        """The silence of the replies that `worker` owes; None if it owes none. If a piece came after `recent`, that one
        is enough."""

    def leave(self, worker: Worker, error: GatewayError) -> None:
        """The requests that are with `worker` leave it because of `error`, as far as another one can take them."""


class _Offer(Struct):
    """An adapter that is served. pools: for those of its model, in the same order."""

    model: str
    pools: list[AdapterPool]

    def have(self, workers: frozenset[Worker]) -> bool:
        """Sets which workers have the adapter. Returns whether that has changed."""
        changed = any(pool.having != workers for pool in self.pools)
        if changed:
            for pool in self.pools:
                pool.having = workers
        return changed


class Adapters:
    """The adapters of one configuration, for the models that have `adapters: true`.

    fleets  of all models, by name
    ask     asks the workers of a model what they have loaded, and then calls `offer`; must not raise
    """

    def __init__(
        self,
        config: Config,
        fleets: Mapping[str, ModelFleet],
        ask: Callable[[ModelFleet], Awaitable[None]],
        serving: Serving,
    ) -> None:
        self._interval_s = config.health.interval_s
        self._names = [name for name, options in config.models.items() if options.adapters]
        self._taken = frozenset(config.model_names)
        self._fleets = fleets
        self._ask = ask
        self._serving = serving
        self._offers: dict[str, _Offer] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._names:
            self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        await cancel_tasks(self._task)

    async def look(self) -> None:
        """Asks every ready worker now."""
        for model in self._names:
            await self._ask(self._fleets[model])

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            with keep_running("adapters"):
                await self.look()

    def offer(self, fleet: ModelFleet) -> None:
        """Offers the adapters that the workers of a model have now, unless the configuration or another model has the
        name."""
        model, offers = fleet.name, self._offers
        if model not in self._names:
            return
        having: dict[str, set[Worker]] = {}
        for worker in fleet.workers:
            for adapter in worker.facts.adapters:
                having.setdefault(adapter, set()).add(worker)
        mine = {adapter for adapter, offer in offers.items() if offer.model == model}
        free = (one for one in sorted(having) if one in mine or (one not in self._taken and one not in offers))
        wanted = [name for name, _ in zip(free, range(_MOST), strict=False)]
        changed = False
        for gone in mine.difference(wanted):
            changed |= offers.pop(gone).have(frozenset())
            self._serving.withdrawn(model, gone)
        for adapter in wanted:
            if adapter not in offers:
                pools = [AdapterPool(pool, adapter) for pool in fleet.pools]
                offers[adapter] = _Offer(model, pools)
                self._serving.offered(model, adapter, pools)
            self._serving.narrowed(adapter, replace(fleet.can, upstream_model=adapter))
            changed |= offers[adapter].have(frozenset(having[adapter]))
        if changed:  # requests that wait for one of them may have another choice now
            for pool in fleet.pools:
                pool.refit_waiting()
