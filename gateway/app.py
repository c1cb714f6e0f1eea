"""Composition root: configuration -> ASGI application. The only file that knows every concrete class."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import httpx
from msgspec import Struct
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router

from gateway import backends, dialects
from gateway.auth import Keyring
from gateway.client import Receive, Scope, Send
from gateway.config import Config, ConfigError, Fault, Known
from gateway.config import Model as ModelOptions
from gateway.config.faults import WHOLE
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers, Route
from gateway.core.ports import Capabilities, Deadlines, Dialect, Record, Settings
from gateway.fleet.breaker import BreakerPolicy
from gateway.fleet.budget import RetryBudget
from gateway.fleet.discovery import Discovery, Dns, Fleet, Member, Source, able
from gateway.fleet.health import Health, HealthPolicy
from gateway.fleet.pick import POLICIES
from gateway.fleet.pool import Pool, QueuePolicy
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Worker
from gateway.limiting import Limiting, redis_settings
from gateway.limits.store_redis import connect, split_address
from gateway.observe.accounting import Stream
from gateway.observe.limits import LimitMetrics
from gateway.observe.log import Log
from gateway.observe.metrics import CONTENT_TYPE, Metrics
from gateway.pipeline import Endpoint, Hub, Offer, Running, request_id
from gateway.server import EXTENSION, Refusal
from gateway.tokens import Tokens
from gateway.transport.pooled import Pooled

KNOWN = Known(
    dialects={name: dialect.prefixes for name, dialect in dialects.REGISTRY.items()},
    backends=frozenset(backends.REGISTRY),
)


# For the error that ends a request which outlived the grace to reach its client.
_LAST_WORDS_S = 2.0


class Line(Struct, frozen=True):
    """One line of the route table."""

    method: str
    path: str
    dialect: str
    name: str


def active_dialects(config: Config) -> list[Dialect]:
    """The dialects that `config` offers, in registry order, with its prefixes and policies."""
    found = []
    for name in dialects.REGISTRY:
        options = config.dialect(name)
        if options.enabled:
            found.append(dialects.create(name, Settings(options.prefixes, options.extras)))
    return found


def paths(dialect: Dialect) -> dict[str, dict[str, Route]]:
    """Every path of `dialect`, its prefixes included, and what is there by method."""
    found: dict[str, dict[str, Route]] = {}
    for prefix in dialect.prefixes:
        for route in dialect.routes:
            path = route.path if route.absolute else prefix.rstrip("/") + route.path
            found.setdefault(path, {})[route.method] = route
    return found


def route_table(config: Config) -> list[Line]:
    """Every path that `config` serves, the gateway's own included."""
    lines = [
        Line(route.method, path, dialect.name, route.name)
        for dialect in active_dialects(config)
        for path, routes in paths(dialect).items()
        for route in routes.values()
    ]
    own = ["/livez", "/readyz"]
    if config.metrics.enabled and config.metrics.listen is None:
        own.append("/metrics")
    return lines + [Line("GET", path, "-", path[1:]) for path in own]


class Observer:
    """What the pipeline reports, to the log and the metrics."""

    def __init__(self, log: Log, metrics: Metrics, stream: Stream | None = None) -> None:
        self._log = log
        self._metrics = metrics
        self._stream = stream
        self.begun = metrics.begun

    def finished(self, record: Record) -> None:
        self._metrics.finished(record)
        self._log.request(record)
        if self._stream is not None:
            self._stream.add(record)

    def retried(self, model: str, worker: str, error: GatewayError) -> None:
        self._metrics.retries.labels(model).inc()
        self._log.event("warning", "retry", model=model, worker=worker, code=error.code or error.kind.value)

    def bug(self, record: Record, error: BaseException) -> None:
        self._metrics.bugs.inc()
        self._log.bug(record, error)


class State:
    """All that belongs to one configuration. A reload makes another; requests under way finish under theirs."""

    def __init__(
        self,
        config: Config,
        log: Log,
        metrics: Metrics,
        created: int,
        known_workers: Mapping[tuple[str, str], Worker],
        known_fleets: Mapping[str, Fleet],
        limiting: Limiting | None = None,
    ) -> None:
        self.config = config
        self._log = log
        self._metrics = metrics
        self.workers: dict[tuple[str, str], Worker] = {}
        self.transports: list[Pooled] = []
        self.pools: dict[str, Pool] = {}
        self.health: Health | None = None
        self.discovery: Discovery | None = None
        self._redis: list[Any] = []
        self._known_workers = known_workers
        self._known_fleets = known_fleets
        self._declared: dict[str, Capabilities] = {}
        self._trace = partial(log.event, "debug") if config.log.level == "debug" else None
        clock = time.monotonic
        offers: dict[str, Offer] = {}
        for name, options in config.models.items():
            offer = self._offer(name, options, created, clock)
            for known_as in (name, *options.aliases):
                offers[known_as] = offer
        self.tokens: Tokens | None = None
        if config.jwt is not None:
            try:
                self.tokens = Tokens(config.jwt, time.time, lambda told: log.event("warning", told))
            except ValueError as error:
                raise ConfigError([Fault(config.jwt.jwks_file or "", 1, WHOLE, str(error))]) from None
        self._keyring = Keyring(config, tokens=self.tokens)
        self.limiting = limiting = Limiting.follow(limiting, config, self._limits_changed)
        self.stream: Stream | None = None
        if config.accounting.redis_stream is not None:
            self.stream = Stream(
                config.accounting.redis_stream,
                config.accounting.max_length,
                lambda: connect(redis_settings(config.redis)),
                lambda state, why: log.event("warning" if why else "info", f"usage records {state}", reason=why),
            )
        budget = RetryBudget(config.retry.budget, config.retry.min_per_second, clock)
        self.hub = Hub(
            offers=offers,
            identify=self._keyring.identify,
            observer=Observer(log, metrics, self.stream),
            extension=EXTENSION,
            max_body_bytes=config.listen.max_body_bytes,
            max_reply_bytes=config.relay.max_reply_bytes,
            keepalive_s=config.relay.keepalive_s,
            attempts=config.retry.attempts,
            earn=budget.earn,
            may_retry=budget.spend,
            clock=clock,
            running=Running(),
            gate=limiting if limiting is not None and limiting.any else None,
            trace=self._trace,
        )

    def _offer(
        self,
        name: str,
        options: ModelOptions,
        created: int,
        clock: Callable[[], float],
    ) -> Offer:
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
        )
        self.pools[name] = pool
        transport = Pooled(ssl_for=_trust(options.ca_file))
        self.transports.append(transport)
        headers: Headers = [(key.lower().encode(), value.encode()) for key, value in options.headers.items()]
        if options.api_key is not None:
            headers.append((b"authorization", b"Bearer " + options.api_key.encode()))
        deadlines = self.config.deadlines_for(name)
        return Offer(
            name=name,
            pool=pool,
            backend=backends.create(options.backend),
            can=able(self._declared[name], ()),
            transport=transport,
            deadlines=Deadlines(deadlines.connect_s, deadlines.first_byte_s, deadlines.idle_s),
            headers=headers,
            total_s=deadlines.total_s,
            created=created,
            aliases=options.aliases,
            paths=frozenset(options.paths) if options.paths is not None else None,
        )

    def _worker(self, model: str, address: str) -> Worker:
        """That of this configuration, else that of the one before, with all it has learnt, else a new one."""
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
            client, self._redis = connect(redis_settings(self.config.redis))
            found.append(Registry(client, registered, time.monotonic))
        return found

    async def _fleet(self, model: str, members: Sequence[Member]) -> None:
        """These are the workers of `model` now."""
        offer = self.hub.offers[model]
        offer.can = able(self._declared[model], [member for member in members if not member.draining] or members)
        pool = self.pools[model]
        before = set(pool.workers)
        workers = []
        for member in members:
            worker = self._worker(model, member.address)
            worker.draining = member.draining
            workers.append(worker)
        pool.change(workers)
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

    def _source_state(self, source: str, trouble: str | None) -> None:
        if trouble is None:
            self._log.event("info", "workers can be looked up again", source=source)
        else:
            self._log.event("warning", "workers cannot be looked up; the known ones stay", source=source, error=trouble)

    @property
    def ready(self) -> bool:
        return any(pool.ready for pool in self.pools.values())

    async def start(self) -> None:
        """Probes every worker once, so that the first request already knows who is there."""
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
        self.health = Health(self.workers, policy, self._probe_client, self._changed, probed)
        await self.health.start()
        for (model, address), worker in self.workers.items():
            self._metrics.ready.labels(model, address).set(worker.ready)
        self._known_workers, self._known_fleets = {}, {}

    def _probe_client(self, model: str) -> httpx.AsyncClient:
        ca_file = self.config.models[model].ca_file
        # A fresh connection for every probe: a kept one may be closed by the worker just as we use it.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.AsyncClient(verify=_context(ca_file) if ca_file else True, trust_env=False, limits=limits)

    async def rest(self) -> None:
        """Looks after the workers no more; those who use them go on."""
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
        for transport in self.transports:
            await transport.close()

    def router(self) -> Router:
        """Starlette routes to raw ASGI endpoints: no middleware, no request object on the way."""
        routes = []
        fallbacks: list[tuple[str, Endpoint]] = []
        for dialect in active_dialects(self.config):
            default = self.config.dialect(dialect.name).default_model
            default = self.config.resolve(default) if default is not None else None
            for path, methods in paths(dialect).items():
                routes.append(StarletteRoute(path, Endpoint(self.hub, dialect, methods, default)))
            for prefix in dialect.prefixes:
                fallbacks.append((prefix.rstrip("/"), Endpoint(self.hub, dialect, {}, default)))
        fallbacks.sort(key=lambda item: -len(item[0]))
        return Router(routes, redirect_slashes=False, default=_Fallback(fallbacks))

    def _limits_changed(self, state: str, reason: str) -> None:
        level = "info" if state == "strict" else "warning"
        self._log.event(level, f"limits {state}", **({"reason": reason} if reason else {}))

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


class _Fallback:
    """Unknown paths are refused in the dialect whose prefix they carry."""

    def __init__(self, endpoints: list[tuple[str, Endpoint]]) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        for prefix, endpoint in self._endpoints:
            if path == prefix or path.startswith(prefix + "/"):
                await endpoint(scope, receive, send)
                return
        await self._endpoints[-1][1](scope, receive, send)


class Gateway:
    """The ASGI application. `start` before serving, `close` after; `reload` and `drain` in between."""

    def __init__(self, config: Config, log: Log) -> None:
        self.log = log
        self.metrics = Metrics()
        self.draining = False
        self._limit_metrics = LimitMetrics()
        self.metrics.registry.register(self._limit_metrics)
        # No reload moves a listener, and none lets clients see what was kept from them.
        self._apart = config.metrics.listen is not None
        self._created = int(time.time())
        self._retiring: set[asyncio.Task[None]] = set()
        self._states: list[State] = []
        self._reloading = asyncio.Lock()
        self._install(State(config, log, self.metrics, self._created, {}, {}))

    def _install(self, state: State) -> None:
        self.state = state
        self._states.append(state)
        self._limit_metrics.limiter = state.limiting.limiter if state.limiting is not None else None
        self._limit_metrics.stream = state.stream
        self._router = state.router()
        # Nearly every request's path is one of a few literal ones: found by one look-up, not by matching patterns.
        self._literal: dict[str, Any] = {
            route.path: route.endpoint
            for route in self._router.routes
            if isinstance(route, StarletteRoute) and "{" not in route.path
        }
        own = {"/livez": _live, "/readyz": self._readyz}
        with_metrics = {**own, "/metrics": self._metrics} if state.config.metrics.enabled else own
        self._literal.update(own if self._apart else with_metrics)
        self._operations = with_metrics

    async def start(self) -> None:
        await self.state.start()

    async def reload(self, config: Config) -> None:
        """New requests see `config`; running ones finish under the old one. Workers that stay keep their record."""
        async with self._reloading:
            old = self.state
            fleets = old.discovery.read if old.discovery is not None else {}
            state = State(config, self.log, self.metrics, self._created, old.workers, fleets, old.limiting)
            await state.start()
            self._install(state)
            self.log.configure(config.log.level, config.log.requests)
            task = asyncio.create_task(self._retire(old))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def _retire(self, old: State) -> None:
        await old.rest()
        for model, address in old.workers.keys() - self.state.workers.keys():
            self.metrics.ready.remove(model, address)
        await old.hub.running.empty(None)
        self._states.remove(old)
        await old.close()
        if old.limiting is not None and all(state.limiting is not old.limiting for state in self._states):
            await old.limiting.close()

    async def drain(self) -> None:
        """Not ready any more; returns when nothing runs. What outlives the grace is ended in its client's dialect."""
        self.draining = True
        self.metrics.draining.set(1)
        for state in self._states:
            state.hub.running.draining = True
        await self._idle(self.state.config.relay.drain_s)
        for state in self._states:
            for run in list(state.hub.running.runs):
                run.interrupt(GatewayError(Kind.DRAINING, "the gateway is shutting down", retry_after=1.0))
        await self._idle(_LAST_WORDS_S)

    def refused(self, refusal: Refusal, client: str, headers: Headers, known_as: str) -> str:
        """What the server refused before any dialect: counted and logged. Returns the request's id."""
        name = known_as or request_id(headers)
        self.metrics.refused.labels(str(refusal.status)).inc()
        level = "info" if refusal.status < 500 else "warning"
        self.log.rationed(level, "refused", id=name, status=refusal.status, code=refusal.code, client=client)
        return name

    async def _idle(self, timeout_s: float) -> None:
        await asyncio.gather(*(state.hub.running.empty(timeout_s) for state in self._states))

    async def close(self) -> None:
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        await self.state.close()
        for limiting in {id(state.limiting): state.limiting for state in self._states}.values():
            if limiting is not None:
                await limiting.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            endpoint = self._literal.get(scope["path"])
            await (self._router if endpoint is None else endpoint)(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)

    async def operations(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application of `metrics.listen`: the gateway's own paths and nothing of a dialect."""
        endpoint = self._operations.get(scope["path"], _nothing)
        await endpoint(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _readyz(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.draining:
            await _plain(scope, send, 503, b"draining\n")
        elif not self.state.ready:
            await _plain(scope, send, 503, b"no model has a ready worker\n")
        else:
            await _plain(scope, send, 200, b"ready\n")

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _plain(scope, send, 200, self.metrics.page(), CONTENT_TYPE)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    await _plain(scope, send, 404, b"not found\n")


async def _live(scope: Scope, receive: Receive, send: Send) -> None:
    await _plain(scope, send, 200, b"alive\n")


async def _plain(
    scope: Scope, send: Send, status: int, body: bytes, media_type: bytes = b"text/plain; charset=utf-8"
) -> None:
    if scope["method"] not in ("GET", "HEAD"):
        headers = [(b"allow", b"GET, HEAD"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 405, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return
    headers = [(b"content-type", media_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _by_registry(options: ModelOptions) -> bool:
    return options.discover is not None and options.discover.redis


async def _fetch(url: str) -> bytes:
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
        answer = await client.get(url)
        answer.raise_for_status()
        return answer.content


def _context(ca_file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)


def _trust(ca_file: str | None) -> Callable[[str], ssl.SSLContext | None] | None:
    if ca_file is None:
        return None
    context = _context(ca_file)
    return lambda address: context
