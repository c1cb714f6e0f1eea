"""One request, top to bottom. Names no dialect, no backend, no limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

from gateway.auth import ANONYMOUS, PendingAuth, Principal, from_query
from gateway.core.byte_budget import SMALL, Held
from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import HEAD_CACHE, REPLY_HEADERS, HeadCache, NeedsStored, Request, Route
from gateway.core.messages import AnsweredFromStore, ListModels, Op
from gateway.core.ports import Dialect, RequestRecord, WorkerHandle
from gateway.core.routing_facts import RoutingFacts
from gateway.light_task import AnyTask, current_task
from gateway.pipeline.call import Call
from gateway.pipeline.client import Receive, Scope, Send, connect
from gateway.pipeline.coded import Blocks, expand, expand_small
from gateway.pipeline.deadlines import MARGIN_S, Waits, client_waits, for_request, sooner
from gateway.pipeline.models import ServedModel, list_models, resolve_model
from gateway.pipeline.moving import leave
from gateway.pipeline.offload import Share, offload
from gateway.pipeline.other_models import CHOSEN, CONTEXT_LENGTH, NONE, SPLIT, reason_of, routed_headers
from gateway.pipeline.quarantine import CODE as QUARANTINED
from gateway.pipeline.reply import ClientReply
from gateway.pipeline.request_ids import given_context, given_id, new_id
from gateway.pipeline.response_store import StoredTexts
from gateway.pipeline.runtime import Runtime
from gateway.pipeline.strategies import attempts_for
from gateway.pipeline.timing import milliseconds
from gateway.pipeline.uploads import receive
from gateway.translation.ability import refuse_beyond
from gateway.wire.bulk import is_heavy
from gateway.wire.codings import SERVED, coding_of

_NOBODY = PendingAuth(ANONYMOUS)


class _KnownCaller(NamedTuple):
    """The caller that sent a head: the same for later requests with it, as long as keys and dialect are."""

    callers: object
    dialect: str
    pending: PendingAuth
    waits: Waits | None


class Endpoint:
    """The raw ASGI endpoint of one path of a dialect.

    routes         what is at this path, by method; empty where there is nothing
    default_model  the model of requests that name none, or None
    listed         the path of the list of models, for clients that name an unknown one; or None
    advice         (method, path) of a request for which there is nothing -> the rest of the sentence that says so
    """

    def __init__(
        self,
        runtime: Runtime,
        dialect: Dialect,
        routes: Mapping[str, Route],
        default_model: str | None,
        listed: str | None = None,
        advice: Callable[[str, str], str] | None = None,
    ) -> None:
        self.runtime = runtime
        self.dialect = dialect
        self.routes = routes
        self.default_model = default_model
        self.listed = listed
        self.advice = advice

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        if scope["query_string"] and self.dialect.key_query:
            query, headers = from_query(scope["query_string"], scope["headers"], self.dialect.key_query)
            scope["query_string"], scope["headers"] = query, headers
        return RequestHandler(self, scope, receive, send).run()


class RequestHandler:
    """One request under way.

    Match the route, authenticate, read the body, let the dialect read it, find the model, pass the limits, send it to
    a worker and its reply to the client, record what became of it.
    """

    _task: AnyTask | None = None
    _deadline: asyncio.TimerHandle | None = None
    # When nobody waits for it any more, in seconds of the runtime's clock.
    _until: float | None = None
    _error: GatewayError | None = None
    _streaming = False  # counted as a stream of its key
    _admitted = False  # has passed the limits that count requests
    _proven = True  # who calls is known
    _waits: Waits | None = None
    _coded: str | None = None  # the content coding of the body as it came
    # Bytes of the stored texts that it refers to.
    _stored_bytes = 0

    def __init__(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
        runtime, dialect = endpoint.runtime, endpoint.dialect
        method, headers = scope["method"], scope["headers"]
        self.endpoint = endpoint
        self.runtime = runtime
        self.scope = scope
        head: HeadCache = scope.get(HEAD_CACHE) or HeadCache()
        context = head.context
        if context is None:
            head.request_id = given_id(headers, runtime.known)
            context = head.context = given_context(headers, runtime.known)
        self.record = record = RequestRecord(head.request_id or new_id(), dialect.name)
        self.route = route = endpoint.routes.get(method)
        self.request = Request(
            method,
            scope["path"],
            headers,
            b"",
            scope["query_string"],
            route.name if route is not None else "",
            scope.get("path_params") or {},
            record.id,
            head,
        )
        self.client = connect(scope, receive, send, runtime.extension, record.id)
        self.reply = ClientReply(
            self.client,
            dialect,
            self.request,
            record,
            runtime.observer,
            runtime.relay.keepalive_s,
            runtime.known,
        )
        self.reply.headers += scope.get(REPLY_HEADERS, ())
        self.call = Call(runtime, scope, self.reply, record, context)

    async def run(self) -> None:
        self._task = current_task()
        self.runtime.active.add(self)
        self.runtime.observer.begun(self.record.dialect)
        for begun in self.call.watchers.begun:
            begun(self.call)
        try:
            served = await self._read_request()
            if served is not None:
                alone = served.other_models is None and not self.runtime.stages.choice
                await (self._ask(served) if alone else self._ask_in_turn(served))
        except GatewayError as error:
            await self._refuse(error)
        except asyncio.CancelledError:
            if self.client.gone:
                self._note_leaving()
            elif self.call.interrupted is not None and self._task is not None:
                self._task.uncancel()
                await self._refuse(self.call.interrupted)
            else:
                raise
        except Exception as bug:
            self.runtime.observer.bug(self.record, bug)
            await self._refuse(_internal_error())
        finally:
            self._close()

    # -- the way down -----------------------------------------------------------------------------------------------

    async def _read_request(self) -> ServedModel | None:
        """Reads the request into `call.op`. Returns the model that it means, None if it is answered already."""
        runtime, endpoint, record, request, call = self.runtime, self.endpoint, self.record, self.request, self.call
        pending = self._identify()
        self._check_route()
        if runtime.shedding.pressure and pending is not _NOBODY:
            runtime.shedding.check(pending.principal.priority)
        principal = await self._receive(pending)
        self.client.watch(self._left)
        request.sealing = principal.sealing
        for received in call.watchers.received:
            received(call)
        if self._coded is not None or is_heavy(request.body):
            await self._unpack()
        try:
            # A coroutine fewer for a request that takes no thread, as nearly all.
            asked = endpoint.dialect.read(request) if call.share is None else await self._read_large()
        except NeedsStored as needs:
            asked = await self._read_with(needs.names)
        if type(asked) is AnsweredFromStore:
            if asked.forgets:
                assert runtime.response_store is not None  # the answer came from it
                await runtime.response_store.remove(self._owners(), asked.forgets)
            await self.reply.respond(asked.reply)
            return None
        if asked.dropped:
            self.reply.name_dropped(asked.dropped)
        if type(asked) is ListModels:
            await self._list_models(asked, principal)
            return None
        call.op = asked
        if principal.streams is not None and asked.stream:
            runtime.caps.open_stream(principal)
            self._streaming = True
        served = resolve_model(runtime.models, runtime.patterns, asked, endpoint.default_model, principal)
        if asked.model != served.name and served.adapter is None:
            self._note_alias(asked.model or "")
        asked.salt = principal.salt
        record.stream = asked.stream
        return served

    def _note_alias(self, name: str) -> None:
        """The record has the alias that the client used. A name that a pattern covers may be a key."""
        known = self.runtime.known
        self.record.alias = name if name in self.runtime.models else known.masked_name(name, self.request.headers)

    async def _ask(self, served: ServedModel) -> None:
        """Has `served` answer the request. Raises GatewayError if it cannot."""
        runtime, reply, call = self.runtime, self.reply, self.call
        call.confirm()  # its body may have taken long
        call.ask(served)
        outgoing, share, can = call.outgoing, call.share, served.can
        # No variable of this frame holds the operation: `Call.drop_prompt` lets go of it.
        left_out = (
            refuse_beyond(call.asked, can)
            if share is None
            else await offload(refuse_beyond, call.asked, can, share=share)
        )
        if left_out:
            reply.name_dropped(left_out)
        stages, admitted = runtime.stages, None
        for stage in stages.admission:
            await stage(call)
        if stages.limits is not None:
            admitted = stages.limits(call)
            if admitted is not None and share is not None:
                await admitted
                admitted = None
        waits = self._limit_time(call.asked, served)
        estimate = runtime.estimate
        try:
            if share is None:
                cut = outgoing.write(call.asked, estimate)
                routing = call.routing = served.pool.routing(call.asked, self.request.headers)
            else:
                cut, routing = await self._write_large(served, share)
        finally:
            if admitted is not None:
                await admitted
        if outgoing.request.dropped or cut:
            reply.name_left_out((*outgoing.request.dropped, *cut))
        routing.tenant, routing.until = call.principal.tenant, self._until
        routing.size = len(self.request.body) + self._stored_bytes
        for step in served.stages:
            if (wait := step(call)) is not None:
                await wait
        if waits is not None or served.first_byte_per_token:
            prompt = 0
            if served.first_byte_per_token:
                prompt = routing.prompt or call.prompt or estimate(call.asked)
            extra, keepalive_s = prompt * served.first_byte_per_token, runtime.relay.keepalive_s
            outgoing.deadlines = for_request(served.deadlines, extra, waits, self.record.stream, keepalive_s)
        runtime.retries.earn()
        attempts = attempts_for(call)(call).run()
        await (attempts if call.guard is None else call.guard.after(attempts))

    async def _write_large(self, served: ServedModel, share: Share) -> tuple[tuple[str, ...], RoutingFacts]:
        """Writes the request for a worker, and describes it for the pick of one. Returns what was left out of it, and
        the description."""
        call, estimate = self.call, self.runtime.estimate
        cut = await offload(call.outgoing.write, call.asked, estimate, share=share)
        share.end_turn()
        call.routing = await offload(served.pool.routing, call.asked, self.request.headers, share=share)
        call.prompt = await offload(estimate, call.asked, share=share)
        return cut, call.routing

    def _limit_time(self, op: Op, served: ServedModel) -> Waits | None:
        """Sets the deadline of the whole request. Returns how long its client waits, if that may shorten a deadline."""
        waits = self._waits
        if waits is not None and waits.outlasts(served.deadlines):
            waits = None
        if self._deadline is None:
            patience = waits.whole(op.stream, served.deadlines) if waits is not None else None
            self._set_deadline(op.timeout, served.total_s, patience)
        return waits

    async def _ask_in_turn(self, served: ServedModel) -> None:
        """Has the model answer that a stage chooses instead of `served`, or that `served` is split to; where that one
        cannot, its fallbacks, one after the other. Raises what was wrong with the first."""
        models, record, reply, call, named = self.runtime.models, self.record, self.reply, self.call, served.name
        principal, other_models, routed = call.principal, served.other_models or NONE, CHOSEN
        other: str | None = None
        for choice in self.runtime.stages.choice:
            other = await choice(call, served)
        begun = reply.mark()
        if other is None and other_models.split is not None:
            other, routed = other_models.split.choose(self.request.headers, principal), SPLIT
        if other is not None:
            served = models[other]
            other_models = served.other_models or NONE
            self._route_to(named, other, routed)
        if other_models.fallback:
            call.untouched = copy(call.op)
        try:
            await self._ask(served)
            return
        except GatewayError as error:
            why = reason_of(error)
            if why not in other_models.on or not reply.unseen:
                raise
            failure, mark = error, reply.mark()
            before = record.asked, record.routed, record.worker, record.picked, record.prefill
        failure.release_frames()
        for name in other_models.fallback:
            fallback = models[name]
            if not principal.may_use(name) or (why == CONTEXT_LENGTH and not _longer(fallback, served)):
                continue
            for withdrawn in call.watchers.withdrawn:
                withdrawn(call)
            reply.return_to(begun)
            record.limit = record.worker = record.picked = record.prefill = None
            self._route_to(named, name, why)
            try:
                call.op = copy(call.untouched)
                await self._ask(fallback)
                return
            except GatewayError as error:
                if not reply.unseen or error.code == QUARANTINED:
                    raise
        record.asked, record.routed, record.worker, record.picked, record.prefill = before
        record.model, record.limit = served.name, None
        reply.return_to(mark)
        raise failure

    def _route_to(self, asked: str, model: str, why: str) -> None:
        """From now on reply and record name `model` instead of `asked`."""
        self.record.asked, self.record.routed = asked, why
        self.reply.headers += routed_headers(model, why)

    async def _read_large(self) -> Op | ListModels | AnsweredFromStore:
        return await offload(self.endpoint.dialect.read, self.request, share=self.call.share)

    async def _read_with(self, names: tuple[str, ...]) -> Op | ListModels | AnsweredFromStore:
        """The request as the dialect reads it with the stored texts of `names`."""
        request, call, store = self.request, self.call, self._responses()
        owners = self._owners()
        await self._hold_stored(await store.size(owners, names))
        request.stored = stored = await store.get(owners, names)
        if call.share is None and any(is_heavy(text) for text in stored.values() if text is not None):
            await self._admit_large()
        return self.endpoint.dialect.read(request) if call.share is None else await self._read_large()

    async def _receive(self, pending: PendingAuth) -> Principal:
        """Reads the body. Returns the caller."""
        call, route, client = self.call, self.route, self.client
        # A signature covers the body: until that has come, the caller is an address.
        self._proven = pending.prove is None
        if self._proven:
            call.principal = self._authenticate(pending)
        if route is not None and route.form:
            await self._receive_upload()
        elif self.request.method == "POST":
            self._coded = self._coding()
            self.request.body = await client.body(self.runtime.max_body_bytes, self._hold_body)
        if not self._proven:
            call.principal = self._authenticate(pending)
            self._proven = True
            if client.room is not None:
                client.room.pass_to(call.owner)
        return call.principal

    async def _receive_upload(self) -> None:
        runtime, client = self.runtime, self.client
        await self._admit_early()
        client.disk = Held(runtime.budgets.uploads, self.call.owner)
        body = Blocks(client, self._coding(), runtime.max_body_bytes, self._hold_expanded)
        await receive(self.request, body, client.disk)

    def _coding(self) -> str | None:
        """The content coding of the body, None for none. Raises GatewayError for one that is not served."""
        head = self.request.head
        if head.uncoded:
            return None
        try:
            coding = coding_of(self.request.headers)
        except GatewayError:
            self.reply.headers.append((b"accept-encoding", SERVED))
            raise
        head.uncoded = coding is None
        return coding

    async def _unpack(self) -> None:
        """From now on the body is what it expands to. Its caller has passed the limits that count requests if it takes
        long to read, or to expand."""
        request, coding, most = self.request, self._coded, self.runtime.max_body_bytes
        if coding is not None:
            text = expand_small(request.body, coding, most)
            if text is None:
                share = await self._admit_large()
                text = await expand(request.body, coding, most, self._hold_expanded, share)
            request.body = text
        if self.call.share is None and is_heavy(request.body):
            await self._admit_large()

    async def _hold_body(self, size: int) -> None:
        """As `client.Hold`: takes room for so many bytes of the body."""
        client = self.client
        if client.room is None:
            await self._admit_early()
            client.room = Held(self.runtime.body_budget, self.call.owner)
        if size > client.room.size:
            client.room.require(size)

    async def _hold_expanded(self, size: int) -> None:
        """As `_hold_body`. Whatever a decoder needs beside the text, one body alone has room."""
        await self._hold_body(min(size, self.runtime.body_budget.limit))

    async def _admit_early(self) -> None:
        """Called before the request takes room or time that many requests share. Raises GatewayError if a limit that
        counts every request has no room. A caller who still has to prove who sent the request passes none yet."""
        if self._proven and not self._admitted:
            self._admitted = True
            for stage in self.runtime.stages.large:
                await stage(self.call)

    def _owners(self) -> Sequence[str]:
        """The owners of what the caller may refer to. A text that an earlier version kept by the name alone is
        `ttl_s` old at most: an earlier key of that name may have left it, if this one is younger."""
        who, store = self.call.principal, self.runtime.response_store
        former = who.former_tenant
        if former is None or store is None or time.time() - store.ttl_s < who.since:
            return (who.tenant,)
        return who.tenant, former

    def _responses(self) -> StoredTexts:
        store = self.runtime.response_store
        assert store is not None  # without one no dialect refers to stored texts
        return store

    async def _admit_large(self) -> Share:
        """Called before anything that may take long is done for the request. Raises GatewayError if a stage refuses."""
        call = self.call
        await self._admit_early()
        call.share = share = Share(call.owner, len(self.request.body) + self._stored_bytes)
        await share.wait_turn()
        return share

    async def _hold_stored(self, size: int) -> None:
        """Called with the bytes of what the request refers to, before that is fetched: they count as those of a body.
        Raises GatewayError: TOO_LARGE for more than a body may have, OVERLOADED if the budget of bodies has no room."""
        runtime = self.runtime
        if size > runtime.max_body_bytes:
            message = f"what the request refers to is, together, larger than {runtime.max_body_bytes} bytes"
            raise GatewayError(Kind.TOO_LARGE, message)
        self._stored_bytes = size
        if size <= SMALL:
            return
        if self.call.share is None:
            await self._admit_large()
        client = self.client
        if client.room is None:
            client.room = Held(runtime.body_budget, self.call.owner)
        client.room.require(client.room.size + size)

    def _identify(self) -> PendingAuth:
        route, record = self.route, self.record
        if route is not None and route.open:
            return _NOBODY
        # The head tells the caller. While the head stays the same, so does the caller, unless that depends on a clock.
        known = self.request.head.caller
        if type(known) is _KnownCaller and known.callers is self.runtime.callers and known.dialect == record.dialect:
            pending, self._waits = known.pending, known.waits
        else:
            pending = self.runtime.callers.identify(self.request.headers, record.dialect, self.scope)
            self._waits = client_waits(self.request.headers)
            if pending.lasting:
                self.request.head.caller = _KnownCaller(self.runtime.callers, record.dialect, pending, self._waits)
        if pending.lasting:
            self.call.confirmed = self.runtime.callers
        if pending.prove is None:
            record.key, record.team = pending.principal.key, pending.principal.team
        return pending

    def _check_route(self) -> None:
        routes, request = self.endpoint.routes, self.request
        method = "GET" if request.method == "HEAD" else request.method  # its answer is as long as that of GET
        if not routes:
            advice = "" if self.endpoint.advice is None else self.endpoint.advice(method, request.path)
            message = f"there is nothing at this path: {method} {request.path[:200]}{advice}"
            raise GatewayError(Kind.NO_ROUTE, message)
        if self.route is None:
            self.reply.headers.append((b"allow", (allowed := ", ".join(sorted(routes))).encode()))
            raise GatewayError(Kind.NO_METHOD, f"{method} is not allowed here; this path takes {allowed}")
        self.record.operation = self.route.name

    def _authenticate(self, pending: PendingAuth) -> Principal:
        """A signed request is proven only now, since the signature covers its body."""
        principal = pending.principal
        if pending.prove is not None:
            scope, record = self.scope, self.record
            pending.prove(scope["method"], scope["raw_path"], scope["query_string"], self.request.body)
            record.key, record.team = principal.key, principal.team
        connection = self.client.connection
        if (
            connection is not None
            and connection.owner != principal.key
            and (principal.connections is not None or connection.owner)
        ):
            try:
                self.runtime.caps.connected(principal, connection)
            except GatewayError:
                self.reply.headers.append((b"connection", b"close"))
                raise
        return principal

    async def _list_models(self, asked: ListModels, principal: Principal) -> None:
        runtime, endpoint = self.runtime, self.endpoint
        draining = runtime.active.draining
        answer = list_models(runtime.models, runtime.patterns, asked, endpoint.default_model, principal, draining)
        if answer.status >= 500:  # a health check, answered as it asks: no model can be served
            self.record.outcome, self.record.code = "failed", endpoint.dialect.errors[Kind.NO_WORKER][2]
        await self.reply.respond(answer)

    def _set_deadline(self, own: float | None, total_s: float | None, patience: float | None) -> None:
        """By the request's own field, by configuration, and by how long its client announced to wait."""
        if own is None and total_s is None and patience is None:
            return
        seconds = sooner(sooner(own, total_s), None if patience is None else patience + MARGIN_S)
        assert seconds is not None
        late = GatewayError(
            Kind.TIMEOUT,
            f"the request took longer than {seconds:g} s",
            param="timeout" if seconds == own else None,
            blame=Blame.US,
            code="deadline_exceeded",
        )
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.interrupt, late)
        self._until = self.runtime.clock() + min(seconds, patience or seconds)

    # -- endings ----------------------------------------------------------------------------------------------------

    def interrupt(self, error: GatewayError) -> None:
        """Ends the request with `error`, told to the client in its dialect. An error that is being told already is left
        alone."""
        reply, call = self.reply, self.call
        if reply.committed and not reply.between:
            reply.interrupt(error)
        elif (reply.unseen or reply.between) and self._task and call.interrupted is None and self._error is None:
            call.interrupted = error
            self._task.cancel()

    def leave(self, worker: WorkerHandle, error: GatewayError) -> bool:
        """As `ActiveRequests.leave`, for this request. Returns whether it leaves the worker."""
        visit, task = self.call.visit, self._task
        return (
            visit is not None
            and visit.worker is worker
            and task is not None
            and leave(self.call, visit, GatewayError(error.kind, error.message, code=error.code), task)
        )

    def _left(self) -> None:
        """The client is gone: whatever this request waits for is cancelled, the worker's connection closed."""
        if self._task is not None:
            self._task.cancel()

    def _note_leaving(self) -> None:
        if self._task is not None:
            self._task.uncancel()
        self.reply.left()

    async def _refuse(self, error: GatewayError) -> None:
        """Sends `error` to the client. If that fails, the client gets an internal error."""
        self._error = error
        if error.kind is Kind.NO_MODEL and not self.record.model:
            if self.endpoint.listed is not None:
                error.message += f"; GET {self.endpoint.listed} lists the models that you may use"
            if self.call.op is not None:
                self.reply.name_unknown(self.call.op)
        try:
            try:
                await self.reply.refuse(error, self.call.op)
            except Exception as bug:
                self.runtime.observer.bug(self.record, bug)
                await self.reply.refuse(_internal_error(), self.call.op)
        except asyncio.CancelledError:
            if not self.client.gone:
                raise
            self._note_leaving()

    def _close(self) -> None:
        runtime, record, client, call = self.runtime, self.record, self.client, self.call
        if self._error is not None:
            self._error.release_frames()
        if self._deadline is not None:
            self._deadline.cancel()
        runtime.active.discard(self)
        if self._streaming:
            runtime.caps.close_stream(record.key)
        if client.room is not None:
            client.room.resize(0)
        if self.route is not None and self.route.form:
            self._drop_upload()
        if call.share is not None:
            call.share.end_turn()
        call.settle()
        if call.seen is not None:
            call.seen.close()
        if record.outcome == "cancelled":
            record.phase = call.phase
        self.reply.close()
        took = runtime.clock() - call.began
        record.ms = milliseconds(took)
        record.overhead_ms = milliseconds(max(0.0, took - (record.queue_ms + record.upstream_ms) / 1000))
        for closed in call.watchers.closed:
            closed(call)
        runtime.observer.finished(record)

    def _drop_upload(self) -> None:
        if self.client.disk is not None:
            self.client.disk.resize(0)
        if self.request.form is not None:
            self.request.form.source.close()


def _longer(one: ServedModel, other: ServedModel) -> bool:
    """Whether a prompt that is too long for `other` may fit `one`, as far as is known."""
    mine, its = one.can.max_context, other.can.max_context
    return mine is None or its is None or mine > its


def _internal_error() -> GatewayError:
    return GatewayError(Kind.INTERNAL, "the gateway failed to handle this request")
