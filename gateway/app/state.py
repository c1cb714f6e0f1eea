"""One configuration at work: its models, workers, limits and callers, built and looked after."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
from msgspec.structs import replace

from gateway import backends
from gateway.app.adapters import Adapters
from gateway.app.detours import detours, mirrors, quarantine
from gateway.app.fetching import fetch, small_body
from gateway.app.loads import Loads
from gateway.app.memory import room_for_bodies
from gateway.app.observer import Observer
from gateway.app.refusals import Refusals, new_caps, new_guard
from gateway.app.sources import shelf_of, worker_sources
from gateway.auth import Keyring
from gateway.config import Config
from gateway.config import Model as ModelOptions
from gateway.config.routing import WorkerOptions
from gateway.core.byte_budget import ByteBudget
from gateway.core.errors import GatewayError
from gateway.core.http import Headers
from gateway.core.messages import Op
from gateway.core.ports import UNKNOWN, Backend, Capabilities, Deadlines, Facts
from gateway.fleet.breaker import BreakerPolicy
from gateway.fleet.budget import RetryBudget
from gateway.fleet.discovery import Discovery, Fleet, FoundWorker, able
from gateway.fleet.engine import ASK, hear_load
from gateway.fleet.health import Health, HealthPolicy
from gateway.fleet.pick import POLICIES, PickPolicy
from gateway.fleet.pool import Pool
from gateway.fleet.waiting import QueuePolicy
from gateway.fleet.worker import Worker
from gateway.limiting import Limiting, estimator
from gateway.observe.accounting import Stream
from gateway.observe.log import Log
from gateway.observe.metrics import Metrics
from gateway.observe.tracing import Tracing
from gateway.pipeline import Running, Runtime, ServedModel
from gateway.pipeline.caps import Caps
from gateway.pipeline.guard import Guard
from gateway.pipeline.models import Prefill
from gateway.pipeline.quarantine import Quarantine
from gateway.pipeline.shelf import Shelf
from gateway.redis import RedisSettings, connect
from gateway.server import EXTENSION
from gateway.tokens import Tokens
from gateway.transport.pooled import Pooled

if TYPE_CHECKING:
    from gateway.app.kv_events import Listening

_ORDINARY = WorkerOptions()


class State:
    """Everything that belongs to one configuration. A reload builds another; running requests finish with theirs.

    processes  as many share this machine's memory for bodies
    """

    def __init__(
        self,
        config: Config,
        log: Log,
        metrics: Metrics,
        created: int,
        known_workers: Mapping[tuple[str, str], Worker],
        known_fleets: Mapping[str, Fleet],
        limiting: Limiting | None = None,
        tokens: Tokens | None = None,
        body_budget: ByteBudget | None = None,
        tracing: Tracing | None = None,
        known_policies: Mapping[str, PickPolicy] | None = None,
        known_shelf: Shelf | None = None,
        processes: int = 1,
        known_quarantine: Quarantine | None = None,
        guard: Guard | None = None,
        caps: Caps | None = None,
    ) -> None:
        self.tracing = tracing
        self.config = config
        self._log = log
        self._metrics = metrics
        self.workers: dict[tuple[str, str], Worker] = {}
        self.transports: dict[str, Pooled] = {}
        self.pools: dict[str, Pool] = {}
        # Of prefill workers, by the model that they work for.
        self.prefill_pools: dict[str, Pool] = {}
        self.health: Health | None = None
        self.discovery: Discovery | None = None
        self.loads = Loads(config, self._probe_client, small_body, self._load_told)
        self._listening: Listening | None = None
        self._redis: list[Any] = []
        self._known_workers = known_workers
        self._known_fleets = known_fleets
        self._known_policies = known_policies or {}
        self._sessions = frozenset(name.lower().encode() for name in config.routing.session_headers)
        self._refusals = Refusals(metrics, log, self._waiting)
        self._declared: dict[str, Capabilities] = {}
        self._members: dict[str, Sequence[FoundWorker]] = {}
        self._trace = partial(log.event, "debug") if config.log.level == "debug" else None
        clock = time.monotonic
        models: dict[str, ServedModel] = {}
        for name, options in config.models.items():
            served = self._serve_model(name, options, created, clock)
            for known_as in (name, *options.aliases):
                models[known_as] = served
        self.tokens: Tokens | None = None
        if config.jwt is not None:
            self.tokens = Tokens(config.jwt, time.time, log.event, tokens)
        self._keyring = Keyring(config, tokens=self.tokens)
        self.adapters = Adapters(
            config, models, self.fleet, self._probe_client, self._ask_again, self._narrow, self._adapter_told
        )
        self.limiting = limiting = Limiting.follow(limiting, config, self._limits_changed, self._decided_alone)
        self.stream: Stream | None = None
        if config.accounting.redis_stream is not None:
            self.stream = Stream(
                config.accounting.redis_stream,
                config.accounting.max_length,
                lambda: connect(RedisSettings.of(config.redis)),
                lambda state, why: log.event("warning" if why else "info", f"usage records {state}", reason=why),
            )
        self.shelf = shelf_of(config, known_shelf, lambda why: log.event("warning", "responses not stored", reason=why))
        self.quarantine = quarantine(config, known_quarantine, self._death_of, metrics, log)
        body_budget = body_budget or ByteBudget()
        listen = config.listen
        body_budget.limit = listen.max_bodies_bytes or max(room_for_bodies() // processes, listen.max_body_bytes)
        self.budget = budget = RetryBudget(config.retry.budget, config.retry.min_per_second, clock)
        guess = estimator(config)

        def estimate(op: Op) -> int:
            return guess.cost(op).prompt

        self._mirrors = mirrors(config, models, estimate, metrics)
        self.runtime = Runtime(
            models=models,
            identify=self._keyring.identify,
            observer=Observer(log, metrics, self.stream),
            extension=EXTENSION,
            max_body_bytes=config.listen.max_body_bytes,
            max_reply_bytes=config.relay.max_reply_bytes,
            keepalive_s=config.relay.keepalive_s,
            body_budget=body_budget,
            attempts=config.retry.attempts,
            earn=budget.earn,
            may_retry=budget.spend,
            clock=clock,
            running=Running(),
            guard=guard or new_guard(log, metrics),
            caps=caps or new_caps(metrics),
            estimate=estimate,
            explain="" if config.routing.explain == "never" else config.routing.explain,
            gate=limiting if limiting is not None and limiting.any else None,
            trace=self._trace,
            tracer=tracing.tracer if tracing is not None else None,
            quarantine=self.quarantine,
            shelf=self.shelf,
            log_prompt=log.prompt if config.log.dangerously_log_prompts else None,
        )

    def _waiting(self, model: str) -> int:
        return self.pools[model].waiting

    async def _death_of(self, model: str, worker: Any) -> object | None:
        """Probes a worker; the name of its death, None if it lives."""
        gone = self.health is not None and await self.health.is_gone(model, worker)
        return (worker.address, worker.lives) if gone else None

    def _serve_model(
        self,
        name: str,
        options: ModelOptions,
        created: int,
        clock: Callable[[], float],
    ) -> ServedModel:
        self._declared[name] = Capabilities(options.upstream_model or name, options.max_context, options.features)
        backend = backends.create(options.backend)
        pool = self.pools[name] = self._pool(name, options.workers, self._known_policies.get(name), backend, clock)
        prefill = None
        if options.prefill is not None:
            assert backend.handover is not None  # the configuration was checked
            known = self._known_policies.get(prefill_of(name))
            computing = self._pool(name, options.prefill.workers, known, backend, clock, generate=False)
            self.prefill_pools[name] = computing
            prefill = Prefill(computing, backend.handover, options.prefill.min_tokens)
        transport = Pooled(ssl_for=_trust(options.ca_file), counts=self._metrics.connections(name))
        self.transports[name] = transport
        headers: Headers = [(key.lower().encode(), value.encode()) for key, value in options.headers.items()]
        if options.api_key is not None:
            headers.append((b"authorization", b"Bearer " + options.api_key.encode()))
        hear = None
        if self.config.routing.load_header and backend.gauges is not None and backend.gauges.in_replies is not None:
            headers.append(ASK)
            hear = partial(hear_load, backend.gauges.in_replies)
        deadlines = self.config.deadlines_for(name)
        return ServedModel(
            name=name,
            pool=pool,
            backend=backend,
            can=able(self._declared[name], ()),
            transport=transport,
            deadlines=Deadlines(deadlines.connect_s, deadlines.first_byte_s, deadlines.idle_s),
            headers=headers,
            total_s=deadlines.total_s,
            created=created,
            gaps=self._metrics.gaps(name),
            aliases=options.aliases,
            paths=frozenset(options.paths) if options.paths is not None else None,
            detours=detours(self.config, name),
            hedge_s=options.hedge_s,
            first_byte_per_token=deadlines.first_byte_per_1000_s / 1000,
            prefill=prefill,
            tells=options.kv_events is not None,
            hear=hear,
        )

    def _pool(
        self,
        model: str,
        addresses: Sequence[str],
        policy: PickPolicy | None,
        backend: Backend,
        clock: Callable[[], float],
        *,
        generate: bool = True,
    ) -> Pool:
        """Workers of `model`, which generate or compute prompts for others: without those it goes, too. policy: that of
        the previous configuration, which knows what they were sent."""
        wanted = self.config.models[model].policy
        if policy is None or policy.name != wanted:
            policy = POLICIES[wanted]()
        queue = self.config.queue_for(model)
        return Pool(
            [self._worker(model, address) for address in addresses],
            policy,
            QueuePolicy(queue.max_waiting, queue.timeout_s, queue.max_bytes, queue.cold_start_s if generate else 0.0),
            self.config.breaker.max_eject_share,
            clock=clock,
            on_suspect=lambda worker: self._suspect(model, worker),
            on_eject=lambda worker: self._ejected(model, worker),
            on_return=lambda worker: self._log.event("info", "worker returned", model=model, worker=worker.address),
            on_wait=self._metrics.waits(model).add,
            on_refuse=self._refusals.of(model) if generate else lambda reason: None,  # then it goes without
            sessions=self._sessions,
            salted=backend.salts,
        )

    def fleet(self, model: str) -> list[Worker]:
        """The workers of `model`: those that generate, then those that compute its prompts."""
        return [worker for pool in self._pools_of(model) for worker in pool.workers]

    def _pools_of(self, model: str) -> list[Pool]:
        return [pools[model] for pools in (self.pools, self.prefill_pools) if model in pools]

    @property
    def policies(self) -> dict[str, PickPolicy]:
        """What the policies of this configuration learnt, for the next one."""
        found = {name: pool.policy for name, pool in self.pools.items()}
        return found | {prefill_of(name): pool.policy for name, pool in self.prefill_pools.items()}

    def _worker(self, model: str, address: str) -> Worker:
        """The worker at `address`: if the previous configuration had it, that one with its load and breaker."""
        options, ours = self.config.models[model], self.config.breaker
        worker = self.workers.get((model, address)) or self._known_workers.get((model, address))
        policy = BreakerPolicy(ours.failures, ours.eject_s, ours.slowstart_s)
        if worker is None:
            worker = Worker(address, policy, options.max_in_flight)
        own = options.worker_options.get(address, _ORDINARY)
        most = own.capacity or options.max_in_flight
        learns = most is None and self.config.queue_for(model).learn_capacity
        if not (learns and worker.learns):  # what it has learnt it keeps
            worker.max_in_flight = most
        worker.learns = learns
        worker.weight = own.weight
        worker.breaker.policy = policy
        self.workers[model, address] = worker
        return worker

    async def _fleet(self, model: str, members: Sequence[FoundWorker]) -> None:
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
        self.loads.follow(model, self._pools_of(model))
        self._listen(model)
        self._narrow(model)
        for worker in before.difference(workers):
            del self.workers[model, worker.address]
            if self.health is not None:
                self.health.remove(worker)
                self._metrics.ready.remove(model, worker.address)
            self._log.event("info", "worker left", model=model, worker=worker.address)
        for worker in workers:
            if worker not in before:
                self._log.event("info", "worker joined", model=model, worker=worker.address)
                if self.health is not None:
                    self._metrics.ready.labels(model, worker.address).set(worker.ready)
                    self.health.add(model, worker)

    def _narrow(self, model: str) -> None:
        """Sets what may be asked of `model`: what is declared, less what one of its workers says it cannot do. A worker
        that is in no registry was asked itself."""
        listed = [FoundWorker(address) for address in self.config.models[model].workers]
        members = [
            replace(member, facts=self.workers[model, member.address].facts) if member.facts == UNKNOWN else member
            for member in self._members.get(model, listed)
        ]
        staying = [member for member in members if not member.draining]
        self.runtime.models[model].can = able(self._declared[model], staying or members)
        self.adapters.offer(model)

    async def _ask(self, model: str, worker: Worker, client: httpx.AsyncClient) -> None:
        """Asks a worker what it can do. One that does not answer is believed able, as before."""
        worker.facts = await self._facts(model, worker, client) or UNKNOWN
        self._narrow(model)

    async def _ask_again(self, model: str, worker: Worker, client: httpx.AsyncClient) -> None:
        """What it has loaded may have changed. If it does not answer, its last answer stands: its probes judge it."""
        worker.facts = await self._facts(model, worker, client) or worker.facts

    async def _facts(self, model: str, worker: Worker, client: httpx.AsyncClient) -> Facts | None:
        """What a worker says that it can do; None if it does not."""
        served = self.runtime.models[model]
        path = served.backend.facts_path
        if path is None or served.paths is not None:  # no other path of it may be called
            return None
        try:
            async with asyncio.timeout(self.config.health.timeout_s):
                said = await small_body(client, worker.address + path, served.headers)
            return served.backend.facts(said, served.can.upstream_model)
        except (GatewayError, httpx.HTTPError, TimeoutError):
            return None

    def _source_state(self, source: str, trouble: str | None) -> None:
        if trouble is None:
            self._log.event("info", "workers can be looked up again", source=source)
        else:
            self._log.event("warning", "workers cannot be looked up; the known ones stay", source=source, error=trouble)

    @property
    def ready(self) -> bool:
        """Some model has a worker, or requests wait for its first one: who refused them would never see one start."""
        return any(pool.ready or pool.awaited for pool in self.pools.values())

    @property
    def priorities(self) -> set[int]:
        """Those that requests may have. Callers without a key have 0."""
        config = self.config
        keyless = {0} if config.auth == "open" or config.jwt is not None else set[int]()
        return keyless | {key.priority for key in config.keys.values()}

    async def start(self) -> None:
        """Starts discovery and probes; returns once every worker was probed, so that the first request finds one."""
        if self.limiting is not None:
            await self.limiting.start()
        if self.tokens is not None:
            await self.tokens.start(fetch)
        sources, self._redis = worker_sources(self.config)
        if sources:
            fixed = {name: options.workers for name, options in self.config.models.items() if options.discover}
            self.discovery = Discovery(sources, fixed, self._fleet, self._source_state, self._known_fleets)
            await self.discovery.start()
        policy = HealthPolicy(self.config.health.interval_s, self.config.health.timeout_s, self.config.health.path)
        probed = self._probed if self._trace is not None else None
        self.health = Health(self.workers, policy, self._probe_client, self._changed, probed, self._ask)
        await self.health.start()
        for name in self.config.models:
            self._narrow(name)
        for (model, address), worker in self.workers.items():
            self._metrics.ready.labels(model, address).set(worker.ready)
        self.adapters.start()
        self.loads.start(self.runtime.models, {model: self._pools_of(model) for model in self.pools})
        if any(options.kv_events is not None for options in self.config.models.values()):
            from gateway.app.kv_events import Listening  # imports an extra

            self._listening = Listening(self._cache_told)
        for model in self.pools:
            self._listen(model)
        self._known_workers, self._known_fleets, self._known_policies = {}, {}, {}

    def _listen(self, model: str) -> None:
        """Listens to what the workers of `model` say of their caches, if that is configured."""
        options, workers = self.config.models[model], self.fleet(model)
        if options.kv_events is None:
            for worker in workers:
                worker.blocks = None
        elif self._listening is not None:
            own = {worker: options.worker_options.get(worker.address, _ORDINARY).kv_events for worker in workers}
            self._listening.follow(model, {worker: ports or options.kv_events for worker, ports in own.items()})

    def _probe_client(self, model: str) -> httpx.AsyncClient:
        ca_file = self.config.models[model].ca_file
        # A fresh connection for every probe: a kept one may be closed by the worker just as we use it.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.AsyncClient(verify=_context(ca_file) if ca_file else True, trust_env=False, limits=limits)

    async def rest(self) -> None:
        """Stops discovery, probes and readings of load. Running requests keep their workers."""
        await self.adapters.close()
        await self.loads.close()
        if self._listening is not None:
            await self._listening.close()
        self._refusals.close()
        if self.discovery is not None:
            await self.discovery.close()
        if self.health is not None:
            await self.health.close()

    async def close(self) -> None:
        await self.rest()
        for mirror in self._mirrors:
            await mirror.close()
        for client in self._redis:
            await client.aclose()
        for pool in (*self.pools.values(), *self.prefill_pools.values()):
            pool.close()
        if self.stream is not None:
            await self.stream.close()
        if self.shelf is not None:
            await self.shelf.close()
        if self.tokens is not None:
            await self.tokens.close()
        for transport in self.transports.values():
            await transport.close()

    def _limits_changed(self, state: str, reason: str) -> None:
        level = "info" if state == "strict" else "warning"
        self._log.event(level, f"limits {state}", **({"reason": reason} if reason else {}))

    def _decided_alone(self, requests: int, seconds: float) -> None:
        per_s = round(requests / max(seconds, 0.001), 1)
        self._log.event("warning", "decided without redis", requests=requests, per_s=per_s)

    def _suspect(self, model: str, worker: Worker) -> None:
        if self._trace is not None:
            failures = worker.breaker.failures
            self._trace("worker failed", model=model, worker=worker.address, failures=failures)
        if self.health is not None:
            self.health.suspect(worker)

    def _load_told(self, model: str, worker: Worker, counts: bool) -> None:
        if counts:
            self._log.event("info", "load of worker known", model=model, worker=worker.address)
        else:
            self._log.event("warning", "load of worker stale", model=model, worker=worker.address)

    def _cache_told(self, model: str, worker: Worker, live: bool) -> None:
        if live:
            whole = worker.blocks is not None and worker.blocks.whole
            self._log.event("info", "cache of worker known", model=model, worker=worker.address, whole=whole)
        else:
            self._log.event("warning", "cache of worker unknown", model=model, worker=worker.address)

    def _adapter_told(self, model: str, adapter: str, offered: bool) -> None:
        self._log.event("info", "adapter offered" if offered else "adapter gone", model=model, adapter=adapter)

    def _ejected(self, model: str, worker: Worker) -> None:
        self._metrics.ejected.labels(model, worker.address).inc()
        self._log.event("warning", "worker ejected", model=model, worker=worker.address)

    def _probed(self, model: str, worker: Worker, found: str) -> None:
        self._log.event("debug", "probe", model=model, worker=worker.address, found=found, missed=worker.missed_probes)

    def _changed(self, model: str, worker: Worker) -> None:
        self._metrics.ready.labels(model, worker.address).set(worker.ready)
        level = "info" if worker.ready else "warning"
        self._log.event(level, "worker ready" if worker.ready else "worker down", model=model, worker=worker.address)
        if worker.ready:
            worker.lives += 1
            worker.breaker.come_back(time.monotonic())
        worker.freed()


def prefill_of(model: str) -> str:
    """A name for the prefill workers of `model`, which no model has."""
    return f"{model}\n(prefill)"


def _context(ca_file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)


def _trust(ca_file: str | None) -> Callable[[str], ssl.SSLContext | None] | None:
    if ca_file is None:
        return None
    context = _context(ca_file)
    return lambda address: context
