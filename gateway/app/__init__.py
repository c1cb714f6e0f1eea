"""Composition root: configuration -> ASGI application. The only package that knows every concrete class."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from urllib.parse import parse_qs

from gateway import backends, dialects
from gateway.app.base_urls import single_slashes
from gateway.app.cors import Cors
from gateway.app.deployment import Deployment
from gateway.app.deployment_metrics import DeploymentMetrics
from gateway.app.prepared import Prepared
from gateway.app.readiness import Readiness
from gateway.app.routes import postable, router, served_at, sockets
from gateway.app.saved_state import SavedState
from gateway.app.services import Host, reused_keys
from gateway.auth import from_path, read_keys
from gateway.auth.key_mirror import NOTHING
from gateway.background import cancel_tasks
from gateway.config import Available, Config
from gateway.core.byte_budget import Held
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers, header_list, header_value
from gateway.core.ports import Backend, CountedConnection, SocketSession
from gateway.features import Watched
from gateway.kernel import Application, Receive, Scope, Send, request_id, send_whole
from gateway.observe.exposition import content_type
from gateway.observe.log import Log
from gateway.observe.metrics import Metrics
from gateway.observe.process import LoopLag, ProcessMetrics
from gateway.observe.process_group import ProcessGroup
from gateway.observe.tracing import installed
from gateway.server import HttpError
from gateway.wire.openai.requests.members import Member


def _followed(backend: Backend) -> frozenset[str]:
    can = {"prefill": backend.handover is not None, "adapters": backend.adapters, "kv_events": backend.cache_events}
    return frozenset(option for option, followed in can.items() if followed)


KNOWN = Available(
    dialects={name: dialect.prefixes for name, dialect in dialects.REGISTRY.items()},
    serves=served_at,
    backends={name: _followed(backends.create(name)) for name in backends.REGISTRY},
    versioned=frozenset(name for name, dialect in dialects.REGISTRY.items() if hasattr(dialect, "api_version")),
    key_set=read_keys,
    member=Member,
    tracing=installed,
    buckets=lambda: find_spec("obstore") is not None,
)

_VERSION = version("dragoman")
# How long the error that ends a request may take to reach its client.
_LAST_WORDS_S = 2.0


class Gateway:
    """The ASGI application. `start` before serving, `close` after; `reload` and `drain` in between.

    group  where this process is one of several that share an address: metrics and state are those of all
    host   what outlives a configuration, and the deployments that still serve, the one in force last
    """

    def __init__(self, config: Config, log: Log, group: ProcessGroup | None = None) -> None:
        self.log = log
        self._group = group
        self.metrics = Metrics(config.metrics.genai, config.metrics.top_keys, shared=group is not None)
        self.metrics.alias = config.alias
        known = replace(KNOWN, processes=group.count if group is not None else 1)
        self.host = host = Host(log, self.metrics, known, self._watched, group)
        self.process = ProcessMetrics(log, lambda: len(self._sockets or ()))
        log.mask = lambda text: host.known_keys.masked(text, [])
        self._lag = LoopLag(self.metrics.loop_lag, late=lambda seconds: self.deployment.offers.loop_lag(seconds))
        self.draining = False
        # A reload cannot move a listener, and must not show /metrics to clients that could not see it before.
        self._apart = config.metrics.listen is not None
        self._retiring: set[asyncio.Task[None]] = set()
        for collector in (self.process, DeploymentMetrics(host.deployments)):
            self.metrics.registry.register(collector)
        self._reloading = asyncio.Lock()
        self._saved_state = SavedState(lambda: self.deployment, log.event)
        self._readiness = Readiness(lambda: self.deployment, log.event, time.monotonic)
        self._install(Deployment(config, Prepared(config), host))

    @property
    def deployment(self) -> Deployment:
        """The configuration in force."""
        return self.host.deployments[-1]

    def _install(self, deployment: Deployment) -> None:
        """New requests use `deployment` from now on."""
        deployment.put_in_force()
        config = deployment.config
        if config.former:
            self.log.event("warning", "names have changed", options=list(config.former))
        self._cors = Cors(config.cors, self.host.known_keys)
        paths = router(config, deployment.runtime, deployment.features.endpoints)
        self._router = self._cors.wrap(paths)
        # Nearly every request has one of a few literal paths.
        self._literal: dict[str, Application] = {
            path: self._cors.wrap(endpoint) for path, endpoint in paths.literal.items()
        }
        self._sockets = deployment.offers.sockets
        if self._sockets is not None:
            self._sockets.endpoints = sockets(config, deployment.runtime)
        self._path_keys = config.path_keys
        own = {"/livez": _live, "/readyz": self._readyz}
        # Model names are shown only to operators: a client that may ask for one could find out the others.
        self._operations: dict[str, Application] = {**own, "/readyz": self._readyz_of_model}
        if config.metrics.enabled:
            self._operations["/metrics"] = self._metrics
        self._literal.update(own if self._apart else self._operations)
        self._operations.update(deployment.features.operations)

    def _watched(self) -> Watched:
        state, limiting = self.deployment, self.deployment.offers.limiter
        return Watched(
            version=_VERSION,
            draining=self.draining,
            starting=not self._readiness.known,
            unread=state.unread,
            config=state.config,
            fleets=state.fleets,
            runtime=state.runtime,
            limiter=limiting.limiter if limiting is not None else None,
            ledger=state.services.ledger,
            admin=state.offers.admin,
            prompts_logged=state.offers.prompts_logged(state.prepared.keys.logged),
            police=state.offers.police,
            dialects=partial(postable, state.config),
            team_of=state.prepared.keys.team_of,
            application=partial(router, state.config),
        )

    async def start(self) -> None:
        await self._saved_state.start()
        await self.deployment.start()
        self.deployment.fleets.take_effect()
        self._readiness.begin()
        self._lag.start()
        if self._group is not None:
            await self._group.start(self.metrics.registry, self._answer)

    async def _answer(self, question: bytes) -> bytes:
        """Answers another process of the group."""
        word, _, rest = question.partition(b" ")
        answer = self.deployment.offers.answers.get(word)  # a feature may be off here, and not yet there
        return await answer(rest) if answer is not None else b""

    async def reload(self, config: Config) -> None:
        """New requests use `config`, running ones finish with the old one. Workers in both keep their state. Raises if
        `config` cannot be built or started: then nothing has changed."""
        async with self._reloading:
            keys = reused_keys(config, self.host)
            prepared = await asyncio.to_thread(Prepared, config, keys.known() if keys is not None else NOTHING)
            old, new = self.deployment, Deployment(config, prepared, self.host)
            try:
                await new.start()
            except BaseException:
                await new.close()
                raise
            self._install(new)
            new.fleets.take_effect()
            self.log.configure(config.log.level, config.log.requests, config.log.format)
            self.metrics.configure(config.metrics.genai, config.metrics.top_keys)
            self.metrics.alias = config.alias
            task = asyncio.create_task(old.retire())
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def drain(self) -> float:
        """Reports not ready, and waits until nothing runs and load balancers had time to notice (`relay.notice_s`).
        A request that still runs after `relay.drain_s` is ended with an error in its client's dialect. Returns the
        seconds that are left of `relay.drain_s`, for a request that came once nothing ran."""
        began = time.monotonic()
        self.draining = True
        self.metrics.draining.set(1)
        for state in self.host.deployments:
            state.runtime.active.draining = True
        self.deployment.features.drain()
        relay = self.deployment.config.relay
        await asyncio.sleep(relay.notice_s)
        await self._idle(relay.drain_s - relay.notice_s)
        if self._sockets is not None:
            self._sockets.over = _ended()
        for state in self.host.deployments:
            for run in list(state.runtime.active.requests):
                run.interrupt(_ended())
        await self._idle(_LAST_WORDS_S)
        return max(0.0, began + relay.drain_s - time.monotonic())

    def refused(self, refusal: HttpError, client: str, headers: Headers, known_as: str) -> Headers:
        """Counts and logs a request that the server refused before it reached a dialect. Returns headers for the
        answer: `x-request-id`, and what browsers need."""
        name = known_as or request_id(headers, self.host.known_keys)
        self.metrics.refused.labels(str(refusal.status)).inc()
        level = "info" if refusal.status < 500 else "warning"
        self.log.rationed(level, "refused", id=name, status=refusal.status, code=refusal.code, client=client)
        return [(b"x-request-id", name.encode()), *self._cors.reply_headers(headers)]

    async def _idle(self, timeout_s: float) -> None:
        """Until nothing runs, also nothing that began as another request ended; at most `timeout_s`."""
        ends, states = time.monotonic() + timeout_s, self.host.deployments
        while any(state.runtime.active.requests for state in states) and (left := ends - time.monotonic()) > 0:
            await asyncio.gather(*(state.runtime.active.empty(left) for state in states))

    async def close(self) -> None:
        self._lag.stop()
        if self._group is not None:
            self._group.close()
        await cancel_tasks(*self._retiring)
        await self._saved_state.close()
        for deployment in reversed(self.host.deployments):
            await deployment.close()

    def direct(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serves a request, for the gateway's own server: without a coroutine of its own."""
        path = scope["path"]
        endpoint = self._literal.get(path)
        if endpoint is None and self._path_keys and self._take_key(scope):
            path = scope["path"]
            endpoint = self._literal.get(path)
        if endpoint is None and "//" in path and (meant := single_slashes(path)) in self._literal:
            endpoint, scope["path"] = self._literal[meant], meant
        return (self._router if endpoint is None else endpoint)(scope, receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.direct(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)

    def _take_key(self, scope: Scope) -> bool:
        """Moves a key at the begin of the path to the headers. Whether there is one: `/k/v1/models` lacks it."""
        path = scope["path"]
        if single_slashes(path).removeprefix("/k") in self._literal:
            return False
        found = from_path(path, scope["raw_path"], scope["headers"])
        if found is not None:
            scope["path"], scope["raw_path"], scope["headers"] = found
        return found is not None

    def opens_socket(self, scope: Scope, connection: CountedConnection) -> tuple[SocketSession, Held] | None:
        """As `core.ports.OpensSockets`. Browsers let any page open web sockets, and read what comes: only those that
        may read replies can."""
        if self._sockets is None:
            return None
        found = dict(scope)  # a request that opens none loses its key as requests do
        if self._path_keys:
            self._take_key(found)
        if (path := single_slashes(found["path"])) in self._sockets.endpoints:
            scope.update(found, path=path)
        origin = header_value(scope["headers"], b"origin")
        return self._sockets.opens(scope, connection) if self._cors.allows(origin) else None

    async def operations(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application of `metrics.listen`: the gateway's own paths, and no dialect's."""
        path = scope["path"] = single_slashes(scope["path"])
        # The admin API reads names there, since they may hold encoded slashes.
        scope["raw_path"] = single_slashes(scope["raw_path"].decode("latin-1")).encode("latin-1")
        below = path[: path.find("/", 1) + 1]
        endpoint = self._operations.get(path) or self._operations.get(below, _nothing)
        await endpoint(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _readyz(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whether this gateway can answer. It can without workers: 503 with `Retry-After`, in the client's dialect; but
        not before it knows which there are, and whose keys are good."""
        if self.draining:
            await _plain(scope, send, 503, b"draining\n")
        elif not self._readiness.known:
            await _plain(scope, send, 503, b"starting\n")
        else:
            await _plain(scope, send, 200, b"ready\n")

    async def _readyz_of_model(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As `_readyz`; `?model=NAME` asks for a ready worker of that model, too, and `?model` for one of any model."""
        names = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get("model", [])
        models, patterns = self.deployment.runtime.models, self.deployment.runtime.patterns
        served = (
            [models.get(name) or models.get(patterns.find(name) or "") for name in names]
            if any(names)
            else list(models.values())
        )
        if names and not self.draining and not any(one is not None and one.pool.ready for one in served):
            await _plain(scope, send, 503, b"no ready worker\n")
        else:
            await self._readyz(scope, receive, send)

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        accept = header_list(scope["headers"], b"accept") or b""
        page = await self.metrics.page_in_turns(accept, self._group) if scope["method"] in ("GET", "HEAD") else b""
        await _plain(scope, send, 200, page, content_type(accept))


def _ended() -> GatewayError:
    return GatewayError(Kind.DRAINING, "the gateway is shutting down", retry_after=1.0)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    await _plain(scope, send, 404, b"not found\n")


async def _live(scope: Scope, receive: Receive, send: Send) -> None:
    await _plain(scope, send, 200, b"alive\n")


async def _plain(
    scope: Scope, send: Send, status: int, body: bytes, media_type: bytes = b"text/plain; charset=utf-8"
) -> None:
    if scope["method"] in ("GET", "HEAD"):
        await send_whole(send, status, [(b"content-type", media_type), (b"content-length", b"%d" % len(body))], body)
    else:
        await send_whole(send, 405, [(b"allow", b"GET, HEAD"), (b"content-length", b"0")], b"")
