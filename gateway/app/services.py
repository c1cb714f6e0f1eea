"""The objects that outlive a configuration: those of the whole process, and services that a reload keeps."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any

from gateway.app.fetching import fetch
from gateway.app.memory import room_for_bodies
from gateway.app.other_models import quarantine_of
from gateway.app.prepared import Prepared
from gateway.auth import JwtVerifier, KnownKeys
from gateway.config import Config
from gateway.core.byte_budget import ByteBudget
from gateway.fleet.fleets import Roster
from gateway.fleet.kv_events import Listening
from gateway.fleet.worker import Worker
from gateway.observe.accounting import AccountingStream
from gateway.observe.log import Log
from gateway.observe.metrics import Metrics
from gateway.observe.tracing import Tracing
from gateway.pipeline.caps import Caps
from gateway.pipeline.guard import Guard
from gateway.pipeline.quarantine import Quarantine
from gateway.pipeline.response_store import MemoryResponseStore, RedisResponseStore, ResponseStore
from gateway.ratelimit import HttpRateLimiter
from gateway.redis import connect


class Host:
    """The objects that a gateway has for its whole life, whatever its configuration.

    created    Unix seconds, for lists of models
    processes  as many share this machine's memory for bodies
    """

    def __init__(self, log: Log, metrics: Metrics, processes: int = 1) -> None:
        self.log = log
        self.metrics = metrics
        self.created = int(time.time())
        self.processes = processes
        self.guard = Guard(self._shedding, metrics.shed.labels("lag").inc)
        self.caps = Caps(lambda what: metrics.shed.labels(what).inc())
        self.body_budget = ByteBudget()
        self.known_keys = KnownKeys()
        self.roster = Roster()

    def _shedding(self, begins: bool) -> None:
        self.log.event("warning" if begins else "info", "shedding" if begins else "shedding over")


class _Nothing:
    """The services before the first configuration: none."""

    tracing = limiting = tokens = response_store = quarantine = listening = None


_NOTHING = _Nothing()


class Services:
    """The services of one configuration. Those of `before` that are configured alike are the same objects.

    Making them changes nothing that `before` uses; `take_effect` does, once the new configuration has started.
    """

    CLOSABLE = ("stream", "response_store", "tokens", "limiting", "tracing", "listening")

    def __init__(self, config: Config, prepared: Prepared, host: Host, before: Services | None) -> None:
        self._config = config
        self._limits = prepared.limits
        self._host = host
        log, known = host.log, before if before is not None else _NOTHING
        self.tracing: Tracing | None = Tracing.follow(known.tracing, config.tracing)
        self.limiting: HttpRateLimiter | None = HttpRateLimiter.follow(
            known.limiting, config, prepared.limits, self._limits_changed, self._decided_alone
        )
        self.tokens: JwtVerifier | None = None
        if config.jwt is not None:
            self.tokens = JwtVerifier(config.jwt, time.time, log.event, known.tokens)
        self.stream: AccountingStream | None = None
        if config.accounting.redis_stream is not None and config.redis is not None:
            self.stream = AccountingStream(
                f"{config.redis.namespace}:{config.accounting.redis_stream}",
                config.accounting.max_length,
                lambda: connect(config.redis),
                lambda state, why: log.event("warning" if why else "info", f"usage records {state}", reason=why),
            )
        self.response_store: ResponseStore | None = _response_store_of(
            config,
            known.response_store,
            lambda why: log.event("warning", "responses not stored", reason=why),
        )
        self.quarantine: Quarantine | None = quarantine_of(config, known.quarantine, host.metrics, log)
        self.listening: Listening | None = None
        if any(options.kv_events is not None for options in config.models.values()):
            self.listening = known.listening or Listening(partial(_cache_changed, log))

    async def start(self) -> None:
        if self.limiting is not None:
            await self.limiting.start()
        if self.tokens is not None:
            await self.tokens.start(fetch)

    def take_effect(self, death_of: Callable[[str, Any], Awaitable[object | None]]) -> None:
        """From now on the settings are those of this configuration, for requests of the one before, too. death_of
        probes a worker, as `Quarantine` wants it."""
        config = self._config
        listen = config.listen
        room = max(room_for_bodies() // self._host.processes, listen.max_body_bytes)
        self._host.body_budget.limit = listen.max_bodies_bytes or room
        if self.limiting is not None:
            self.limiting.use(config, self._limits)
        if self.quarantine is not None:
            self.quarantine.hold_s, self.quarantine.death_of = config.breaker.quarantine_s, death_of
        if isinstance(self.response_store, MemoryResponseStore):
            self.response_store.ttl_s, self.response_store.max_bytes = config.store.ttl_s, config.store.max_bytes

    async def close(self, others: Collection[Services]) -> None:
        """Closes what none of `others` has."""
        for name in self.CLOSABLE:
            service = getattr(self, name)
            if service is not None and all(getattr(other, name) is not service for other in others):
                await service.close()

    def _limits_changed(self, state: str, reason: str) -> None:
        level = "info" if state == "strict" else "warning"
        self._host.log.event(level, f"limits {state}", **({"reason": reason} if reason else {}))

    def _decided_alone(self, requests: int, seconds: float) -> None:
        per_s = round(requests / max(seconds, 0.001), 1)
        self._host.log.event("warning", "decided without redis", requests=requests, per_s=per_s)


def _cache_changed(log: Log, model: str, worker: Worker, live: bool) -> None:
    if live:
        whole = worker.blocks is not None and worker.blocks.whole
        log.event("info", "cache of worker known", model=model, worker=worker.address, whole=whole)
    else:
        log.event("warning", "cache of worker unknown", model=model, worker=worker.address)


def _response_store_of(
    config: Config, known: ResponseStore | None, failed: Callable[[str], None]
) -> ResponseStore | None:
    """The store of responses. Responses in memory stay over a reload: `known` is the store before it. failed: called
    with the reason why one could not be stored."""
    options = config.store
    if options.where == "nowhere":
        return None
    if options.where == "redis":
        assert config.redis is not None  # the configuration was checked
        namespace = config.redis.namespace
        return RedisResponseStore(options.ttl_s, lambda: connect(config.redis), failed, namespace)
    if not isinstance(known, MemoryResponseStore):
        return MemoryResponseStore(options.ttl_s, options.max_bytes)
    return known
