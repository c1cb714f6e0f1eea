"""One configuration at work: its models, workers, limits and callers, built and looked after."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from ipaddress import ip_network
from typing import cast

from msgspec.structs import replace

from gateway import backends
from gateway.app.features import Features
from gateway.app.memory import room_for_bodies
from gateway.app.observer import FleetObserver, KeysObserver, Observer
from gateway.app.prepared import Prepared
from gateway.app.probing import headers_of
from gateway.app.routes import posts, templates
from gateway.app.services import Host, close_unshared, same_database, services_of
from gateway.auth import Absent, Keyring, Principal, digest_of
from gateway.auth.key_mirror import InForce
from gateway.config import Config
from gateway.config import Model as ModelOptions
from gateway.config.kinds import zone_of
from gateway.core.errors import GatewayError
from gateway.core.failures import Word
from gateway.core.figures import Silence
from gateway.core.messages import Op
from gateway.core.money import Tariff
from gateway.core.ports import Capabilities, Pool
from gateway.features import Deliveries, Parts
from gateway.fleet.adapters import AdapterPool
from gateway.fleet.budget import RetryBudget
from gateway.fleet.engine import ASK, update_load
from gateway.fleet.fleets import Fleets
from gateway.fleet.pool import Pool as FleetPool
from gateway.fleet.worker import Worker
from gateway.kernel import ActiveRequests, Budgets, Endpoint, Runtime, ServedModel
from gateway.kernel.delivery import DELIVERIES
from gateway.kernel.other_models import UNAVAILABLE, OtherModels
from gateway.kernel.runtime import Callers, Retries
from gateway.kernel.way import Way
from gateway.observe.log import Log
from gateway.observe.metrics import Metrics
from gateway.ratelimit import estimator
from gateway.ratelimit.addresses import client_network, sole_address
from gateway.server import EXTENSION
from gateway.transport.pooled import Pooled


class Deployment:
    """Everything that belongs to one configuration. A reload builds another; running requests finish with theirs.

    To build and to start one changes nothing that the configuration in force uses; `put_in_force` does, and with
    `fleets.take_effect` behind it the workers are this one's.
    """

    def __init__(self, config: Config, prepared: Prepared, host: Host) -> None:
        log, metrics = host.log, host.metrics
        self.config = config
        self.prepared = prepared
        self._priorities = prepared.priorities
        self.services = services = services_of(config, host)
        self._host = host
        self.transports: dict[str, Pooled] = {}
        clock = time.monotonic
        self._proxies = [ip_network(one) for one in config.listen.trusted_proxies]
        guess = estimator(config)

        def estimate(op: Op) -> int:
            return guess.cost(op).prompt

        self._models: dict[str, ServedModel] = {}
        self._posts: dict[tuple[str, str], Endpoint] | None = None
        models = self._models
        self.features: Features = Features(
            Parts(
                config=config,
                log=log,
                metrics=metrics,
                available=host.available,
                known_keys=host.known_keys,
                tokens=services.tokens,
                keys=services.keys,
                limits=prepared.limits,
                trust=prepared.trust,
                proxies=self._proxies,
                estimate=estimate,
                models=models,
                routes=partial(templates, config),
                death_of=host.death_of,
                send_event=host.send_event,
                in_force=lambda: host.in_force,
                watched=host.watched,
                group=host.group,
                earlier_services=host.deployments[-1].features.services if host.deployments else {},
            )
        )
        self.offers = offers = self.features.offers
        self.fleets = Fleets(config, host.roster, FleetObserver(log, metrics), self.asking, offers.listening, self)
        for name, options in config.models.items():
            served = self._serve_model(name, options)
            if served.other_models is not None and UNAVAILABLE in served.other_models.on:
                self.fleets.models[name].pool.instead = partial(self._answers_instead, served.other_models)
            for known_as in (name, *options.aliases):
                if known_as in config.model_names:
                    models[known_as] = served
        address = partial(sole_address, trusted=self._proxies)
        self.keyring = Keyring(
            config, verifier=services.tokens, known=host.known_keys, table=prepared.keys, address=address
        )
        self.budget = budget = RetryBudget(config.retry.budget, config.retry.min_per_second, clock)
        self.runtime = Runtime(
            models=models,
            patterns=config.patterns,
            callers=Callers(self.keyring.identify, self.keyring.confirm, self.keyring.may_use),
            observer=self._observer(log, metrics),
            extension=EXTENSION,
            max_body_bytes=config.listen.max_body_bytes,
            relay=config.relay,
            body_budget=host.body_budget,
            budgets=Budgets(host.upload_budget, host.continuation_budget, host.session_budget),
            retries=Retries(config.retry.attempts, budget.earn, budget.spend, config.retry.wait_s),
            clock=clock,
            active=ActiveRequests(),
            estimate=estimate,
            network=partial(client_network, trusted=self._proxies),
            known=host.known_keys,
            way=self.features.of(),
            deliveries=Deliveries({**DELIVERIES, **offers.deliveries}),
            receive_form=offers.receive_form,
            response_store=offers.response_store,
        )

    def _observer(self, log: Log, metrics: Metrics) -> Observer:
        sinks = (log, metrics, self.services.stream, self.services.ledger)
        return Observer(*sinks) if self.services.keys is None else KeysObserver(self.services.keys.used, *sinks)

    def endpoint(self, dialect: str, path: str) -> Endpoint | None:
        """As `features.InForce`."""
        if self._posts is None:
            self._posts = posts(self.config, self.runtime)
        return self._posts.get((dialect, path))

    def caller(self, who: Absent, dialect: str) -> Principal:
        """As `features.InForce`."""
        return self.keyring.absent(who, dialect)

    def asking(self, model: str) -> Pooled:
        """The transport for what a model's workers are asked beside requests."""
        return self.prepared.transport(model, self.config.models[model], asking=True)

    def _serve_model(self, name: str, options: ModelOptions) -> ServedModel:
        self._host.metrics.serves(name)
        backend = backends.create(options.backend)
        transport = self.prepared.transport(name, options, counts=self._host.metrics.connections[name])
        self.transports[name] = transport
        headers = headers_of(options)
        on_reply = None
        if self.config.routing.load_header and backend.gauges is not None and backend.gauges.in_replies is not None:
            headers.append(ASK)
            on_reply = partial(update_load, backend.gauges.in_replies)
        fleet = self.fleets.serve(name, backend, headers)
        deadlines = self.config.deadlines_for(name)
        return ServedModel(
            name=name,
            pool=cast("Pool", fleet.pool),
            backend=backend,
            can=fleet.can,
            transport=transport,
            deadlines=deadlines.for_transport,
            headers=headers,
            total_s=deadlines.total_s,
            created=self._host.created,
            gaps=self._host.metrics.gaps[name],
            way=self.features.of(name, backend, fleet),
            paths=frozenset(options.paths) if options.paths is not None else None,
            other_models=OtherModels.from_config(self.config, name),
            first_byte_per_token=deadlines.first_byte_per_1000_s / 1000,
            update_load=on_reply,
            tariff=self._tariff(options),
            listed=options.listed,
        )

    def _tariff(self, options: ModelOptions) -> Tariff | None:
        zone = zone_of(self.config.spend.time_zone)
        rates = [(price.begins(zone), price.rates) for price in options.price]
        return Tariff(rates, time.time) if rates else None

    def _answers_instead(self, others: OtherModels, word: Word) -> bool:
        return word in others.on and any(self._models[name].pool.may_serve(()) for name in others.fallback)

    def _callers_changed(self) -> None:
        """A key came, changed or went: no head means the same caller as before without a look, also for requests that
        run with an older configuration."""
        callers = Callers(self.keyring.identify, self.keyring.confirm, self.keyring.may_use)
        for one in self._host.deployments:
            one.runtime.callers = callers
        if (priorities := self.prepared.priorities) != self._priorities:
            self._priorities = priorities
            self.offers.prioritized(priorities)

    async def start(self) -> None:
        """Starts discovery and probes; returns once every worker was probed, so that the first request finds one. If it
        raises, nothing has changed for the configuration in force: close this one."""
        await self.services.start()
        await self.features.start()
        await self.fleets.start()
        if self.services.keys is not None:
            limits = self.prepared.limits
            await self.services.keys.catch_up(InForce(self.prepared.keys, limits.own, limits.own_of_team))

    @property
    def unread(self) -> list[str]:
        """The sources that could not be read since the start, and of which nothing is known from before."""
        keys, tokens, found = self.services.keys, self.services.tokens, self.fleets.unread
        found += ["keys of the store"] if keys is not None and keys.unread else []
        return found + (["keys of tokens"] if tokens is not None and tokens.unread else [])

    def put_in_force(self) -> None:
        """From now on this is the configuration in force; its settings hold for requests of older ones, too."""
        host, listen, services = self._host, self.config.listen, self.services
        for one in host.deployments:
            one.services.leave(services, same_database(one.config, self.config))
        host.deployments.append(self)
        host.in_force = self
        host.roster.add(self.fleets)
        host.known_keys.configured = self.keyring.sums
        host.known_keys.admins = {digest_of(one.hash) for one in self.config.admins.values()}
        for secret in self.prepared.secrets:
            host.known_keys.add(secret.encode())
        self.offers.prioritized(self._priorities)
        room, most = room_for_bodies() // host.processes, self.config.relay.continue_bytes
        host.body_budget.limit = listen.max_bodies_bytes or max(room, listen.max_body_bytes)
        host.upload_budget.limit = listen.max_uploads_bytes // host.processes
        host.continuation_budget.limit = room if most is None else most
        host.session_budget.limit = host.body_budget.limit // 2
        for room_of in host.budgets:
            room_of.share = listen.caller_share
        self.features.take_effect()
        for budget, share, shadow in self.prepared.limits.marks:
            host.metrics.budget_passed(budget, share, shadow, times=0)
        if services.keys is not None:
            limiter = self.offers.limiter
            assert limiter is not None  # a store of keys may bring limits
            services.keys.use(InForce(self.prepared.keys, limiter.own, limiter.own_of_team))
        self.prepared.keys.changed = self._callers_changed
        self._callers_changed()

    async def retire(self) -> None:
        """Gives its workers to the configuration in force, and closes when its last request has ended."""
        await self.fleets.rest()
        newest = self._host.deployments[-1]
        for model in self.fleets.models:
            self._host.roster.changed(newest.fleets, model)
        for model, address in self.workers.keys() - newest.workers.keys():
            self._host.metrics.worker_left(model, address)
        await self.runtime.active.empty(None)
        await self.close()
        await asyncio.to_thread(self.prepared.forget, self.config)

    @property
    def workers(self) -> dict[tuple[str, str], Worker]:
        return self.fleets.workers

    @property
    def pools(self) -> dict[str, FleetPool]:
        """The pools of the workers that generate, by model."""
        return {name: fleet.pool for name, fleet in self.fleets.models.items()}

    async def close(self) -> None:
        host = self._host
        if self in host.deployments:
            host.deployments.remove(self)
            host.roster.remove(self.fleets)
        await self.fleets.rest()
        await self.features.close()
        await self.fleets.close()
        for transport in self.transports.values():
            await transport.close()
        await close_unshared(self.features.services, [one.features.services for one in host.deployments])
        await self.services.close([one.services for one in host.deployments])

    # -- fleet.adapters.Serving -------------------------------------------------------------------------------------

    def narrowed(self, model: str, can: Capabilities) -> None:
        self._models[model].can = can

    def offered(self, model: str, adapter: str, pools: Sequence[AdapterPool]) -> None:
        """Serves an adapter. Keys, limits and metrics take it for its model. Other models do not have it: none answers
        instead, none gets copies."""
        served = self._models[model]
        features = (one.for_adapter(pools) for one in served.way.features)
        self._models[adapter] = replace(
            served,
            pool=cast("Pool", pools[0]),
            adapter=adapter,
            other_models=None,
            way=Way([one for one in features if one is not None]),
        )
        self._host.log.event("info", "adapter offered", model=model, adapter=adapter)

    def withdrawn(self, model: str, adapter: str) -> None:
        del self._models[adapter]
        self._host.log.event("info", "adapter gone", model=model, adapter=adapter)

    def forget(self, model: str, address: str) -> None:
        self.transports[model].forget(address)

    def silence(self, model: str, worker: Worker, recent: float) -> Silence | None:
        transport = self.transports.get(model)
        return None if transport is None else transport.silence(worker.address, recent)

    def leave(self, worker: Worker, error: GatewayError) -> None:
        self.offers.leave_worker(self.runtime.active, worker, error)
