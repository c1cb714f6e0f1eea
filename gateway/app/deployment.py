"""One configuration at work: its models, workers, limits and callers, built and looked after."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import ip_network
from typing import cast

from msgspec.structs import replace

from gateway import backends
from gateway.app.observer import FleetObserver, Observer
from gateway.app.other_models import mirrors, other_models
from gateway.app.prepared import Prepared
from gateway.app.services import Host, Services
from gateway.auth import Keyring
from gateway.config import Config
from gateway.config import Model as ModelOptions
from gateway.core.http import Headers
from gateway.core.messages import Op
from gateway.core.ports import Capabilities, Deadlines, Pool
from gateway.fleet.adapters import AdapterPool
from gateway.fleet.budget import RetryBudget
from gateway.fleet.engine import ASK, hear_load
from gateway.fleet.fleets import Fleets
from gateway.fleet.pool import Pool as FleetPool
from gateway.fleet.worker import Worker
from gateway.pipeline import ActiveRequests, Runtime, ServedModel
from gateway.pipeline.mirror import Mirror
from gateway.pipeline.models import Prefill
from gateway.pipeline.optional import Limits, PromptLog, Storing
from gateway.pipeline.prompt_tokens import ask_tokens
from gateway.pipeline.runtime import Retries, Stages
from gateway.pipeline.tracing import DebugLog, Explain, Spans
from gateway.pipeline.watch import Watchers
from gateway.ratelimit import estimator
from gateway.ratelimit.addresses import client_address
from gateway.server import EXTENSION
from gateway.transport.pooled import Pooled


class Deployment:
    """Everything that belongs to one configuration. A reload builds another; running requests finish with theirs.

    To build one changes nothing that `before` uses, the configuration before it.
    """

    def __init__(self, config: Config, prepared: Prepared, host: Host, before: Deployment | None = None) -> None:
        log, metrics = host.log, host.metrics
        self.config = config
        self.prepared = prepared
        self.services: Services = Services(config, prepared, host, None if before is None else before.services)
        services = self.services
        self._log = log
        self._metrics = metrics
        self._created = host.created
        self.transports: dict[str, Pooled] = {}
        trace = partial(log.event, "debug") if config.log.level == "debug" else None
        observer = FleetObserver(log, metrics)
        self.fleets = Fleets(config, host.roster, observer, prepared.trust.of, services.listening, self)
        clock = time.monotonic
        limits = Limits(services.limiting) if prepared.limits.any and services.limiting is not None else None
        watchers = self._watchers(trace, limits)
        self._models: dict[str, ServedModel] = {}
        models = self._models
        for name, options in config.models.items():
            served = self._serve_model(name, options, watchers)
            for known_as in (name, *options.aliases):
                models[known_as] = served
        self.keyring = Keyring(config, verifier=services.tokens, known=host.known_keys, table=prepared.keys)
        self.budget = budget = RetryBudget(config.retry.budget, config.retry.min_per_second, clock)
        guess = estimator(config)

        def estimate(op: Op) -> int:
            return guess.cost(op).prompt

        self._mirrors = mirrors(config, models, estimate, services.quarantine, metrics)
        self.runtime = Runtime(
            models=models,
            identify=self.keyring.identify,
            observer=Observer(log, metrics, services.stream),
            extension=EXTENSION,
            max_body_bytes=config.listen.max_body_bytes,
            relay=config.relay,
            body_budget=host.body_budget,
            retries=Retries(config.retry.attempts, budget.earn, budget.spend),
            clock=clock,
            active=ActiveRequests(),
            guard=host.guard,
            caps=host.caps,
            estimate=estimate,
            address=partial(client_address, trusted=[ip_network(one) for one in config.listen.trusted_proxies]),
            known=host.known_keys,
            watchers=watchers,
            stages=Stages(
                large=() if limits is None else (limits.admit_large,),
                admission=() if limits is None else (limits.admit,),
                routing=() if services.quarantine is None else (services.quarantine.check,),
            ),
            response_store=services.response_store,
        )

    def _serve_model(
        self,
        name: str,
        options: ModelOptions,
        watchers: Watchers,
    ) -> ServedModel:
        self._metrics.serves(name)
        backend = backends.create(options.backend)
        transport = Pooled(ssl_for=self._ssl_for(options.ca_file), counts=self._metrics.connections(name))
        self.transports[name] = transport
        headers: Headers = [(key.lower().encode(), value.encode()) for key, value in options.headers.items()]
        if options.api_key is not None:
            headers.append((b"authorization", b"Bearer " + options.api_key.encode()))
        hear = None
        if self.config.routing.load_header and backend.gauges is not None and backend.gauges.in_replies is not None:
            headers.append(ASK)
            hear = partial(hear_load, backend.gauges.in_replies)
        fleet = self.fleets.serve(name, backend, headers)
        prefill = None
        if options.prefill is not None:
            assert backend.handover is not None  # the configuration was checked
            prefill = Prefill(cast(Pool, fleet.prefill), backend.handover, options.prefill.min_tokens)
        deadlines = self.config.deadlines_for(name)
        return ServedModel(
            name=name,
            pool=cast(Pool, fleet.pool),
            backend=backend,
            can=fleet.can,
            transport=transport,
            deadlines=Deadlines(deadlines.connect_s, deadlines.first_byte_s, deadlines.idle_s),
            headers=headers,
            total_s=deadlines.total_s,
            created=self._created,
            gaps=self._metrics.gaps(name),
            aliases=options.aliases,
            paths=frozenset(options.paths) if options.paths is not None else None,
            other_models=other_models(self.config, name),
            hedge_s=options.hedge_s,
            first_byte_per_token=deadlines.first_byte_per_1000_s / 1000,
            prefill=prefill,
            watchers=watchers,
            stages=() if options.kv_events is None else (ask_tokens,),
            hear=hear,
        )

    def _ssl_for(self, ca_file: str | None) -> Callable[[str], ssl.SSLContext | None] | None:
        if ca_file is None:
            return None
        context = self.prepared.trust.of(ca_file)
        return lambda address: context

    def _watchers(self, debug_log: Callable[..., None] | None, limits: Limits | None) -> Watchers:
        """The watchers that are called at the steps of every request."""
        tracing, explain = self.services.tracing, self.config.routing.explain
        found = [
            None if tracing is None else Spans(tracing.tracer),
            None if debug_log is None else DebugLog(debug_log),
            self.services.quarantine,
            limits,
            None if self.services.response_store is None else Storing(self.services.response_store),
            PromptLog(self._log.prompt) if self.config.log.dangerously_log_prompts else None,
            None if explain == "never" else Explain(explain == "always"),
        ]
        return Watchers(*(one for one in found if one is not None))

    async def start(self) -> None:
        """Starts discovery and probes; returns once every worker was probed, so that the first request finds one. If it
        raises, nothing has changed for the configuration in force."""
        await self.services.start()
        await self.fleets.start()

    @property
    def workers(self) -> dict[tuple[str, str], Worker]:
        return self.fleets.workers

    @property
    def pools(self) -> dict[str, FleetPool]:
        """The pools of the workers that generate, by model."""
        return {name: fleet.pool for name, fleet in self.fleets.models.items()}

    async def close(self) -> None:
        await self.fleets.rest()
        for mirror in self._mirrors:
            await mirror.close()
        await self.fleets.close()
        for transport in self.transports.values():
            await transport.close()

    # -- fleet.adapters.Serving -------------------------------------------------------------------------------------

    def narrowed(self, model: str, can: Capabilities) -> None:
        self._models[model].can = can

    def offered(self, model: str, adapter: str, pools: Sequence[AdapterPool]) -> None:
        """Serves an adapter. Keys, limits and metrics take it for its model. Other models do not have it: none answers
        instead, none gets copies."""
        served = self._models[model]
        prefill = served.prefill
        self._models[adapter] = replace(
            served,
            pool=cast(Pool, pools[0]),
            prefill=None if prefill is None else replace(prefill, pool=cast(Pool, pools[1])),
            aliases=(),
            adapter=adapter,
            other_models=None,
            watchers=Watchers(*(one for one in served.watchers.all if not isinstance(one, Mirror))),
            stages=(),
        )
        self._log.event("info", "adapter offered", model=model, adapter=adapter)

    def withdrawn(self, model: str, adapter: str) -> None:
        del self._models[adapter]
        self._log.event("info", "adapter gone", model=model, adapter=adapter)
