"""A request leaves its worker before its reply is whole: the worker stalls, leaves the fleet, or is late.

If the client has seen nothing, another worker gets the whole request. If it has seen a part of a stream, another worker
goes on with that (`going_on`). A request that nobody else can serve now stays where it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core.errors import GatewayError, Kind
from gateway.light_task import AnyTask
from gateway.pipeline.going_on import may_go_on
from gateway.pipeline.other_models import UNAVAILABLE

if TYPE_CHECKING:
    from gateway.pipeline.call import Call
    from gateway.pipeline.visit import Visit

STALLED, LEAVING, LATE = "worker_stalled", "worker_leaving", "first_token_late"
"""Codes of the errors by which requests leave a worker."""
MOVES = {STALLED: "stalled", LEAVING: "leaving", LATE: "late"}
"""Their reasons, as records and metrics have them."""


def reason_of(error: GatewayError) -> str:
    """Why a request goes to another worker, as records and metrics have it: stalled, leaving, late, died, silent, or
    failed for all other failures."""
    if error.code in MOVES:
        return MOVES[error.code]
    if error.broke or error.kind is Kind.TRUNCATED:
        return "died"
    return "silent" if error.kind is Kind.TIMEOUT else "failed"


def late(seconds: float) -> GatewayError:
    return GatewayError(Kind.TIMEOUT, f"the worker had not begun to answer after {seconds:g} s", code=LATE)


def leave(call: Call, visit: Visit, error: GatewayError, task: AnyTask) -> bool:
    """Ends `visit`, which is under way, with `error`, if the request can be answered elsewhere now; else nothing
    changes. Returns whether it leaves. task runs the request."""
    reply = call.reply
    stream = reply.stream
    over = call.reply_at is not None if stream is None else stream.over
    if over or visit.moving is not None or call.interrupted is not None or reply.client.gone:
        return False
    if not visit.prefill and not (_may_move(call, visit, error) if reply.unseen else may_go_on(call, visit)):
        return False
    visit.moving = error
    if stream is not None:
        stream.interrupt(error)
    else:
        task.cancel()
    return True


def _may_move(call: Call, visit: Visit, error: GatewayError) -> bool:
    """Whether another worker, or a fallback, may answer a request of which the client has seen nothing. A move to
    another worker is taken from the retry budget, unless this one takes no more requests."""
    served, retries = call.served, call.runtime.retries
    if call.record.attempts < retries.attempts and served.pool.may_serve([*call.tried, visit.worker]):
        return visit.ejected or error.code == LEAVING or retries.spend()
    others = served.other_models
    return (
        others is not None
        and call.untouched is not None
        and UNAVAILABLE in others.on
        and any(call.runtime.models[name].pool.ready for name in others.fallback)
    )
