"""The workers of one configuration: who they are, their pools and probes, and what is told of them."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from gateway.config import Config
from gateway.config.routing import WorkerOptions
from gateway.core.ports import Backend
from gateway.fleet.discovery import Discovery, FoundWorker
from gateway.fleet.health import Health
from gateway.fleet.pick import POLICIES, PickPolicy
from gateway.fleet.pool import Pool
from gateway.fleet.refusals import Refusals
from gateway.fleet.report import Report
from gateway.fleet.sources import worker_sources
from gateway.fleet.waiting import PoolEvents, Refusal
from gateway.fleet.worker import Worker

_ORDINARY = WorkerOptions()
_PREFILL_WAIT_S = 30.0
"""Longest wait for a worker that computes a prompt. Then the worker that generates computes it."""


class Fleets:
    """The workers of all models, by model and address, and those of each model in a pool.

    prefill_pools  of prefill workers, by the model that they work for
    discovery      finds them, where they are not only listed; set by `start`, as health is
    trusted        the authorities by which workers are trusted, by the model's `ca_file`
    trace          told what happens to them, where the log is at level debug
    before         those of the configuration before: workers in both keep their state, policies what they learnt
    """

    def __init__(
        self,
        config: Config,
        report: Report,
        trace: Callable[..., None] | None,
        before: Fleets | None,
        trusted: Callable[[str | None], ssl.SSLContext],
    ) -> None:
        self.workers: dict[tuple[str, str], Worker] = {}
        self.pools: dict[str, Pool] = {}
        self.prefill_pools: dict[str, Pool] = {}
        self.discovery: Discovery | None = None
        self.health: Health | None = None
        self._config = config
        self.report = report
        self._trace = trace
        self._trusted = trusted
        # Until `start` is over. One that is kept longer would keep the one before it, too.
        self._before = before
        self._learned = {} if before is None else before.policies
        self._sessions = frozenset(name.lower().encode() for name in config.routing.session_headers)
        self._refusals = Refusals(report, lambda model: self.pools[model].waiting)
        self._members: dict[str, Sequence[FoundWorker]] = {}
        self._on_join: Callable[[str], None] = lambda model: None
        self._on_ready: Callable[[str], None] = lambda model: None
        self._redis: list[Any] = []

    # -- pools ------------------------------------------------------------------------------------------------------

    def serve(self, model: str, addresses: Sequence[str], backend: Backend) -> Pool:
        """Makes the pool of the workers of `model`."""
        pool = self.pools[model] = self._pool(model, addresses, self._learned.get(model), backend)
        return pool

    def prefill(self, model: str, addresses: Sequence[str], backend: Backend) -> Pool:
        """Makes the pool of its prefill workers."""
        known = self._learned.get(_prefill_of(model))
        pool = self.prefill_pools[model] = self._pool(model, addresses, known, backend, generate=False)
        return pool

    def _pool(
        self,
        model: str,
        addresses: Sequence[str],
        policy: PickPolicy | None,
        backend: Backend,
        *,
        generate: bool = True,
    ) -> Pool:
        """Workers of `model`, which generate or compute prompts for others: without those it goes, too. policy: that of
        the previous configuration, which knows what they were sent."""
        wanted = self._config.models[model].policy
        if policy is None or policy.name != wanted:
            policy = POLICIES[wanted]()
        queue = self._config.queue_for(model)
        if not generate:
            queue = queue.model_copy(update={"timeout_s": min(queue.timeout_s, _PREFILL_WAIT_S), "cold_start_s": 0.0})
        return Pool(
            [self._worker(model, address) for address in addresses],
            policy,
            queue,
            self._config.breaker.max_eject_share,
            clock=time.monotonic,
            events=_Events(self, model, self._refusals.of(model) if generate else None),
            sessions=self._sessions,
            salted=backend.salts,
        )

    def of(self, model: str) -> list[Worker]:
        """The workers of `model`: those that generate, then those that compute its prompts."""
        return [worker for pool in self.pools_of(model) for worker in pool.workers]

    def pools_of(self, model: str) -> list[Pool]:
        return [pools[model] for pools in (self.pools, self.prefill_pools) if model in pools]

    @property
    def policies(self) -> dict[str, PickPolicy]:
        """What the policies of this configuration learnt, for the next one."""
        found = {name: pool.policy for name, pool in self.pools.items()}
        return found | {_prefill_of(name): pool.policy for name, pool in self.prefill_pools.items()}

    @property
    def ready(self) -> bool:
        """Whether some model has a ready worker."""
        return any(pool.ready for pool in self.pools.values())

    # -- who they are -----------------------------------------------------------------------------------------------

    def _worker(self, model: str, address: str) -> Worker:
        """The worker at `address`: if the previous configuration had it, that one with its load and breaker."""
        options, ours = self._config.models[model], self._config.breaker
        known = {} if self._before is None else self._before.workers
        worker = self.workers.get((model, address)) or known.get((model, address))
        if worker is None:
            worker = Worker(address, ours, options.max_in_flight)
        own = options.worker_options.get(address, _ORDINARY)
        most = own.capacity or options.max_in_flight
        learns = most is None and self._config.queue_for(model).learn_capacity
        if not (learns and worker.learns):  # what it has learnt it keeps
            worker.max_in_flight = most
        worker.learns = learns
        worker.weight = own.weight
        worker.breaker.options = ours
        self.workers[model, address] = worker
        return worker

    def members(self, model: str) -> Sequence[FoundWorker]:
        """Who they are, as far as somebody says; else as the configuration lists them."""
        found = self._members.get(model)
        return [FoundWorker(address) for address in self._config.models[model].workers] if found is None else found

    async def _join(self, model: str, members: Sequence[FoundWorker]) -> None:
        """Called by discovery: `members` are the workers of `model` from now on."""
        if model in self.prefill_pools:  # those that register are known under the model's name, too
            theirs = {worker.address for worker in self.prefill_pools[model].workers}
            members = [member for member in members if member.address not in theirs]
        self._members[model] = members
        pool = self.pools[model]
        before = set(pool.workers)
        workers = []
        for member in members:
            worker = self._worker(model, member.address)
            worker.draining = member.draining
            workers.append(worker)
        pool.change(workers)
        self._on_join(model)
        pool.refit_waiting()
        for worker in before.difference(workers):
            del self.workers[model, worker.address]
            if self.health is not None:
                self.health.remove(worker)
                self.report.worker_left(model, worker.address)
            self.report.event("info", "worker left", model=model, worker=worker.address)
        for worker in workers:
            if worker not in before:
                self.report.event("info", "worker joined", model=model, worker=worker.address)
                if self.health is not None:
                    self.report.worker(model, worker.address, worker.ready)
                    self.health.add(model, worker)

    def probe_client(self, model: str) -> httpx.AsyncClient:
        ca_file = self._config.models[model].ca_file
        # A fresh connection for every probe: a kept one may be closed by the worker just as we use it.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.AsyncClient(verify=self._trusted(ca_file), trust_env=False, limits=limits)

    async def start(
        self,
        on_join: Callable[[str], None],
        on_ready: Callable[[str], None],
        ask: Callable[[str, Worker, httpx.AsyncClient], Any],
    ) -> None:
        """Starts discovery and probes; returns once every worker was probed, so that the first request finds one.

        on_join   called with a model whose workers changed
        on_ready  called with a model of which one became ready, before that one takes requests
        ask       asks a worker what it can do
        """
        config, self._on_join, self._on_ready = self._config, on_join, on_ready
        sources, self._redis = worker_sources(config, self._ignored)
        if sources:
            fixed = {name: options.workers for name, options in config.models.items() if options.discover}
            known = None if self._before is None else self._before.discovery
            read = {} if known is None else known.read
            self.discovery = Discovery(sources, fixed, self._join, self._source_state, read)
            await self.discovery.start()
        probed = self._probed if self._trace is not None else None
        self.health = Health(self.workers, config.health, self.probe_client, self._changed, probed, ask)
        await self.health.start()
        for (model, address), worker in self.workers.items():
            self.report.worker(model, address, worker.ready)
        self._before, self._learned = None, {}

    async def rest(self) -> None:
        """Stops discovery and probes. Running requests keep their workers."""
        self._refusals.close()
        if self.discovery is not None:
            await self.discovery.close()
        if self.health is not None:
            await self.health.close()

    async def close(self) -> None:
        for client in self._redis:
            await client.aclose()
        for pool in (*self.pools.values(), *self.prefill_pools.values()):
            pool.close()

    async def death_of(self, model: str, worker: Any) -> object | None:
        """Probes a worker; the name of its death, None if it lives."""
        gone = self.health is not None and await self.health.is_gone(model, worker)
        return (worker.address, worker.lives) if gone else None

    # -- what is told of them ---------------------------------------------------------------------------------------

    def _source_state(self, source: str, trouble: str | None) -> None:
        if trouble is None:
            self.report.event("info", "workers can be looked up again", source=source)
        else:
            self.report.event(
                "warning", "workers cannot be looked up; the known ones stay", source=source, error=trouble
            )

    def _ignored(self, count: int) -> None:
        self.report.event("warning" if count else "info", "registry entries ignored", count=count)

    def suspect(self, model: str, worker: Worker) -> None:
        """A request to `worker` has failed."""
        if self._trace is not None:
            self._trace("worker failed", model=model, worker=worker.address, failures=worker.breaker.failures)
        if self.health is not None:
            self.health.suspect(worker)

    def _probed(self, model: str, worker: Worker, found: str) -> None:
        self.report.event(
            "debug", "probe", model=model, worker=worker.address, found=found, missed=worker.missed_probes
        )

    def _changed(self, model: str, worker: Worker) -> None:
        self.report.worker(model, worker.address, worker.ready)
        level = "info" if worker.ready else "warning"
        self.report.event(level, "worker ready" if worker.ready else "worker down", model=model, worker=worker.address)
        if worker.ready:
            worker.lives += 1
            worker.breaker.come_back(time.monotonic())
            self._on_ready(model)
        worker.freed()


class _Events(PoolEvents):
    """The events of one pool of `model`. on_refuse: None for prefill workers, without which a request goes on."""

    def __init__(self, fleets: Fleets, model: str, on_refuse: Callable[[Refusal], None] | None) -> None:
        self._fleets = fleets
        self._model = model
        self._report = fleets.report
        self._on_refuse = on_refuse
        self._waits = self._report.waits(model)

    def suspect(self, worker: Worker) -> None:
        self._fleets.suspect(self._model, worker)

    def ejected(self, worker: Worker) -> None:
        self._report.ejected(self._model, worker.address)
        self._report.event("warning", "worker ejected", model=self._model, worker=worker.address)

    def returned(self, worker: Worker) -> None:
        self._report.event("info", "worker returned", model=self._model, worker=worker.address)

    def waited(self, seconds: float) -> None:
        self._waits(seconds)

    def refused(self, reason: Refusal) -> None:
        if self._on_refuse is not None:
            self._on_refuse(reason)


def _prefill_of(model: str) -> str:
    """A name for the prefill workers of `model`, which no model has."""
    return f"{model}\n(prefill)"
