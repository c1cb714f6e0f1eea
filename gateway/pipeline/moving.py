"""A request leaves its worker before it is answered, for another one: the worker stalls, or leaves the fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core.errors import GatewayError
from gateway.light_task import AnyTask
from gateway.pipeline.other_models import UNAVAILABLE

if TYPE_CHECKING:
    from gateway.pipeline.call import Call
    from gateway.pipeline.visit import Visit

STALLED, LEAVING = "worker_stalled", "worker_leaving"
"""Codes of the errors by which requests leave a worker."""


def leave(call: Call, visit: Visit, error: GatewayError, task: AnyTask) -> bool:
    """Ends `visit`, which is under way, with `error`, if the request can be answered elsewhere now; else nothing
    changes. Returns whether it leaves. task runs the request."""
    reply = call.reply
    stream = reply.stream
    over = call.reply_at is not None if stream is None else stream.over
    if over or visit.moving is not None or call.interrupted is not None or reply.client.gone:
        return False
    if not visit.prefill and not (reply.unseen and _may_move(call, visit)):
        return False
    visit.moving = error
    if stream is not None:
        stream.interrupt(error)
    else:
        task.cancel()
    return True


def _may_move(call: Call, visit: Visit) -> bool:
    """Whether another worker, or a fallback, may answer a request of which the client has seen nothing. A move to
    another worker is taken from the retry budget."""
    served, retries = call.served, call.runtime.retries
    if call.record.attempts < retries.attempts and served.pool.may_serve([*call.tried, visit.worker]):
        return retries.spend()
    others = served.other_models
    return (
        others is not None
        and call.untouched is not None
        and UNAVAILABLE in others.on
        and any(call.runtime.models[name].pool.ready for name in others.fallback)
    )
