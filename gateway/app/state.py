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
from gateway.config.routing import WorkerOptions
from gateway.core.http import Headers
from gateway.core.messages import Op
from gateway.core.ports import Deadlines, Pool
from gateway.fleet.abilities import Abilities
from gateway.fleet.adapters import AdapterPool, Adapters
from gateway.fleet.budget import RetryBudget
from gateway.fleet.discovery import able
from gateway.fleet.engine import ASK, hear_load
from gateway.fleet.fleets import Fleets
from gateway.fleet.loads import Loads
from gateway.fleet.served import small_body
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

_ORDINARY = WorkerOptions()
_ADDRESSED = ("backend", "upstream_model", "api_key", "headers", "ca_file", "paths", "features", "max_context")
"""Options of a model that say what its workers are sent, and who they are."""


class State:
    """Everything that belongs to one configuration. A reload builds another; running requests finish with theirs.

    To build one changes nothing that `before` uses, the configuration before it.
    """

    def __init__(self, config: Config, prepared: Prepared, host: Host, before: State | None = None) -> None:
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
        known = None if before is None else before.fleets
        self.fleets: Fleets = Fleets(config, FleetObserver(log, metrics), trace, known, prepared.trust.of)
        fleets = self.fleets
        self.workers, self.pools, self.prefill_pools = fleets.workers, fleets.pools, fleets.prefill_pools
        self.loads = Loads(config, fleets.probe_client, small_body, self._load_told)
        # Nothing but `follow` changes its workers any more.
        self.rested = False
        # Called with a model whose workers discovery changed, or of which one became ready.
        self.on_workers: Callable[[str], None] = lambda model: None
        clock = time.monotonic
        limits = Limits(services.limiting) if prepared.limits.any and services.limiting is not None else None
        watchers = self._watchers(trace, limits)
        self._models: dict[str, ServedModel] = {}
        models = self._models
        self._abilities = Abilities(config, fleets, models, lambda model: self.adapters.offer(model))
        for name, options in config.models.items():
            served = self._serve_model(name, options, watchers)
            for known_as in (name, *options.aliases):
                models[known_as] = served
        self.keyring = Keyring(config, verifier=services.tokens, known=host.known_keys, table=prepared.keys)
        abilities = self._abilities
        self.adapters: Adapters = Adapters(
            config, models, fleets.pools_of, fleets.probe_client, abilities.ask_again, abilities.narrow, self
        )
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
        pool = self.fleets.serve(name, options.workers, backend)
        prefill = None
        if options.prefill is not None:
            assert backend.handover is not None  # the configuration was checked
            computing = self.fleets.prefill(name, options.prefill.workers, backend)
            prefill = Prefill(cast(Pool, computing), backend.handover, options.prefill.min_tokens)
        transport = Pooled(ssl_for=self._ssl_for(options.ca_file), counts=self._metrics.connections(name))
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
            pool=cast(Pool, pool),
            backend=backend,
            can=able(self._abilities.declared[name], ()),
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
        """What looks at the steps of every request."""
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
        """Starts discovery and probes; returns once every worker was probed, so that the first request finds one."""
        await self.services.start()
        await self.fleets.start(self._joined, lambda model: self.on_workers(model), self._abilities.ask)
        for name in self.config.models:
            self._abilities.narrow(name)
        self.adapters.start()
        self.loads.start(self.runtime.models, {model: self.fleets.pools_of(model) for model in self.pools})
        self._start_listening()

    def _start_listening(self) -> None:
        """The last step of `start`: if another one fails, the configuration before goes on listening."""
        if self.services.listening is not None:
            telling = [name for name, options in self.config.models.items() if options.kv_events is not None]
            self.services.listening.keep(telling)
        for model in self.pools:
            self._listen(model)

    def _listen(self, model: str) -> None:
        """Listens to what the workers of `model` say of their caches, if that is configured."""
        options, workers = self.config.models[model], self.fleets.of(model)
        if options.kv_events is None:
            for worker in workers:
                worker.blocks = None
        elif self.services.listening is not None:
            own = {worker: options.worker_options.get(worker.address, _ORDINARY).kv_events for worker in workers}
            self.services.listening.follow(model, {worker: ports or options.kv_events for worker, ports in own.items()})

    def _joined(self, model: str) -> None:
        self.loads.follow(model, self.fleets.pools_of(model))
        self._listen(model)
        self._abilities.narrow(model)
        self.on_workers(model)

    def follow(self, newer: State, model: str) -> None:
        """What waits here for a worker of `model`, or tries another one, gets those of the configuration `newer`. It is
        made for workers of this configuration: none gets it that is addressed in another way. Where none of the others
        is ready, it keeps those that are."""
        mine, theirs = self.config.models.get(model), newer.config.models.get(model)
        if not self.rested or mine is None or theirs is None:
            return
        if any(getattr(mine, name) != getattr(theirs, name) for name in _ADDRESSED):
            return
        pools = [
            (ours[model], others[model])
            for ours, others in ((self.pools, newer.pools), (self.prefill_pools, newer.prefill_pools))
            if model in ours and model in others and (others[model].ready or not ours[model].ready)
        ]
        for pool, other in pools:
            pool.change(other.workers, ahead=True)
        self.adapters.offer(model)
        for pool, _ in pools:
            pool.refit_waiting()

    async def rest(self) -> None:
        """Stops discovery, probes and readings of load. Running requests keep their workers."""
        await self.adapters.close()
        await self.loads.close()
        await self.fleets.rest()
        self.rested = True

    async def close(self) -> None:
        await self.rest()
        for mirror in self._mirrors:
            await mirror.close()
        await self.fleets.close()
        for transport in self.transports.values():
            await transport.close()

    def _load_told(self, model: str, worker: Worker, counts: bool) -> None:
        if counts:
            self._log.event("info", "load of worker known", model=model, worker=worker.address)
            if worker.blocks is not None and worker.blocks.ranks > 1:
                about = {"model": model, "worker": worker.address, "ranks": worker.blocks.ranks}
                self._log.event("warning", "cache of worker not used", **about)
        else:
            self._log.event("warning", "load of worker stale", model=model, worker=worker.address)

    # -- fleet.adapters.Offers --------------------------------------------------------------------------------------

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
