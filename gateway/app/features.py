"""The optional features of a configuration, and their order around the way of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from gateway.app.routes import templates
from gateway.config import Config
from gateway.config import Model as ModelOptions
from gateway.core.errors import GatewayError
from gateway.core.messages import Media, Op
from gateway.core.ports import Backend, Pool, WorkerHandle
from gateway.features.end_users import EndUsers
from gateway.features.guards import Guards, Service
from gateway.features.hedge import Hedge
from gateway.features.kv_events import CacheEvents
from gateway.features.leave import Leave
from gateway.features.limits import Limits
from gateway.features.media import MediaDelivery
from gateway.features.mirror import Mirror
from gateway.features.prefill import Prefill
from gateway.features.pricing import Pricing
from gateway.features.prompt_log import PromptLog
from gateway.features.resume import Resume
from gateway.features.stored import Stored
from gateway.features.tracing import DebugLog, Explain, Spans
from gateway.features.web_tools import ServerSideTools
from gateway.fleet.model_fleet import ModelFleet
from gateway.kernel import ActiveRequests, ServedModel
from gateway.kernel.call import Call
from gateway.kernel.delivery import DELIVERIES, Delivery
from gateway.kernel.feature import Feature
from gateway.kernel.visit import Visit
from gateway.kernel.way import Way
from gateway.ratelimit import estimator
from gateway.ratelimit.addresses import comes_from
from gateway.transport.pooled import Pooled

if TYPE_CHECKING:
    from gateway.app.services import Host, Services

ALL_DELIVERIES: Mapping[type, Delivery] = {**DELIVERIES, Media: MediaDelivery()}


class Features:
    """The features of one configuration. A feature that all models have is one object in all their ways: by it
    `Call.notes` are found.

    mirrors  these have requests of their own under way
    guards_transport  has to be closed at the end; None without guards
    """

    def __init__(
        self,
        config: Config,
        services: Services,
        host: Host,
        models: Mapping[str, ServedModel],
        estimate: Callable[[Op], int],
        trust: Mapping[Any, Any],
        proxies: list[Any],
        limited: bool,
    ) -> None:
        self._config = config
        self._services = services
        self._host = host
        self._models = models
        self._estimate = estimate
        self.guards_transport: Pooled | None = None
        self.mirrors: list[Mirror] = []
        self._tools = ServerSideTools(services.tools)
        self._resume = Resume()
        self._leave = Leave(self._resume.may_go_on)
        self._leave_unseen = Leave(_never)
        debug, tracing, explain = config.log.level == "debug", services.tracing, config.routing.explain
        self._of_all: tuple[Feature | None, ...] = (
            None if tracing is None else Spans(tracing, templates(config)),  # sees all that the others do
            host.shedding,  # before anything is spent on the request
            host.caps,
            PromptLog(host.log.prompt) if config.log.dangerously_log_prompts else None,
            None if explain == "never" else Explain(explain == "always"),
            self._pricing(),  # limits charge what it has written
            self._end_users(proxies),  # guards and limits go by them
            self._guards(trust),  # a refused request is charged nothing
            host.caps.streams,  # before guards are asked: these ask once those below have read the request
            DebugLog(partial(host.log.event, "debug")) if debug else None,
            Limits(services.limiting) if limited and services.limiting is not None else None,
            None if services.response_store is None else Stored(services.response_store),
            services.quarantine,  # outside what asks another worker: after two deaths none is asked
        )

    def of(self, name: str | None = None, backend: Backend | None = None, fleet: ModelFleet | None = None) -> Way:
        """The way of requests to the model `name`; of all requests, while their model is not known. The order holds
        within a step: guards, which wrap `read`, are asked before all that wraps only `answer`, wherever it stands."""
        options = None if name is None else self._config.models[name]
        resumes = options is not None and options.continue_streams
        found = (
            *self._of_all,
            self._resume if resumes else None,  # a stream that was seen is not tried again as a whole
            self._leave if resumes else self._leave_unseen,
            self._tools,  # each round is a request to workers for all below
            *(() if options is None else self._of_model(cast("str", name), options, backend, fleet)),
        )
        return Way([one for one in found if one is not None])

    def _of_model(
        self, name: str, options: ModelOptions, backend: Backend | None, fleet: ModelFleet | None
    ) -> list[Feature | None]:
        prefill = None
        if options.prefill is not None and backend is not None and fleet is not None:
            assert backend.handover is not None  # the configuration was checked
            prefill = Prefill(cast("Pool", fleet.prefill), backend.handover, options.prefill.min_tokens)
        return [
            None if options.kv_events is None else CacheEvents(),  # the prefill worker is picked by the tokens, too
            prefill,
            self._mirror(name, options),
            None if options.hedge_s is None else Hedge(options.hedge_s),  # asks a worker itself
        ]

    def leave_worker(self, active: ActiveRequests, worker: WorkerHandle, error: GatewayError) -> int:
        """As `Leave.leave_worker`."""
        return self._leave.leave_worker(active, worker, error)

    def _mirror(self, name: str, options: ModelOptions) -> Mirror | None:
        if options.mirror is None:
            return None
        to = self._config.model_names[options.mirror.model]
        counts = self._host.metrics.mirrored

        def count(result: str) -> None:
            counts.labels(name, to, result).inc()

        mirror = Mirror(to, options.mirror, count, self._models, self._estimate, self._services.quarantine)
        self.mirrors.append(mirror)
        return mirror

    def _guards(self, trust: Mapping[Any, Any]) -> Guards | None:
        config, log = self._config, self._host.log
        if not config.guards:
            return None
        context, names = trust[None], config.model_names
        self.guards_transport = transport = Pooled(ssl_for=lambda address: context)
        services = [
            Service(
                name,
                options,
                None if options.models is None else frozenset(names[model] for model in options.models),
                [(header.lower().encode(), value.encode()) for header, value in options.headers.items()],
                transport,
            )
            for name, options in config.guards.items()
        ]

        def failed(guard: str, id: str, why: str) -> None:
            log.rationed("warning", "guard failed", guard=guard, id=id, reason=why)

        return Guards(services, failed)

    def _end_users(self, proxies: list[Any]) -> EndUsers | None:
        options, salt = self._config.end_users, self._config.cache_salt
        if options is None:
            return None
        salted = salt is not None and salt.by == "end_user"
        return EndUsers(options, salted, partial(comes_from, networks=proxies), self._host.known_keys)

    def _pricing(self) -> Pricing | None:
        config = self._config
        if not any(options.price for options in config.models.values()):
            return None
        for budget in config.budgets:
            for at in (*budget.warn_at, 1.0):
                self._host.metrics.budgets.labels(budget.name, f"{at:g}")
        return Pricing(estimator(config).cost, config.spend.header)


def _never(call: Call, visit: Visit) -> bool:
    return False
