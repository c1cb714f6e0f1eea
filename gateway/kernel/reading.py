"""The first steps of a request: who calls, its body, the operation that it asks for, and of which model.

Whatever a request holds counts to its caller before it is taken: room for its body, and time of threads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from gateway.auth import ANONYMOUS, PendingAuth
from gateway.core.byte_budget import SMALL, Held
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import NeedsStored
from gateway.core.messages import AnsweredFromStore, ListModels, Op
from gateway.kernel.bodies import expand, expand_small
from gateway.kernel.call import Call
from gateway.kernel.client import body_too_large, read_body
from gateway.kernel.deadlines import Waits, client_waits
from gateway.kernel.models import list_models, resolve_model
from gateway.offload import Share, offload
from gateway.wire.bulk import is_heavy
from gateway.wire.codings import SERVED, coding_of

_NOBODY = PendingAuth(ANONYMOUS)


class _KnownCaller(NamedTuple):
    """The caller that sent a head: the same for later requests with it, as long as keys and dialect are."""

    callers: object
    dialect: str
    pending: PendingAuth
    waits: Waits | None


async def read(call: Call) -> None:
    """Reads the request into `call.op`, and finds the model that it means, `call.served`. A request that needs no model
    is answered, and has no `op` then. Raises GatewayError."""
    runtime, endpoint, record, request = call.runtime, call.endpoint, call.record, call.request
    call.pending = identify(call)
    if call.route is None:
        raise no_route(call)
    record.operation = call.route.name
    await call.way.receive(call)
    principal = call.principal
    call.client.watch(call.left)
    request.sealing = principal.sealing
    if call.coding is not None or is_heavy(request.body):
        await _unpack(call)
    try:
        # A coroutine fewer for a request that takes no thread, as nearly all.
        asked = endpoint.dialect.read(request) if call.share is None else await _read_large(call)
    except NeedsStored as needs:
        asked = await _read_with(call, needs.names)
    if type(asked) is AnsweredFromStore:
        if asked.forgets:
            assert runtime.response_store is not None  # the answer came from it
            await runtime.response_store.remove(owners(call), asked.forgets)
        await call.reply.respond(asked.reply)
        return
    if asked.dropped:
        call.reply.name_dropped(asked.dropped)
    if type(asked) is ListModels:
        await _list_models(call, asked)
        return
    call.op = asked
    call.served = served = resolve_model(runtime.models, runtime.patterns, asked, endpoint.default_model, principal)
    if asked.model != served.name and served.adapter is None:
        _note_alias(call, asked.model or "")
    asked.salt = principal.salt
    record.stream = asked.stream


async def receive(call: Call) -> None:
    """Reads the body. From now on `call.principal` is the caller, also one whose signature covers the body. Raises
    GatewayError."""
    client, pending = call.client, call.pending
    if call.route is not None and call.route.form:
        await call.runtime.receive_form(call)
    elif call.request.method == "POST":
        if not call.request.head.uncoded and (coding := coding_of_body(call)) is not None:
            call.coding = coding
        body, most = client.body(), call.runtime.max_body_bytes
        if body is None:
            body = await read_body(client, call.request.headers, most, call.hold_body)
        elif len(body) > SMALL:
            if len(body) > most:
                raise body_too_large(most)
            await call.hold_body(len(body))
        call.request.body = body
    if pending.prove is not None:
        prove(call, pending)
        if client.room is not None:
            client.room.pass_to(call.owner)


# -- who calls ------------------------------------------------------------------------------------------------------


def identify(call: Call) -> PendingAuth:
    """The caller by the head of the request. Raises GatewayError for one who may not call."""
    runtime, route, record, request = call.runtime, call.route, call.record, call.request
    if route is not None and route.open:
        return _NOBODY
    # The caller depends on the head alone, unless it depends on a clock: the same head is the same caller.
    known, callers = request.head.caller, runtime.callers
    if call.again is not None:
        pending, call.waits = PendingAuth(call.again()), None
    elif type(known) is _KnownCaller and known.callers is callers and known.dialect == record.dialect:
        _, _, pending, call.waits = known
    else:
        pending = callers.identify(request.headers, record.dialect, call.scope)
        call.waits = client_waits(request.headers)
        if pending.lasting:
            request.head.caller = _KnownCaller(callers, record.dialect, pending, call.waits)
    if pending.lasting:
        call.confirmed = callers
    if pending.prove is None:
        principal = call.principal = pending.principal
        record.key, record.team = principal.key, principal.team
        call.proven = True
    return pending


def prove(call: Call, pending: PendingAuth) -> None:
    """Checks the signature of a request whose body has come. Raises GatewayError."""
    assert pending.prove is not None
    scope, record = call.scope, call.record
    pending.prove(scope["method"], scope["raw_path"], scope["query_string"], call.request.body)
    call.principal = principal = pending.principal
    record.key, record.team = principal.key, principal.team
    call.proven = True


def no_route(call: Call) -> GatewayError:
    """The error for a path or a method that is not served."""
    routes, request = call.endpoint.routes, call.request
    method = "GET" if request.method == "HEAD" else request.method  # its answer is as long as that of GET
    advice = "" if call.endpoint.advice is None else call.endpoint.advice(method, request.path)
    if not routes:
        return GatewayError(Kind.NO_ROUTE, f"there is nothing at this path: {method} {request.path[:200]}{advice}")
    call.reply.headers.append((b"allow", (allowed := ", ".join(sorted(routes))).encode()))
    message = f"{method} is not allowed here; this path takes {allowed}{advice.replace('it is', f'{method} is', 1)}"
    return GatewayError(Kind.NO_METHOD, message)


# -- the body -------------------------------------------------------------------------------------------------------


def coding_of_body(call: Call) -> str | None:
    """The content coding of the body, None for none. Raises GatewayError for one that is not served."""
    head = call.request.head
    if head.uncoded:
        return None
    try:
        coding = coding_of(call.request.headers)
    except GatewayError:
        call.reply.headers.append((b"accept-encoding", SERVED))
        raise
    head.uncoded = coding is None
    return coding


async def _unpack(call: Call) -> None:
    """From now on the body is what it expands to. Its caller has passed the limits that count requests if it takes long
    to read, or to expand."""
    request, coding, most = call.request, call.coding, call.runtime.max_body_bytes
    if coding is not None:
        text = expand_small(request.body, coding, most)
        if text is None:
            share = await admit_large(call)
            text = await expand(request.body, coding, most, call.hold_expanded, share)
        request.body = text
    if call.share is None and is_heavy(request.body):
        await admit_large(call)


async def admit_large(call: Call) -> Share:
    """Called before anything that may take long is done for the request. Raises GatewayError if a feature refuses."""
    await call.admit_early()
    call.share = share = Share(call.owner, len(call.request.body) + call.stored_bytes)
    await share.wait_turn()
    return share


async def _read_large(call: Call) -> Op | ListModels | AnsweredFromStore:
    return await offload(call.endpoint.dialect.read, call.request, share=call.share)


# -- what it refers to ----------------------------------------------------------------------------------------------


async def _read_with(call: Call, names: tuple[str, ...]) -> Op | ListModels | AnsweredFromStore:
    """The request as the dialect reads it with the stored texts of `names`."""
    request, store = call.request, call.store
    assert store is not None  # without one no dialect refers to stored texts
    whose = owners(call)
    await _hold_stored(call, await store.size(whose, names))
    request.stored = stored = await store.get(whose, names)
    if call.share is None and any(is_heavy(text) for text in stored.values() if text is not None):
        await admit_large(call)
    return call.endpoint.dialect.read(request) if call.share is None else await _read_large(call)


def owners(call: Call) -> Sequence[str]:
    """The owners of what the caller may refer to. A text that an earlier version kept by the name alone is `ttl_s` old
    at most: an earlier key of that name may have left it, if this one is younger."""
    who, store = call.principal, call.runtime.response_store
    former = who.former_tenant
    if former is None or store is None or time.time() - store.ttl_s < who.since:
        return (who.tenant,)
    return who.tenant, former


async def _hold_stored(call: Call, size: int) -> None:
    """Called with the bytes of what the request refers to, before that is fetched: they count as those of a body.
    Raises GatewayError: TOO_LARGE for more than a body may have, OVERLOADED if the budget of bodies has no room."""
    runtime, client = call.runtime, call.client
    if size > runtime.max_body_bytes:
        message = f"what the request refers to is, together, larger than {runtime.max_body_bytes} bytes"
        raise GatewayError(Kind.TOO_LARGE, message)
    call.stored_bytes = size
    if size <= SMALL:
        return
    if call.share is None:
        await admit_large(call)
    if client.room is None:
        client.room = Held(runtime.body_budget, call.owner)
    client.room.require(client.room.size + size)


# -- what it means --------------------------------------------------------------------------------------------------


def _note_alias(call: Call, name: str) -> None:
    """The record has the alias that the client used. A name that a pattern covers may be a key."""
    runtime = call.runtime
    known = runtime.known
    call.record.alias = name if name in runtime.models else known.masked_name(name, call.request.headers)


async def _list_models(call: Call, asked: ListModels) -> None:
    runtime, endpoint, principal = call.runtime, call.endpoint, call.principal
    draining = runtime.active.draining
    answer = list_models(runtime.models, runtime.patterns, asked, endpoint.default_model, principal, draining)
    if answer.status >= 500:  # a health check, answered as it asks: no model can be served
        call.record.outcome, call.record.code = "failed", endpoint.dialect.errors[Kind.NO_WORKER][2]
    await call.reply.respond(answer)
