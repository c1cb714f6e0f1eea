"""One request, top to bottom. The steps are listed in `kernel.feature`."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from gateway.auth import from_query
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import HEAD_CACHE, NO_PARAMS, REPLY_HEADERS, HeadCache, Request, Route
from gateway.core.ports import Dialect, RequestRecord
from gateway.kernel.asking import ask_model, ask_models
from gateway.kernel.call import Call
from gateway.kernel.client import Receive, Scope, Send, connect
from gateway.kernel.feature import Feature
from gateway.kernel.reply import ClientReply
from gateway.kernel.request_ids import given_context, given_id, new_id
from gateway.kernel.runtime import Runtime
from gateway.light_task import current_task

if TYPE_CHECKING:
    from gateway.kernel.way import Way


class Endpoint:
    """The raw ASGI endpoint of one path of a dialect.

    routes         what is at this path, by method; empty where there is nothing
    default_model  the model of requests that name none, or None
    listed         the path of the list of models, for clients that name an unknown one; or None
    way            of the requests until their model is known; None for that of the configuration
    advice         (method, path) that nothing serves -> the rest of the sentence that says so
    """

    way: Way | None = None

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
        return run(self.call(scope, receive, send))

    def call(self, scope: Scope, receive: Receive, send: Send, *layers: Feature) -> Call:
        """The request of `scope`. layers: features of this request alone."""
        runtime, dialect = self.runtime, self.dialect
        if scope["query_string"] and dialect.key_query:
            query, headers = from_query(scope["query_string"], scope["headers"], dialect.key_query)
            scope["query_string"], scope["headers"] = query, headers
        method, headers = scope["method"], scope["headers"]
        head: HeadCache = scope.get(HEAD_CACHE) or HeadCache()
        context = head.context
        if context is None:
            head.request_id = given_id(headers, runtime.known)
            context = head.context = given_context(headers, runtime.known)
            head.names = frozenset(name for name, _ in headers)
        record = RequestRecord(id=head.request_id or new_id(), dialect=dialect.name)
        route = self.routes.get(method)
        request = Request(
            method,
            scope["path"],
            headers,
            b"",
            scope["query_string"],
            route.name if route is not None else "",
            scope.get("path_params") or NO_PARAMS,
            record.id,
            head,
            stored=None if runtime.response_store is None else {},
        )
        client = connect(scope, receive, send, runtime.extension, record.id)
        more = scope.get(REPLY_HEADERS, ())
        reply = ClientReply(
            client,
            dialect,
            request,
            record,
            runtime.observer,
            runtime.relay.keepalive_s,
            runtime.known,
            [(b"x-request-id", record.id.encode()), *more],
        )
        call = Call(runtime, self, scope, reply, record, context, route)
        if layers:
            call.layers, call.way = layers, call.way.inside(*layers)
        return call


async def run(call: Call) -> None:
    """Serves the request, and records what became of it."""
    runtime, record, way = call.runtime, call.record, call.way
    call.task = current_task()
    runtime.active.requests.add(call)
    runtime.observer.begun(record.dialect)
    if way.headers:
        call.reply.call, call.reply.more_headers = call, way.headers
    try:
        await way.request(call)
    finally:
        runtime.active.discard(call)
        runtime.observer.finished(record)


async def serve(call: Call) -> None:
    """The innermost `request`: has a model answer the request, or refuses it; at its end the record is complete."""
    try:
        await call.way.read(call)
        if call.op is not None:
            alone = call.chosen is None and call.served.other_models is None
            await (ask_model(call, call.served) if alone else ask_models(call))
    except GatewayError as error:
        await _refuse(call, error)
    except CancelledError:
        if call.client.gone:
            _note_leaving(call)
        elif call.interrupted is not None and call.task is not None:
            call.task.uncancel()
            await _refuse(call, call.interrupted)
        else:
            raise
    except Exception as bug:
        call.runtime.observer.bug(call.record, bug)
        await _refuse(call, _internal_error())
    finally:
        call.close()


def _note_leaving(call: Call) -> None:
    if call.task is not None:
        call.task.uncancel()
    call.reply.left()


async def _refuse(call: Call, error: GatewayError) -> None:
    """Sends `error` to the client. If that fails, the client gets an internal error."""
    reply, listed = call.reply, call.endpoint.listed
    call.error = error
    if error.kind is Kind.NO_MODEL and not call.record.model:
        if listed is not None:
            error.message += f"; GET {listed} lists the models that you may use"
        if call.op is not None:
            reply.name_unknown(call.op)
    try:
        try:
            await reply.refuse(error, call.op)
        except Exception as bug:
            call.runtime.observer.bug(call.record, bug)
            await reply.refuse(_internal_error(), call.op)
    except CancelledError:
        if not call.client.gone:
            raise
        _note_leaving(call)


def _internal_error() -> GatewayError:
    return GatewayError(Kind.INTERNAL, "the gateway failed to handle this request")
