"""The objects that outlive a configuration: those of the whole process, and services that a reload keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.auth import JwtVerifier, KnownKeys
from gateway.auth.key_mirror import KeyMirror
from gateway.auth.key_store import KeyStore
from gateway.config import Available, Config
from gateway.config.kinds import zone_of
from gateway.config.money import BudgetWebhook
from gateway.core.byte_budget import ByteBudget
from gateway.core.ports import WorkerHandle
from gateway.features import Watched
from gateway.fleet.roster import Roster
from gateway.observe.accounting import AccountingStream
from gateway.observe.ledger import Ledger
from gateway.observe.log import Log
from gateway.observe.metrics import Metrics
from gateway.observe.process_group import ProcessGroup
from gateway.observe.webhook import Webhook
from gateway.redis import connect
from gateway.tools.bounded import fetch_soon

if TYPE_CHECKING:
    from gateway.app.deployment import Deployment


class Host:
    """The objects that a gateway has for its whole life, whatever its configuration.

    created      Unix seconds, for lists of models
    available    what the gateway can do, for checks of options
    watched      returns the gateway as it is now
    group        the processes that share this one's address; None if it is alone
    processes    as many share this machine's memory for bodies
    deployments  those that requests run with, the oldest first; the last is in force
    in_force     that one, also while the process ends and there is none any more
    """

    def __init__(
        self,
        log: Log,
        metrics: Metrics,
        available: Available,
        watched: Callable[[], Watched],
        group: ProcessGroup | None,
    ) -> None:
        self.log = log
        self.metrics = metrics
        self.available = available
        self.watched = watched
        self.group = group
        self.created = int(time.time())
        self.processes = available.processes
        self.body_budget = ByteBudget()
        self.upload_budget = ByteBudget()
        self.continuation_budget = ByteBudget()
        self.session_budget = ByteBudget()
        self.budgets = (self.body_budget, self.upload_budget, self.continuation_budget, self.session_budget)
        metrics.continue_bytes.set_function(lambda: self.continuation_budget.reserved)
        self.known_keys = KnownKeys()
        self.roster = Roster()
        self.deployments: list[Deployment] = []
        self.in_force: Deployment

    async def death_of(self, model: str, worker: WorkerHandle) -> object | None:
        """See `features.Parts`. The deployment in force probes, for requests of the ones before, too."""
        return await self.deployments[-1].fleets.death_of(model, worker)

    def send_event(self, event: str, facts: dict[str, object]) -> None:
        """Has the webhook of the configuration in force send it."""
        if (webhook := self.deployments[-1].services.webhook) is not None:
            webhook.send(event, facts)


@dataclass(frozen=True, eq=False)
class Services:
    """The services that one configuration uses; None for those that it does not need. They close in this order."""

    stream: AccountingStream | None = None
    ledger: Ledger | None = None
    tokens: JwtVerifier | None = None
    keys: KeyMirror | None = None
    webhook: Webhook | None = None

    async def start(self) -> None:
        if self.keys is not None:
            await self.keys.start()
        if self.tokens is not None:
            await self.tokens.start(partial(fetch_soon, ca_file=self.tokens.ca_file))

    def leave(self, later: Services, same_database: bool) -> None:
        """`later` is in force from now on, with data in the same database or in another one."""
        if self.stream is not None and self.stream is not later.stream:
            self.stream.successor = later.stream
        if self.ledger is not None and self.ledger is not later.ledger:
            self.ledger.successor = later.ledger if same_database else None
        if self.keys is not None and self.keys is not later.keys:
            self.keys.leave()

    async def close(self, others: Collection[Services]) -> None:
        """Closes what none of `others` has."""
        await close_unshared(vars(self), [vars(one) for one in others])


async def close_unshared(mine: Mapping[str, Any], others: Collection[Mapping[str, Any]]) -> None:
    """Closes the services, by name, that none of `others` has."""
    for name, service in mine.items():
        if hasattr(service, "close") and not any(service is other.get(name) for other in others):
            await service.close()


def services_of(config: Config, host: Host) -> Services:
    """The services that `config` needs. Those of the configuration in force that are configured alike are the same
    objects, and stay as they are until `Deployment.put_in_force`."""
    log = host.log
    before = host.deployments[-1].services if host.deployments else Services()
    tokens = None if config.jwt is None else JwtVerifier(config.jwt, time.time, log.event, before.tokens)
    return Services(
        tokens=tokens,
        stream=_stream(config, host, before.stream),
        ledger=_ledger(config, host, before.ledger),
        keys=_keys(config, host),
        webhook=_webhook(config.budget_webhook, before.webhook, log),
    )


def _stream(config: Config, host: Host, before: AccountingStream | None) -> AccountingStream | None:
    redis, options, log = config.redis, config.accounting, host.log
    if options.redis_stream is None or redis is None:
        return None
    if before is not None and (host.in_force.config.redis, host.in_force.config.accounting) == (redis, options):
        return before
    return AccountingStream(
        f"{redis.namespace}:{options.redis_stream}",
        options.max_length,
        connect(redis),
        lambda state, why: log.event("warning" if why else "info", f"usage records {state}", reason=why),
        None if before is None else before.counts,
    )


def _ledger(config: Config, host: Host, before: Ledger | None) -> Ledger | None:
    redis, log = config.redis, host.log
    if not config.spend.daily or redis is None:
        return None
    if before is not None and _for_sums(host.in_force.config) == _for_sums(config):
        return before
    return Ledger(
        redis.namespace,
        zone_of(config.spend.time_zone),
        connect(redis),
        lambda state, why: log.event("warning" if why else "info", f"sums of spending {state}", reason=why),
        end_users=config.end_users is not None,
    )


def _for_sums(config: Config) -> tuple[object, ...]:
    return config.redis, config.spend.time_zone, config.end_users is None


def _webhook(options: BudgetWebhook | None, before: Webhook | None, log: Log) -> Webhook | None:
    if options is None or (before is not None and before.options == options):
        return before if options is not None else None
    return Webhook(options, partial(_webhook_changed, log))


def reused_keys(config: Config, host: Host) -> KeyMirror | None:
    """The keys of the configuration in force, if the store of `config` and its bounds are the same."""
    before = host.deployments[-1] if host.deployments else None
    if before is None or config.keys_store is None or before.config.redis != config.redis:
        return None
    return before.services.keys if before.config.stored_keys == config.stored_keys else None


def _keys(config: Config, host: Host) -> KeyMirror | None:
    if config.keys_store is None or (redis := config.redis) is None:
        return None
    if (reused := reused_keys(config, host)) is not None:
        return reused
    store = KeyStore(redis.namespace, config.stored_keys.max_audit, connect(redis), redis.call_s)
    mirror = KeyMirror(store, config.stored_keys, host.log.event)
    before = host.deployments[-1] if host.deployments else None
    if before is not None and before.services.keys is not None and same_database(before.config, config):
        mirror.take_over(before.services.keys)
    return mirror


def same_database(one: Config, other: Config) -> bool:
    """Whether both have their data in the same database of Redis."""
    return one.redis is not None and other.redis is not None and one.redis.database == other.redis.database


def _webhook_changed(log: Log, state: str, why: str) -> None:
    log.rationed("info" if state == "sending" else "warning", f"budget webhook {state}", reason=why)
