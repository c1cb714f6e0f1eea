"""One request, top to bottom. Names no dialect, no backend, no limit.

match route -> authenticate -> read body -> dialect.read -> model to pool -> limits -> pick a worker -> relay -> record.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from gateway.auth import ANONYMOUS, PendingAuth, Principal
from gateway.client import Client, Receive, Scope, Send, connect
from gateway.core import totals
from gateway.core.ability import refuse_beyond
from gateway.core.byte_budget import ByteBudget
from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import Headers, Request, Response, Route, header_value
from gateway.core.lifecycle import fold
from gateway.core.messages import PLACEHOLDERS, Embed, ListModels, ModelCard, Op
from gateway.core.ports import (
    Backend,
    Capabilities,
    Counting,
    Deadlines,
    Dialect,
    Gate,
    Lane,
    Observer,
    Permit,
    Pool,
    RequestRecord,
    Transport,
    WorkerHandle,
)
from gateway.core.usage import Usage
from gateway.offload import LARGE, offload
from gateway.relay import EventLane, Pump, Waiting

# A worker must never see one id twice: vLLM's become ids of sequences, while a client may repeat its own.
_ATTEMPTS = itertools.count(int.from_bytes(os.urandom(3), "big"))
# A key in the wrong header is no name for a request: names are logged.
_REQUEST_ID = re.compile(rb"(?!dgm_)[A-Za-z0-9._:-]{1,128}\Z")
_MAX_FAULT_BYTES = 1 << 20
# Of what was dropped, in a header and in a record.
_MOST_NAMES = 32
_LONGEST_NAME = 64
_UNFIT = re.compile(r"[^A-Za-z0-9_.\[\]-]")


_NOBODY = PendingAuth(ANONYMOUS)


class ServedModel(Struct):
    """One model at run time."""

    name: str
    pool: Pool
    backend: Backend
    can: Capabilities
    transport: Transport
    deadlines: Deadlines
    headers: Headers
    total_s: float | None
    created: int
    aliases: tuple[str, ...] = ()
    paths: frozenset[str] | None = None

    def card(self, name: str, draining: bool) -> ModelCard:
        return ModelCard(
            name,
            self.created,
            self.pool.ready and not draining,
            self.can.max_context,
            self.name if name != self.name else None,
            self.can.features,
        )


class Runtime(Struct):
    """What every request of one configuration shares.

    offers      by every name that clients may use, aliases included
    may_retry   spends from the retry budget; `earn` feeds it
    room        for large request bodies
    running     requests under way, for shutdown
    estimate    tokens of a prompt that no worker told the length of
    gate        limits; None when there are none
    trace       told of every step by (what, **fields), for the log at level debug; None at any other
    """

    models: Mapping[str, ServedModel]
    identify: Callable[[Headers, str], PendingAuth]
    observer: Observer
    extension: str
    max_body_bytes: int
    max_reply_bytes: int
    keepalive_s: float
    body_budget: ByteBudget
    attempts: int
    earn: Callable[[], None]
    may_retry: Callable[[], bool]
    clock: Callable[[], float]
    running: Running
    estimate: Callable[[Op], int]
    gate: Gate | None = None
    trace: Callable[..., None] | None = None


class Running:
    """Requests under way. draining: no more should come, and to whoever asks no model is ready."""

    def __init__(self) -> None:
        self.draining = False
        self.runs: set[Run] = set()
        self._emptied: list[asyncio.Future[None]] = []

    def add(self, run: Run) -> None:
        self.runs.add(run)

    def discard(self, run: Run) -> None:
        self.runs.discard(run)
        if not self.runs:
            for future in self._emptied:
                if not future.done():
                    future.set_result(None)
            self._emptied.clear()

    async def empty(self, timeout_s: float | None) -> None:
        """Returns when none is under way, or after `timeout_s`."""
        if self.runs and (timeout_s is None or timeout_s > 0):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._emptied.append(future)
            await asyncio.wait([future], timeout=timeout_s)


class Endpoint:
    """The raw ASGI endpoint of one path of a dialect."""

    def __init__(
        self, runtime: Runtime, dialect: Dialect, routes: Mapping[str, Route], default_model: str | None
    ) -> None:
        self.runtime = runtime
        self.dialect = dialect
        self.routes = routes
        self.default_model = default_model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Run(self, scope, receive, send).go()


class Run:
    """One request under way."""

    def __init__(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
        self.endpoint = endpoint
        self.runtime = endpoint.runtime
        self.scope = scope
        self.record = RequestRecord(request_id(scope["headers"]), endpoint.dialect.name)
        self.client: Client = connect(scope, receive, send, endpoint.runtime.extension, self.record.id)
        self.request: Request | None = None
        self.op: Op | None = None
        self.pump: Pump | None = None
        self.permit: Permit | None = None
        self.headers: Headers = [(b"x-request-id", self.record.id.encode())]
        self.dropped: tuple[str, ...] = ()
        self.errors: list[GatewayError] = []
        self._task: asyncio.Task[Any] | None = None
        self._interrupted: GatewayError | None = None
        self._large = False
        self._generation = 0
        self._began = 0.0
        self._heard = 0.0  # when the client last did, or began to wait, in the loop's time
        self._waiting: Waiting | None = None
        self._quiet: asyncio.TimerHandle | None = None

    async def go(self) -> None:
        runtime = self.runtime
        self._began = runtime.clock()
        self._task = asyncio.current_task()
        runtime.running.add(self)
        runtime.observer.begun(self.record.dialect)
        try:
            await self.serve()
        except GatewayError as error:
            self.errors.append(error)
            await self.refuse(error)
        except asyncio.CancelledError:
            assert self._task is not None
            if self.client.gone:
                self._task.uncancel()
                self._cancelled()
            elif self._interrupted is not None:
                self._task.uncancel()
                await self.refuse(self._interrupted)
            else:
                raise
        except Exception as error:
            runtime.observer.bug(self.record, error)
            await self.refuse(GatewayError(Kind.INTERNAL, "the gateway failed to handle this request"))
        finally:
            # An error that was raised holds the frames it passed, and they hold it: without this a refused body would
            # stay in memory until the collector comes.
            for met in self.errors:
                met.__traceback__ = met.__context__ = met.__cause__ = None
            if self._quiet is not None:
                self._quiet.cancel()
            if self._waiting is not None:
                self._waiting.close()
            runtime.running.discard(self)
            if self.client.reserved_bytes:
                runtime.body_budget.release(self.client.reserved_bytes)
            self._settle()
            self.client.close()
            self.record.ms = round((runtime.clock() - self._began) * 1000, 3)
            runtime.observer.finished(self.record)

    # -- endings from outside ---------------------------------------------------------------------------------------

    def left(self) -> None:
        """The client is gone: whatever this request waits for is cancelled, the worker's connection closed."""
        if self._task is not None:
            self._task.cancel()

    def interrupt(self, error: GatewayError) -> None:
        """Ends the request with `error`, told to the client in its dialect."""
        if self.pump is not None and self.pump.committed:
            self.pump.interrupt(error)
        elif self._unseen and self._task is not None and self._interrupted is None:
            self._interrupted = error
            self._task.cancel()

    @property
    def _unseen(self) -> bool:
        """The client has seen nothing of a reply; blanks at most."""
        if self._waiting is not None:
            return self.pump is None or not self.pump.committed
        return not self.client.started

    def _silence(self, op: Any, served: ServedModel) -> None:
        """Lets a streaming client hear something: it has been quiet for long enough for a proxy to give up soon."""
        loop, again = asyncio.get_running_loop(), self.runtime.keepalive_s
        if self.pump is not None:
            again = self.pump.silence()
        else:
            self._heard = loop.time()
            if self._waiting is not None:
                self._waiting.blank()
            else:
                self._waiting = Waiting(self.client, self._lane(op, served), self._head())
                self.record.status = 200
        self._quiet = loop.call_later(again, self._silence, op, served)

    # -- the way down -----------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        runtime, endpoint, scope, record = self.runtime, self.endpoint, self.scope, self.record
        dialect = endpoint.dialect
        route = endpoint.routes.get(scope["method"])
        request = self.request = Request(
            scope["method"],
            scope["path"],
            scope["headers"],
            b"",
            scope["query_string"],
            route.name if route is not None else "",
            scope.get("path_params") or {},
            record.id,
        )
        pending = _NOBODY if route is not None and route.open else runtime.identify(scope["headers"], dialect.name)
        principal = pending.principal
        if pending.prove is None:
            record.key, record.team = principal.key, principal.team
        if not endpoint.routes:
            raise GatewayError(Kind.NO_ROUTE, f"there is nothing at this path: {scope['method']} {scope['path'][:200]}")
        if route is None:
            self.headers.append((b"allow", ", ".join(sorted(endpoint.routes)).encode()))
            raise GatewayError(Kind.NO_METHOD, f"{scope['method']} is not allowed here")
        record.operation = route.name
        if route.method == "POST":
            request.body = await self.client.body(runtime.max_body_bytes, runtime.body_budget)
        self.client.watch(self.left)
        if pending.prove is not None:
            pending.prove(scope["method"], scope["raw_path"], scope["query_string"], request.body)
            record.key, record.team = principal.key, principal.team
        self._large = len(request.body) > LARGE
        op = self.op = await offload(dialect.read, request) if self._large else dialect.read(request)
        self._drop(op.dropped)
        if isinstance(op, ListModels):
            cards = self._models(op, principal)
            if cards.status >= 500:  # a health check, answered with what it asks for: nothing can be served
                record.outcome, record.code = "failed", dialect.errors[Kind.NO_WORKER][2]
            await self.respond(cards)
            return
        served = self._resolve_model(op, principal)
        op.salt = principal.salt
        record.model, record.stream = served.name, op.stream
        if runtime.trace is not None:
            runtime.trace("request read", id=record.id, operation=record.operation, model=served.name, stream=op.stream)
        refuse_beyond(op, served.can)
        if runtime.gate is not None:
            self.permit = await runtime.gate.admit(record, op, served.can.max_context, scope, self.headers)
        if op.timeout is None and served.total_s is None:
            await self._try(op, served, principal)
        else:
            await self._with_deadline(op, served, principal)

    def _models(self, op: ListModels, principal: Principal) -> Response:
        only = self.endpoint.default_model if op.one and op.model is None else op.model
        cards = [
            served.card(name, self.runtime.running.draining)
            for name, served in self.runtime.models.items()
            if principal.may_use(served.name) and (only is None or name == only)
        ]
        if only is not None and not cards:
            raise unknown_model(only)
        return op.write(cards)

    def _resolve_model(self, op: Op, principal: Principal) -> ServedModel:
        assert not isinstance(op, ListModels)
        for hint in op.hints:
            served = self.runtime.models.get(hint)
            if served is not None and principal.may_use(served.name):
                op.model = hint
                break
        name = op.model
        served = self.runtime.models.get(name) if name is not None else None
        default = self.endpoint.default_model
        if served is None and default is not None and (name is None or name in PLACEHOLDERS):
            served = self.runtime.models[default]
            op.model = default
        if name is None and served is None:
            raise GatewayError(
                Kind.BAD_REQUEST, "missing required parameter: 'model'", param="model", code="missing_parameter"
            )
        # A model that the caller may not use is answered as one that does not exist.
        if served is None or not principal.may_use(served.name):
            raise unknown_model(name or next(iter(op.hints), ""))
        return served

    async def _with_deadline(self, op: Op, served: ServedModel, principal: Principal) -> None:
        assert not isinstance(op, ListModels)
        seconds = min(limit for limit in (op.timeout, served.total_s) if limit is not None)
        late = GatewayError(
            Kind.TIMEOUT, f"the request took longer than {seconds:g} s", blame=Blame.US, code="deadline_exceeded"
        )
        timer = asyncio.get_running_loop().call_later(seconds, self.interrupt, late)
        try:
            await self._try(op, served, principal)
        finally:
            timer.cancel()

    async def _try(self, op: Any, served: ServedModel, principal: Principal) -> None:
        """Sends the same untouched request to one worker after another until one answers, within the retry budget."""
        runtime, record, pool = self.runtime, self.record, served.pool
        plain = totals.without(op)
        write = served.backend.write
        outgoing = await offload(write, plain, served.can) if self._large else write(plain, served.can)
        self._drop(outgoing.dropped)
        if served.paths is not None and outgoing.path not in served.paths:
            raise GatewayError(Kind.UNSUPPORTED, "this model does not offer this operation", code="beyond_model")
        counting = totals.length_request(op, served.backend, served.can)
        self._address(outgoing, served)
        if counting is not None:
            self._address(counting.request, served)
        runtime.earn()
        if op.stream and runtime.keepalive_s:
            loop = asyncio.get_running_loop()
            self._heard = loop.time()
            self._quiet = loop.call_later(runtime.keepalive_s, self._silence, op, served)
        tried: list[Any] = []
        failure: GatewayError | None = None
        while True:
            try:
                worker = await pool.acquire(tried, principal.priority)
            except GatewayError as error:
                raise failure or error from None
            if failure is not None:
                runtime.observer.retried(served.name, tried[-1].address, failure)
            record.attempts += 1
            record.worker = worker.address
            self._generation = worker.generation
            if runtime.trace is not None:
                self._trace_choice(runtime.trace, worker)
            try:
                if counting is not None:
                    totals.apply_prompt_length(op, await self._prompt(counting, served, worker.address))
                    counting = None
                    outgoing = await offload(write, op, served.can) if self._large else write(op, served.can)
                    self._address(outgoing, served)
                await self._attempt(op, served, outgoing, worker)
                error_after = self.pump.lane.error if self.pump is not None else None
                if error_after is None:
                    pool.succeeded(worker, self._generation)
                else:
                    pool.failed(worker, self._generation, error_after)
                return
            except GatewayError as error:
                pool.failed(worker, self._generation, error)
                self.errors.append(error)
                tried.append(worker)
                failure = error
                self.pump = None
                again = self._may_retry(error)
                if runtime.trace is not None:
                    self._trace_failure(runtime.trace, worker, error, again)
                if not again:
                    raise
            except BaseException:  # cancelled, or a bug of ours: neither says anything about the worker
                pool.failed(worker, self._generation, GatewayError(Kind.INTERNAL, "not the worker's fault"))
                raise
            finally:
                pool.release(worker)

    def _trace_choice(self, trace: Callable[..., None], worker: WorkerHandle) -> None:
        record = self.record
        trace(
            "worker chosen",
            id=record.id,
            model=record.model,
            worker=worker.address,
            attempt=record.attempts,
            half_open=worker.half_open,
            ms=round((self.runtime.clock() - self._began) * 1000, 3),
        )

    def _trace_failure(
        self, trace: Callable[..., None], worker: WorkerHandle, error: GatewayError, again: bool
    ) -> None:
        trace(
            "attempt failed",
            id=self.record.id,
            model=self.record.model,
            worker=worker.address,
            attempt=self.record.attempts,
            code=error.code or error.kind.value,
            blame=error.blame.value,
            upstream=error.upstream,
            again=again,
        )

    def _may_retry(self, error: GatewayError) -> bool:
        """Before the first byte only, and only what another worker may do better."""
        theirs = error.blame is Blame.WORKER or (error.kind is Kind.OVERLOADED and error.upstream is not None)
        return (
            theirs
            and error.retryable
            and self._unseen
            and self.record.attempts < self.runtime.attempts
            and self.runtime.may_retry()
        )

    def _address(self, outgoing: Request, served: ServedModel) -> None:
        known_as = b"%b-%d" % (self.record.id.encode(), next(_ATTEMPTS))
        outgoing.headers = [*outgoing.headers, *served.headers, (b"x-request-id", known_as)]

    async def _prompt(self, counting: Counting, served: ServedModel, address: str) -> int:
        """How many tokens it has, by the worker that will answer."""
        exchange = await served.transport.send(counting.request, address, served.deadlines)
        try:
            body = await exchange.body(self.runtime.max_reply_bytes)
        finally:
            exchange.close()
        return counting.read(Response(exchange.status, exchange.headers, body))

    async def _attempt(self, op: Any, served: ServedModel, outgoing: Request, worker: WorkerHandle) -> None:
        exchange = await served.transport.send(outgoing, worker.address, served.deadlines)
        if self.runtime.trace is not None:
            self.runtime.trace("worker answered", id=self.record.id, worker=worker.address, status=exchange.status)
        try:
            if exchange.status != 200:
                body = await exchange.body(_MAX_FAULT_BYTES)
                raise served.backend.fault(Response(exchange.status, exchange.headers, body))
            if op.stream:
                await self._stream(op, served, exchange, worker)
                return
            body = await exchange.body(self.runtime.max_reply_bytes)
        finally:
            exchange.close()
        reply = self._reply(op, served.backend, Response(200, exchange.headers, body))
        await self.respond(reply)

    def _lane(self, op: Any, served: ServedModel) -> Lane:
        """For one worker's stream, or for words of ours."""
        dialect = self.endpoint.dialect
        passthrough = dialect.passthrough.get(served.backend.wire_of(op))
        if passthrough is not None:
            return passthrough.lane(op)
        return EventLane(served.backend.reader(op), dialect.writer(op), self.runtime.max_reply_bytes)

    async def _stream(self, op: Any, served: ServedModel, exchange: Any, worker: WorkerHandle) -> None:
        record = self.record
        lane = self._lane(op, served)
        if self._waiting is not None:
            await self._waiting.end()
        pump = self.pump = Pump(exchange, lane, self.client, self.runtime.keepalive_s, self._heard)
        if self.permit is not None:
            pump.on_done = self._done
        if worker.half_open:
            pump.on_first = partial(served.pool.answered, worker, self._generation)
        try:
            await pump.run(self._head())
        finally:
            record.usage = lane.usage
            if lane.error is None or lane.produced:
                record.usage = lane.usage or Usage(None, lane.produced, source="estimated")
            if pump.first_output_at is not None and (lane.error is None or lane.produced):
                record.ttft_ms = round((pump.first_output_at - self._began) * 1000, 3)
            if self.client.started:
                record.status = 200
            if lane.error is not None and pump.committed:
                self._report(lane.error)
                self._failed(lane.error, "failed")

    def _done(self) -> None:
        """Slots come back before the client can ask again, and so learn that they had not."""
        lane = self.pump.lane if self.pump is not None else None
        if self.permit is not None and lane is not None and lane.error is None:
            self.record.usage = lane.usage or Usage(None, lane.produced, source="estimated")
            self._settle()

    def _settle(self) -> None:
        """Once the record says what was used: the limits are told."""
        usage = self.record.usage
        if usage is not None and usage.input is None and self.op is not None:
            prompt = self.runtime.estimate(self.op)
            self.record.usage = Usage(prompt, usage.output, usage.cached, usage.reasoning, "estimated")
        if self.permit is not None:
            self.permit.settle(self.record)

    def _reply(self, op: Any, backend: Backend, response: Response) -> Response:
        dialect, record = self.endpoint.dialect, self.record
        passthrough = dialect.passthrough.get(backend.wire_of(op))
        if passthrough is not None:
            out, record.usage = passthrough.whole(response, op)
            return out
        if isinstance(op, Embed):
            vectors = backend.read_embeddings(response, op)
            record.usage = vectors.usage
            return dialect.write(vectors, op)
        reply = fold(backend.read(response, op))
        record.usage = reply.usage
        return dialect.write(reply, op)

    # -- the way up -------------------------------------------------------------------------------------------------

    async def respond(self, response: Response) -> None:
        self.record.status = response.status
        await self.client.respond(response, self._head())

    def _head(self) -> Headers:
        dropped = [(b"x-dragoman-dropped", named(self.dropped))] if self.dropped else []
        return [*self.headers, *dropped, *(self.request.reply if self.request is not None else ())]

    def _drop(self, names: tuple[str, ...]) -> None:
        """From now on every reply names them, and the record does."""
        if names:
            self.dropped = (*self.dropped, *names)
            # A client's own words: no room for a text.
            self.record.dropped = tuple(name[:_LONGEST_NAME] for name in self.dropped[:_MOST_NAMES])

    async def refuse(self, error: GatewayError) -> None:
        """Tells the client, if it has seen nothing yet; else its connection is cut."""
        self._report(error)
        if self.client.gone or error.kind is Kind.CLIENT_GONE:
            self._cancelled()
            return
        waiting = self._waiting if self._unseen else None
        if waiting is not None:
            self._failed(error, "failed")
            await waiting.fail(error)
            return
        reply = None if self.client.started else self.endpoint.dialect.refuse(error, self.request, self.op)
        self._failed(error, "refused" if error.blame is Blame.CLIENT else "failed")
        if reply is None:
            await self.client.cut(b"")
        else:
            await self.respond(reply)

    def _report(self, error: GatewayError) -> None:
        """A bug that was met where only an error could be handed on is its cause."""
        if error.kind is Kind.INTERNAL and error.__cause__ is not None:
            self.runtime.observer.bug(self.record, error.__cause__)
            error.__cause__ = None  # holds the frames it passed, and they the error

    def _failed(self, error: GatewayError, outcome: str) -> None:
        """After the client was told, whose dialect may have given the error a kind or a code of its own."""
        self.record.outcome = outcome
        self.record.code = error.code or self.endpoint.dialect.errors[error.kind][2]

    def _cancelled(self) -> None:
        record, refused = self.record, self.client.refused
        if refused is None:
            record.outcome, record.code = "cancelled", Kind.CLIENT_GONE.value
        else:
            record.outcome, (record.status, record.code) = "refused", refused


def request_id(headers: Headers) -> str:
    """The client's own X-Request-Id where it is harmless in a log and a header, else a new one."""
    given = header_value(headers, b"x-request-id")
    if given is not None and _REQUEST_ID.match(given):
        return given.decode()
    return f"{random.getrandbits(128):032x}"


def named(fields: tuple[str, ...]) -> bytes:
    """Field names as a header value, and how many more there are: `a, messages[].b, +3`. They are the client's own
    words: whatever could break a header is replaced."""
    shown = [_UNFIT.sub("?", name[:_LONGEST_NAME]) for name in fields[:_MOST_NAMES]]
    if len(fields) > _MOST_NAMES:
        shown.append(f"+{len(fields) - _MOST_NAMES}")
    return ", ".join(shown).encode()


def unknown_model(name: str) -> GatewayError:
    """`name` is what the client called it, empty where it named none."""
    shown = unquote(name)[:128]
    message = (
        f"the model '{shown}' does not exist or you do not have access to it"
        if shown
        else "no model was named, and there is no default model that you have access to"
    )
    return GatewayError(Kind.NO_MODEL, message, param="model")
