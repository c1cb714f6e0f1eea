"""The objects that outlive a configuration: those of the whole process, and services that a reload keeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import httpx

from gateway.admin import KeyMirror, KeyStore
from gateway.auth import JwtVerifier, KnownKeys
from gateway.config import Config
from gateway.config.kinds import zone_of
from gateway.config.money import BudgetWebhook
from gateway.core.byte_budget import ByteBudget
from gateway.core.money import shown
from gateway.core.ports import ResponseStore, WorkerHandle
from gateway.features.caps import Caps
from gateway.features.quarantine import Quarantine
from gateway.features.shedding import Shedding
from gateway.features.stored import MemoryResponseStore, RedisResponseStore
from gateway.fleet.kv_events import Listening
from gateway.fleet.roster import Roster
from gateway.fleet.worker import Worker
from gateway.observe.accounting import AccountingStream
from gateway.observe.ledger import Ledger
from gateway.observe.log import Log
from gateway.observe.metrics import Metrics
from gateway.observe.tracing import tracer_of
from gateway.observe.webhook import Webhook
from gateway.offload import offload
from gateway.ratelimit import BudgetRule, HttpRateLimiter, Limits, Subject
from gateway.redis import connect
from gateway.tools import WebTools
from gateway.tools.bounded import read

if TYPE_CHECKING:
    from gateway.app.deployment import Deployment
    from gateway.batches import Batching
    from gateway.observe.spans import Spans

S = TypeVar("S", Webhook, WebTools)

_FETCH_S = 5.0
_MOST_BYTES = 1 << 20


async def fetch_keys(url: str) -> bytes:
    """The keys of an identity provider. They come soon or not at all, because a start waits for them. Raises
    httpx.HTTPStatusError for a status that is not 2xx, ValueError for a body above 1 MiB, and httpx.HTTPError,
    TimeoutError, httpx.InvalidURL."""
    plain = {"accept-encoding": "identity"}  # a few bytes can unpack to any number
    async with (
        asyncio.timeout(_FETCH_S),
        httpx.AsyncClient(trust_env=False) as client,
        client.stream("GET", url, headers=plain, timeout=None) as answer,
    ):
        answer.raise_for_status()
        body, whole = await read(answer, _MOST_BYTES)
    if not whole:
        raise ValueError("the answer is too large")
    return body


class Host:
    """The objects that a gateway has for its whole life, whatever its configuration.

    created      Unix seconds, for lists of models
    processes    as many share this machine's memory for bodies
    deployments  those that requests run with, the oldest first; the last is in force
    in_force     that one, also while the process ends and there is none any more
    """

    def __init__(self, log: Log, metrics: Metrics, processes: int = 1) -> None:
        self.log = log
        self.metrics = metrics
        self.created = int(time.time())
        self.processes = processes
        self.shedding = Shedding(self._shedding, metrics.shed.labels("lag").inc)
        self.caps = Caps(lambda what: metrics.shed.labels(what).inc())
        self.body_budget = ByteBudget()
        self.upload_budget = ByteBudget()
        self.kept = ByteBudget()
        self.session_budget = ByteBudget()
        self.budgets = (self.body_budget, self.upload_budget, self.kept, self.session_budget)
        metrics.kept.set_function(lambda: self.kept.reserved)
        self.known_keys = KnownKeys()
        self.roster = Roster()
        self.deployments: list[Deployment] = []
        self.in_force: Deployment

    async def death_of(self, model: str, worker: WorkerHandle) -> object | None:
        """See `quarantine.Quarantine`. The deployment in force probes, for requests of the ones before, too."""
        return await self.deployments[-1].fleets.death_of(model, worker)

    def _shedding(self, begins: bool) -> None:
        self.log.event("warning" if begins else "info", "shedding" if begins else "shedding over")


@dataclass(frozen=True, eq=False)
class Services:
    """The services that one configuration uses; None for those that it does not need. They close in this order."""

    stream: AccountingStream | None = None
    ledger: Ledger | None = None
    response_store: ResponseStore | None = None
    tokens: JwtVerifier | None = None
    limiting: HttpRateLimiter | None = None
    tracing: Spans | None = None
    quarantine: Quarantine | None = None
    listening: Listening | None = None
    keys: KeyMirror | None = None
    tools: WebTools | None = None
    batching: Batching | None = None
    webhook: Webhook | None = None

    async def start(self) -> None:
        if self.keys is not None:
            await self.keys.start()
        if self.limiting is not None:
            await self.limiting.start()
        if self.tokens is not None:
            await self.tokens.start(fetch_keys)
        if self.batching is not None:
            await self.batching.start()

    async def close(self, others: Collection[Services]) -> None:
        """Closes what none of `others` has."""
        for name, service in vars(self).items():
            if hasattr(service, "close") and not any(service is getattr(other, name) for other in others):
                await service.close()


def services_of(config: Config, limits: Limits, host: Host) -> Services:
    """The services that `config` needs. Those of the configuration in force that are configured alike are the same
    objects, and stay as they are until `take_effect`. limits: those of `config`."""
    log, redis = host.log, config.redis
    before = host.deployments[-1].services if host.deployments else Services()
    tokens = stream = ledger = listening = None
    if config.jwt is not None:
        tokens = JwtVerifier(config.jwt, time.time, log.event, before.tokens)
    if config.accounting.redis_stream is not None and redis is not None:
        stream = AccountingStream(
            f"{redis.namespace}:{config.accounting.redis_stream}",
            config.accounting.max_length,
            connect(redis),
            lambda state, why: log.event("warning" if why else "info", f"usage records {state}", reason=why),
        )
    if config.spend.daily and redis is not None:
        ledger = Ledger(
            redis.namespace,
            zone_of(config.spend.time_zone),
            connect(redis),
            lambda state, why: log.event("warning" if why else "info", f"sums of spending {state}", reason=why),
            end_users=config.end_users is not None,
        )
    if any(options.kv_events is not None for options in config.models.values()):
        listening = before.listening or Listening(partial(_cache_changed, log))
    return Services(
        tracing=tracer_of(config.tracing, before.tracing),
        limiting=_limiting(config, before.limiting, limits, host),
        tokens=tokens,
        stream=stream,
        ledger=ledger,
        response_store=_response_store(config, before.response_store, log),
        quarantine=_quarantine(config, before.quarantine, host),
        listening=listening,
        keys=_keys(config, host),
        tools=_kept(before.tools, config.tools) or (WebTools(config.tools, offload) if config.tools.runs else None),
        batching=_batching(config, host),
        webhook=_webhook(config.budget_webhook, before.webhook, log),
    )


def _kept(before: S | None, options: object) -> S | None:
    """The service from before, if it is configured alike."""
    return before if before is not None and before.options == options else None


def _webhook(options: BudgetWebhook | None, before: Webhook | None, log: Log) -> Webhook | None:
    return _kept(before, options) or (Webhook(options, partial(_webhook_changed, log)) if options is not None else None)


def _limiting(config: Config, before: HttpRateLimiter | None, limits: Limits, host: Host) -> HttpRateLimiter | None:
    if before is not None and before.fits(config):
        return before
    changed, alone = partial(_limits_changed, host.log), partial(_decided_alone, host.log)
    return HttpRateLimiter(config, limits, changed, alone, partial(_budget_passed, host)) if limits.any else None


def kept_keys(config: Config, host: Host) -> KeyMirror | None:
    """The keys of the configuration in force, if the store of `config` and its bounds are the same."""
    before = host.deployments[-1] if host.deployments else None
    if before is None or config.keys_store is None or before.config.redis != config.redis:
        return None
    return before.services.keys if before.config.stored_keys == config.stored_keys else None


def _keys(config: Config, host: Host) -> KeyMirror | None:
    if config.keys_store is None or (redis := config.redis) is None:
        return None
    store = KeyStore(redis.namespace, config.stored_keys.max_audit, connect(redis), redis.call_s)
    return kept_keys(config, host) or KeyMirror(store, config.stored_keys, host.log.event)


def _batching(config: Config, host: Host) -> Batching | None:
    options, redis = config.batches, config.redis
    if options is None or redis is None:
        return None
    from gateway.batches import Batching, BatchStore  # not imported where they are off

    before = host.deployments[-1] if host.deployments else None
    if before is not None and (before.config.batches, before.config.redis) == (options, redis):
        return before.services.batching

    def count(api: str, result: str, lines: int) -> None:
        host.metrics.batch_lines.labels(api, result).inc(lines)

    for api in ("openai", "anthropic"):  # an alert needs to see it begin
        host.metrics.batch_lines.labels(api, "expired")
    store = BatchStore(redis.namespace, connect(redis), redis.call_s)
    return Batching(options, store, lambda: host.in_force, count, host.log.event)


def _quarantine(config: Config, before: Quarantine | None, host: Host) -> Quarantine | None:
    def held(model: str, digest: str) -> None:
        host.metrics.quarantined.labels(model).inc()
        host.log.event("warning", "request quarantined", model=model, digest=digest)

    hold_s = config.breaker.quarantine_s
    return (before or Quarantine(hold_s, host.death_of, held, time.monotonic)) if hold_s else None


def _response_store(config: Config, before: ResponseStore | None, log: Log) -> ResponseStore | None:
    """Responses in memory stay over a reload."""
    options, redis = config.store, config.redis
    match options.where:
        case "nowhere":
            return None
        case "memory" if isinstance(before, MemoryResponseStore):
            return before
        case "memory":
            return MemoryResponseStore(options.ttl_s, options.max_bytes)
        case "redis":
            assert redis is not None  # the configuration was checked
            return RedisResponseStore(
                options.ttl_s,
                connect(redis),
                lambda why: log.event("warning", "responses not stored", reason=why),
                redis.namespace,
                redis.call_s,
            )


def _limits_changed(log: Log, state: str, reason: str) -> None:
    log.event("info" if state == "strict" else "warning", f"limits {state}", **({"reason": reason} if reason else {}))


def _decided_alone(log: Log, requests: int, seconds: float) -> None:
    log.event("warning", "decided without redis", requests=requests, per_s=round(requests / max(seconds, 0.001), 1))


def _budget_passed(host: Host, rule: BudgetRule, subject: Subject, share: float, used: int) -> None:
    host.metrics.budget_passed(rule.name, share)
    facts = {
        "budget": rule.name,
        "of": {one: getattr(subject, one) for one in rule.scope},
        "at": share,
        "used": shown(used),
        "amount": shown(rule.limit),
        "currency": rule.currency,
        "period": rule.calendar.label(time.time()),
    }
    what = "passed" if share < 1 else "spent"
    host.log.rationed("warning", f"budget {what}", **facts)  # a client may name any number of end users
    webhook = host.deployments[-1].services.webhook  # that of the configuration in force
    if webhook is not None:
        webhook.send(f"budget.{what}", facts)


def _webhook_changed(log: Log, state: str, why: str) -> None:
    log.rationed("info" if state == "sending" else "warning", f"budget webhook {state}", reason=why)


def _cache_changed(log: Log, model: str, worker: Worker, live: bool) -> None:
    if live:
        whole = worker.blocks is not None and worker.blocks.whole
        log.event("info", "cache of worker known", model=model, worker=worker.address, whole=whole)
    else:
        log.event("warning", "cache of worker unknown", model=model, worker=worker.address)
