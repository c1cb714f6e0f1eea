"""A model answers: the one that the request means, or another one in its place."""

from __future__ import annotations

from collections.abc import Awaitable
from copy import copy

from msgspec import UNSET

from gateway.core.errors import GatewayError
from gateway.core.ports import Deadlines
from gateway.core.routing_facts import RoutingFacts
from gateway.kernel.call import Call
from gateway.kernel.deadlines import Waits, for_request
from gateway.kernel.models import ServedModel
from gateway.kernel.other_models import CHOSEN, CONTEXT_LENGTH, NONE, SPLIT, UNAVAILABLE, reason_of, routed_headers
from gateway.offload import Share, offload
from gateway.translation.ability import refuse_beyond


async def ask_models(call: Call) -> None:
    """Has `call.served` answer, or in its place the model that a feature has chosen or a split names; where that one
    cannot, its fallbacks, one after the other. Raises GatewayError: what was wrong with the first."""
    served, chosen = call.served, call.chosen
    models, record, reply = call.runtime.models, call.record, call.reply
    named, begun, other_models, routed = served.own_name, reply.mark(), served.other_models or NONE, CHOSEN
    if chosen is None and other_models.split is not None:
        split = other_models.split.choose(call.request.headers, call.principal)
        chosen, routed = None if split is None else models[split], SPLIT
    if chosen is not None:
        served = chosen
        other_models = served.other_models or NONE
        _route_to(call, named, served.own_name, routed)
    if other_models.fallback:
        call.untouched = copy(call.op)
        if UNAVAILABLE in other_models.on:
            call.fallbacks = [name for name in other_models.fallback if call.principal.may_use(name)]
    try:
        await ask_model(call, served)
        return
    except GatewayError as error:
        why = reason_of(error)
        if why not in other_models.on or not reply.unseen:
            raise
        failure, mark = error, reply.mark()
        before = record.asked, record.routed, record.worker, record.served, record.picked, record.prefill
    failure.release_frames()
    left = [
        name
        for name in other_models.fallback
        if call.principal.may_use(name) and (why != CONTEXT_LENGTH or _longer(models[name], served))
    ]
    while left:
        name, *left = left
        call.fallbacks = left
        reply.return_to(begun)
        record.limit = record.worker = record.picked = record.prefill = None
        record.served = UNSET
        _route_to(call, named, name, why)
        try:
            call.op = copy(call.untouched)
            await ask_model(call, models[name])
            return
        except GatewayError as error:
            if not reply.unseen or error.final:
                raise
    record.asked, record.routed, record.worker, record.served, record.picked, record.prefill = before
    record.model, record.limit = served.name, None
    reply.return_to(mark)
    raise failure


def _route_to(call: Call, asked: str, model: str, why: str) -> None:
    """From now on reply and record name `model` instead of `asked`."""
    call.record.asked, call.record.routed = asked, why
    call.reply.headers += routed_headers(model, why)


def _longer(one: ServedModel, other: ServedModel) -> bool:
    """Whether a prompt that is too long for `other` may fit `one`, as far as is known."""
    mine, its = one.can.max_context, other.can.max_context
    return mine is None or its is None or mine > its


def ask_model(call: Call, served: ServedModel) -> Awaitable[None]:
    """Has `served` answer the request. Raises GatewayError if it cannot, now or once it is awaited."""
    if call.confirmed is not call.runtime.callers:
        call.confirm(served)  # its body may have taken long
    call.ask(served)
    if call.share is not None:
        return _ask_large(call, call.share)
    op = call.op
    assert op is not None  # nothing has dropped it
    left_out = refuse_beyond(op, served.can)
    if left_out:
        call.reply.name_dropped(left_out)
    return call.way.answer(call)


async def _ask_large(call: Call, share: Share) -> None:
    # No variable of this frame holds the operation: `Call.drop_prompt` lets go of it.
    left_out = await offload(refuse_beyond, call.asked, call.served.can, share=share)
    if left_out:
        call.reply.name_dropped(left_out)
    await call.way.answer(call)


async def answer(call: Call) -> None:
    """The innermost `answer`: writes the request for the model's workers, and has them asked."""
    runtime, served, outgoing, reply = call.runtime, call.served, call.outgoing, call.reply
    estimate = runtime.estimate
    waits, op = call.waits, call.asked
    if waits is not None or op.timeout is not None or served.total_s is not None:
        waits = _limit_time(call, served)
    try:
        if call.share is None:
            cut = outgoing.write(op, estimate)
            routing = call.routing = served.pool.routing(op, call.request.headers)
        else:
            cut, routing = await _write_large(call, call.share)
    finally:
        del op  # `Call.drop_prompt` lets go of it
        if call.awaits is not None:
            awaits, call.awaits = call.awaits, None
            await awaits
            del awaits  # over, and a stream lasts long
    if outgoing.request.dropped or cut:
        reply.name_left_out((*outgoing.request.dropped, *cut))
    routing.tenant, routing.until = call.principal.tenant, call.until
    routing.size = len(call.request.body) + call.stored_bytes
    if waits is not None or served.first_byte_per_token:
        prompt = 0
        if served.first_byte_per_token:
            prompt = routing.prompt or call.prompt or estimate(call.asked)
        outgoing.deadlines = deadlines_for(call, prompt)
    runtime.retries.earn()
    await call.way.workers(call)


def deadlines_for(call: Call, prompt: int) -> Deadlines:
    """The deadlines of each attempt with a prompt of so many tokens."""
    served, waits = call.served, _limiting(call)
    extra = prompt * served.first_byte_per_token
    return for_request(served.deadlines, extra, waits, call.record.stream, call.runtime.relay.keepalive_s)


async def _write_large(call: Call, share: Share) -> tuple[tuple[str, ...], RoutingFacts]:
    """Writes the request for a worker, and describes it for the pick of one. Returns what was left out of it, and the
    description."""
    estimate = call.runtime.estimate
    cut = await offload(call.outgoing.write, call.asked, estimate, share=share)
    share.end_turn()
    call.routing = await offload(call.served.pool.routing, call.asked, call.request.headers, share=share)
    call.prompt = await offload(estimate, call.asked, share=share)
    return cut, call.routing


def _limit_time(call: Call, served: ServedModel) -> Waits | None:
    """Sets the deadline of the whole request. Returns how long its client waits, if that may shorten a deadline."""
    waits, op = _limiting(call), call.asked
    patience = waits.whole(op.stream, served.deadlines) if waits is not None else None
    call.limit_time(op.timeout, served.total_s, patience)
    return waits


def _limiting(call: Call) -> Waits | None:
    """How long its client waits, if that may shorten a deadline."""
    waits = call.waits
    return None if waits is None or waits.outlasts(call.served.deadlines) else waits
