"""One configuration at work: its models, workers, limits and callers, built and looked after."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import httpx
from msgspec.structs import replace

from gateway import backends
from gateway.app.memory import room_for_bodies
from gateway.auth import ANONYMOUS, Keyring
from gateway.config import Config
from gateway.config import Model as ModelOptions
from gateway.core.byte_budget import ByteBudget
from gateway.core.errors import GatewayError
from gateway.core.http import Headers
from gateway.core.ports import UNKNOWN, Capabilities, Deadlines, RequestRecord
from gateway.fleet.breaker import BreakerPolicy
from gateway.fleet.budget import RetryBudget
from gateway.fleet.discovery import Discovery, Dns, Fleet, FoundWorker, Source, able
from gateway.fleet.health import Health, HealthPolicy
from gateway.fleet.pick import POLICIES
from gateway.fleet.pool import Pool, QueuePolicy
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Worker
from gateway.limiting import Limiting, estimator
from gateway.observe.accounting import Stream
from gateway.observe.log import Log
from gateway.observe.metrics import Metrics
from gateway.observe.tracing import Tracing
from gateway.pipeline import Running, Runtime, ServedModel
from gateway.redis import RedisSettings, connect, split_address
from gateway.server import EXTENSION
from gateway.tokens import Tokens
from gateway.transport.pooled import Pooled

_NOBODY = ("", ANONYMOUS.key)
_FETCH_S = 5.0
_FETCH_BYTES = 1 << 20


class Observer:
    """Passes on what the pipeline reports to the log, the metrics and the stream of usage records."""

    def __init__(self, log: Log, metrics: Metrics, stream: Stream | None = None) -> None:
        self._log = log
        self._metrics = metrics
        self._stream = stream
        self.begun = metrics.begun

    def finished(self, record: RequestRecord) -> None:
        self._metrics.finished(record)
        self._log.request(record)
        # Skip what unknown callers were refused: there is nobody to bill, and strangers could push the records of
        # known callers out of the stream. With `auth: open` all are anonymous: what reached a model is recorded.
        if self._stream is not None and (record.model or record.key not in _NOBODY):
            self._stream.add(record)

    def retried(self, model: str, worker: str, error: GatewayError) -> None:
        self._metrics.retries.labels(model).inc()
        self._log.event("warning", "retry", model=model, worker=worker, code=error.code or error.kind.value)

    def bug(self, record: RequestRecord, error: BaseException) -> None:
        self._metrics.bugs.inc()
        self._log.bug(record, error)


class State:
    """Everything that belongs to one configuration. A reload builds another; running requests finish with theirs."""

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
    ) -> None:
        self.tracing = tracing
        self.config = config
        self._log = log
        self._metrics = metrics
        self.workers: dict[tuple[str, str], Worker] = {}
        self.transports: dict[str, Pooled] = {}
        self.pools: dict[str, Pool] = {}
        self.health: Health | None = None
        self.discovery: Discovery | None = None
        self._redis: list[Any] = []
        self._known_workers = known_workers
        self._known_fleets = known_fleets
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
        self.limiting = limiting = Limiting.follow(limiting, config, self._limits_changed, self._decided_alone)
        self.stream: Stream | None = None
        if config.accounting.redis_stream is not None:
            self.stream = Stream(
                config.accounting.redis_stream,
                config.accounting.max_length,
                lambda: connect(RedisSettings.of(config.redis)),
                lambda state, why: log.event("warning" if why else "info", f"usage records {state}", reason=why),
            )
        body_budget = body_budget or ByteBudget()
        listen = config.listen
        body_budget.limit = listen.max_bodies_bytes or max(room_for_bodies(), listen.max_body_bytes)
        self.budget = budget = RetryBudget(config.retry.budget, config.retry.min_per_second, clock)
        guess = estimator(config)
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
            estimate=lambda op: guess.cost(op).prompt,
            gate=limiting if limiting is not None and limiting.any else None,
            trace=self._trace,
            tracer=tracing.tracer if tracing is not None else None,
            log_prompt=log.prompt if config.log.dangerously_log_prompts else None,
        )

    def _serve_model(
        self,
        name: str,
        options: ModelOptions,
        created: int,
        clock: Callable[[], float],
    ) -> ServedModel:
        self._declared[name] = Capabilities(options.upstream_model or name, options.max_context, options.features)
        pool = Pool(
            [self._worker(name, address) for address in options.workers],
            POLICIES[options.policy],
            QueuePolicy(self.config.queue.max_waiting, self.config.queue.timeout_s),
            self.config.breaker.max_eject_share,
            clock=clock,
            on_suspect=lambda worker: self._suspect(name, worker),
            on_eject=lambda worker: self._ejected(name, worker),
            on_return=lambda worker: self._log.event("info", "worker returned", model=name, worker=worker.address),
            on_wait=self._metrics.waits(name).add,
        )
        self.pools[name] = pool
        transport = Pooled(ssl_for=_trust(options.ca_file), counts=self._metrics.connections(name))
        self.transports[name] = transport
        headers: Headers = [(key.lower().encode(), value.encode()) for key, value in options.headers.items()]
        if options.api_key is not None:
            headers.append((b"authorization", b"Bearer " + options.api_key.encode()))
        deadlines = self.config.deadlines_for(name)
        return ServedModel(
            name=name,
            pool=pool,
            backend=backends.create(options.backend),
            can=able(self._declared[name], ()),
            transport=transport,
            deadlines=Deadlines(deadlines.connect_s, deadlines.first_byte_s, deadlines.idle_s),
            headers=headers,
            total_s=deadlines.total_s,
            created=created,
            gaps=self._metrics.gaps(name),
            aliases=options.aliases,
            paths=frozenset(options.paths) if options.paths is not None else None,
        )

    def _worker(self, model: str, address: str) -> Worker:
        """The worker at `address`: if the previous configuration had it, that one with its load and breaker."""
        options, ours = self.config.models[model], self.config.breaker
        worker = self.workers.get((model, address)) or self._known_workers.get((model, address))
        policy = BreakerPolicy(ours.failures, ours.eject_s, ours.slowstart_s)
        if worker is None:
            worker = Worker(address, policy, options.max_in_flight)
        worker.max_in_flight = options.max_in_flight
        worker.breaker.policy = policy
        self.workers[model, address] = worker
        return worker

    def _sources(self) -> list[Source]:
        models = self.config.models.items()
        found: list[Source] = []
        for name, options in models:
            if options.discover is not None and options.discover.dns is not None:
                host, port = split_address(options.discover.dns)
                found.append(Dns(name, host, port, options.discover.interval_s))
        registered = {name: options.upstream_model or name for name, options in models if _by_registry(options)}
        if registered:
            assert self.config.redis is not None
            client, self._redis = connect(RedisSettings.of(self.config.redis))
            found.append(Registry(client, registered, time.monotonic))
        return found

    async def _fleet(self, model: str, members: Sequence[FoundWorker]) -> None:
        """Called by discovery: `members` are the workers of `model` from now on."""
        self._members[model] = members
        pool = self.pools[model]
        before = set(pool.workers)
        workers = []
        for member in members:
            worker = self._worker(model, member.address)
            worker.draining = member.draining
            workers.append(worker)
        pool.change(workers)
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

    async def _ask(self, model: str, worker: Worker, client: httpx.AsyncClient) -> None:
        """Asks a worker what it can do. One that does not answer is believed able, as before."""
        served = self.runtime.models[model]
        path = served.backend.facts_path
        if path is None or served.paths is not None:  # no other path of it may be called
            return
        try:
            async with asyncio.timeout(self.config.health.timeout_s):
                said = await _small_body(client, worker.address + path, served.headers)
            worker.facts = served.backend.facts(said, served.can.upstream_model)
        except (GatewayError, httpx.HTTPError, TimeoutError):
            worker.facts = UNKNOWN
        self._narrow(model)

    def _source_state(self, source: str, trouble: str | None) -> None:
        if trouble is None:
            self._log.event("info", "workers can be looked up again", source=source)
        else:
            self._log.event("warning", "workers cannot be looked up; the known ones stay", source=source, error=trouble)

    @property
    def ready(self) -> bool:
        return any(pool.ready for pool in self.pools.values())

    async def start(self) -> None:
        """Starts discovery and probes; returns once every worker was probed, so that the first request finds one."""
        if self.limiting is not None:
            await self.limiting.start()
        if self.tokens is not None:
            await self.tokens.start(_fetch)
        sources = self._sources()
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
        self._known_workers, self._known_fleets = {}, {}

    def _probe_client(self, model: str) -> httpx.AsyncClient:
        ca_file = self.config.models[model].ca_file
        # A fresh connection for every probe: a kept one may be closed by the worker just as we use it.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.AsyncClient(verify=_context(ca_file) if ca_file else True, trust_env=False, limits=limits)

    async def rest(self) -> None:
        """Stops discovery and probes. Running requests keep their workers."""
        if self.discovery is not None:
            await self.discovery.close()
        if self.health is not None:
            await self.health.close()

    async def close(self) -> None:
        await self.rest()
        for client in self._redis:
            await client.aclose()
        for pool in self.pools.values():
            pool.close()
        if self.stream is not None:
            await self.stream.close()
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
            worker.breaker.come_back(time.monotonic())
        worker.freed()


def _by_registry(options: ModelOptions) -> bool:
    return options.discover is not None and options.discover.redis


async def _small_body(client: httpx.AsyncClient, url: str, headers: Headers) -> bytes:
    """The body of a 200 of at most `_FETCH_BYTES` bytes; b"" for any other answer. Raises httpx.HTTPError."""
    body = bytearray()
    plain = (b"accept-encoding", b"identity")  # a few bytes can unpack to any number
    async with client.stream("GET", url, headers=[*headers, plain]) as answer:
        if answer.status_code != 200:
            return b""
        async for block in answer.aiter_raw():
            body += block
            if len(body) > _FETCH_BYTES:
                return b""
    return bytes(body)


async def _fetch(url: str) -> bytes:
    """The body of a GET, within _FETCH_S and _FETCH_BYTES: a slow or endless reply must not keep us from starting.

    Raises TimeoutError, ValueError, httpx.HTTPError.
    """
    body = bytearray()
    plain = {"accept-encoding": "identity"}  # a few bytes can unpack to any number
    async with (
        asyncio.timeout(_FETCH_S),
        httpx.AsyncClient(trust_env=False, timeout=None) as client,
        client.stream("GET", url, headers=plain) as answer,
    ):
        answer.raise_for_status()
        async for block in answer.aiter_raw():
            body += block
            if len(body) > _FETCH_BYTES:
                raise ValueError("the answer is too large")
    return bytes(body)


def _context(ca_file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)


def _trust(ca_file: str | None) -> Callable[[str], ssl.SSLContext | None] | None:
    if ca_file is None:
        return None
    context = _context(ca_file)
    return lambda address: context
