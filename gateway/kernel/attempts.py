"""One worker after another is asked, until one has answered."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from msgspec import UNSET

from gateway.core.errors import GatewayError, Kind
from gateway.core.ports import WorkerHandle
from gateway.core.routing_facts import RoutingFacts
from gateway.kernel.call import Call
from gateway.kernel.visit import Visit

_PROBED_S = 0.25
"""Seconds in which a worker that has just failed, and lives, answers a probe."""
_LOOK_S = 1.0
"""Seconds between two looks at whether a worker that the request has tried has returned."""
_REFUSED = (Kind.UNAUTHENTICATED, Kind.FORBIDDEN)


async def ask_workers(call: Call) -> None:
    """The innermost `workers`: returns when the client has its reply. Another worker is asked while that may help.
    Raises the GatewayError of the last attempt. Writes into the record: attempts, worker, workers, picked."""
    record, reply, way = call.record, call.reply, call.way
    if record.attempts:
        call.attempts_before = record.attempts
    failure: GatewayError | None = None
    failed_at, lost = "", False
    if record.stream:
        reply.keep_alive(call.own_lane)
    while True:
        call.stage = "queued"
        for observer in call.observers:
            observer.waiting()
        try:
            visit = _at_once(call) or await _wait(call, lost)
        except GatewayError as error:
            call.name_reasons(*error.absent)
            if error.kind in _REFUSED or failure is None:
                raise
            raise failure from None
        call.stage = "visiting"
        if failure is not None and not reply.committed:
            call.runtime.observer.retried(record.model, failed_at, failure)
        try:
            with visit:
                await way.attempt(call, visit)
            return
        except GatewayError as error:
            failed_at = visit.worker.address
            call.failed = call.failed or failed_at
            _report(call, failed_at, error)
            if not await way.failure(call, visit, error):
                if call.lane is not None and call.lane.done:
                    return  # the client has its reply all the same
                raise
            if visit.outcome == "failed" or visit.moving is not None:
                call.tried = [*call.tried, visit.worker]
            failure, lost = error, reply.committed or error.broke or visit.moving is error
            error.release_frames()


def _report(call: Call, worker: str, error: GatewayError) -> None:
    """Reports what the worker itself has answered."""
    if error.upstream is not None and (error.detail is not None or error.why is not None):
        call.runtime.observer.answered_with(call.record, worker, error)


def ask_worker(call: Call, visit: Visit) -> Awaitable[None]:
    """The innermost `attempt`. Raises GatewayError once it is awaited."""
    if visit.work is not None:
        return visit.work(call, visit)
    if visit.request is None and call.outgoing.unmeasured:
        return _ask_measured(call, visit)
    return call.delivery.run(call, visit)


async def _ask_measured(call: Call, visit: Visit) -> None:
    await measure(call, visit)
    await call.delivery.run(call, visit)


async def retry(call: Call, visit: Visit, error: GatewayError) -> bool:
    """The innermost `failure`: another worker is asked while the client has seen nothing, and may do better."""
    meaning, retries = error.meaning, call.runtime.retries
    return (
        meaning is not None
        and error.retryable
        and call.reply.unseen
        and visit.count < retries.attempts
        # A request that leaves its worker was paid for when that was decided.
        and (visit.moving is error or visit.ejected or not meaning.budget or retries.spend())
    )


async def measure(call: Call, visit: Visit) -> None:
    """Has the visited worker measure the prompt, and writes the request that fits its length. Raises GatewayError."""
    cut = await call.outgoing.measure(visit, call.asked, call.runtime.relay.max_reply_bytes)
    if cut:
        call.reply.name_left_out(cut)


# -- the pick -------------------------------------------------------------------------------------------------------


def _at_once(call: Call) -> Visit | None:
    """A visit to a worker that is free now; None if the request has to wait for one. Raises GatewayError."""
    if call.confirmed is not call.runtime.callers:
        call.confirm(call.served)
    pool, tried = call.served.pool, _left_out(call)
    if not call.delivery.takes_slot:
        return _visit(call, pool.borrow(tried), None)
    worker = pool.try_acquire(tried, call.routing)
    return None if worker is None else _visit(call, worker, call.routing)


def _left_out(call: Call) -> Sequence[WorkerHandle]:
    """The workers that are not asked. A stream that another worker goes on with takes none that is suspected."""
    return [*call.tried, *call.served.pool.suspects] if call.reply.committed else call.tried


async def _wait(call: Call, lost: bool) -> Visit:
    """A visit, after a wait in the queue. Raises GatewayError as `_acquire` does."""
    since = call.runtime.clock()
    try:
        worker = await _acquire(call, lost)
    finally:
        call.waited(since)
    visit = _visit(call, worker, call.routing)
    try:
        call.confirm(call.served)
    except GatewayError:
        with visit:
            visit.abandoned()
            raise
    return visit


async def _acquire(call: Call, lost: bool) -> WorkerHandle:
    """A worker, once one is free. A request that has lost its worker, and that no other could serve, waits for one to
    return; it may be one that it has tried, but none whose probes are silent. Raises GatewayError as `Pool.acquire`
    does."""
    clock, pool, routing, tried = call.runtime.clock, call.served.pool, call.routing, _left_out(call)
    give_up_at = clock() + call.runtime.retries.wait_s if lost and _may_wait(call) else 0.0
    pause, failed = _PROBED_S, call.tried
    while True:
        routing.patience = max(0.0, min(pause, give_up_at - clock())) if give_up_at else 0.0
        try:
            return await pool.acquire(tried, call.principal.priority, routing)
        except GatewayError as error:
            # A worker that has failed the request and lives on is not asked again; one that was away is.
            alive = pool.may_serve(())
            if error.kind is not Kind.NO_WORKER or not routing.patience or alive > pool.may_serve(failed):
                raise
        failed = failed if alive else ()
        tried, pause = [*failed, *pool.suspects], _LOOK_S


def _may_wait(call: Call) -> bool:
    """Whether a request that has lost its worker may wait for one to return: the client has seen a part of the reply,
    or no fallback is left."""
    return call.reply.committed or not call.fallbacks


def _visit(call: Call, worker: WorkerHandle, routing: RoutingFacts | None) -> Visit:
    """routing: None for a worker that was lent for a question."""
    record = call.record
    record.attempts += 1
    record.worker = worker.address
    record.served = worker.served_as or UNSET
    if call.failed is not None:
        call.name_worker(call.failed, worker.address)
    if routing is not None:
        record.picked = routing.picked
    return Visit(call.served.pool, worker, routing, call.served.transport, call)
