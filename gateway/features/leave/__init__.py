"""A request leaves its worker before its reply is whole: the worker stalls, leaves the fleet, or is late.

If the client has seen nothing, another worker gets the whole request. If it has seen a part of a stream, another worker
may go on with that (features.resume). A request that nobody else can serve now stays where it is.
"""

from __future__ import annotations

from asyncio import TimerHandle, get_running_loop
from collections.abc import Awaitable, Callable

from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import Chat, Complete, Media
from gateway.core.moves import LATE, LEAVING, reason_of
from gateway.core.ports import Moves, WorkerHandle
from gateway.features import Built, Parts
from gateway.kernel.call import Call
from gateway.kernel.feature import Attempt, Failure, Feature
from gateway.kernel.runtime import ActiveRequests
from gateway.kernel.visit import Visit

_MADE = (Chat, Complete, Media)
"""Operations that take long if they are not streamed: all others are computed in one step."""
Resumable = Callable[[Call, Visit], bool]
"""Whether another worker can go on now with the stream of a visit."""


class Leave(Feature):
    """Has requests leave workers that are late. resumable: of a stream that the client has seen a part of."""

    def __init__(self, resumable: Resumable) -> None:
        self._resumable = resumable

    def around_attempt(self, inner: Attempt) -> Attempt:
        def attempt(call: Call, visit: Visit) -> Awaitable[None]:
            moves = call.outgoing.deadlines.moves
            if moves is None or visit.work is not None:
                return inner(call, visit)
            return watched(call, visit, moves)

        async def watched(call: Call, visit: Visit, moves: Moves) -> None:
            streamed, made = call.record.stream, isinstance(call.op, _MADE)
            seconds = moves.unstreamed if made and not streamed else moves.first_token
            late = None if seconds is None else _Late(self, call, visit, seconds)
            try:
                await inner(call, visit)
            finally:
                if late is not None:
                    late.timer.cancel()

        return attempt

    def around_failure(self, inner: Failure) -> Failure:
        async def failure(call: Call, visit: Visit, error: GatewayError) -> bool:
            committed = call.reply.committed
            again = await inner(call, visit, error)
            if visit.moving is not None and not committed:
                reason = reason_of(error)
                call.record.moved += (reason,)
                call.runtime.observer.moved(call.record.model, reason)
            return again

        return failure

    def leave_worker(self, active: ActiveRequests, worker: WorkerHandle, error: GatewayError) -> int:
        """Every request at `worker` that can be answered elsewhere leaves it: the engine aborts its sequence, and the
        visit ends with `error` (blame WORKER), so that the request goes to another worker. The others stay: call this
        again when workers have returned, and from time to time. Returns how many leave."""
        left = 0
        for call in tuple(active.requests):
            visit = call.visit
            if visit is not None and visit.worker is worker:
                left += self.leave(call, visit, GatewayError(error.kind, error.message, code=error.code))
        return left

    def leave(self, call: Call, visit: Visit, error: GatewayError) -> bool:
        """Ends `visit`, which is under way, with `error`, if the request can be answered elsewhere now; else nothing
        changes. Returns whether it leaves."""
        reply = call.reply
        stream = reply.stream
        over = call.reply_at is not None if stream is None else stream.over
        if over or call.task is None or visit.moving is not None or call.interrupted is not None or call.client.gone:
            return False
        may = visit.work is not None or (
            _may_move(call, visit, error) if reply.unseen else self._resumable(call, visit)
        )
        if not may:
            return False
        visit.moving = error
        if stream is not None:
            stream.interrupt(error)
        else:
            call.task.cancel()
        return True


class _Late:
    """Has a request leave its worker if nothing of the reply has come after `seconds`."""

    timer: TimerHandle

    def __init__(self, leave: Leave, call: Call, visit: Visit, seconds: float) -> None:
        self._leave = leave
        self._call = call
        self._visit = visit
        self._seconds = seconds
        self._start()

    def _start(self) -> None:
        self.timer = get_running_loop().call_later(self._seconds, self._look)

    def _look(self) -> None:
        stream, visit = self._call.reply.stream, self._visit
        if stream is not None and stream.lane.produced > visit.produced_before:
            return
        if not self._leave.leave(self._call, visit, late(self._seconds)):
            self._start()  # nobody else is there: look again


def late(seconds: float) -> GatewayError:
    return GatewayError(Kind.TIMEOUT, f"the worker had not begun to answer after {seconds:g} s", code=LATE)


def _may_move(call: Call, visit: Visit, error: GatewayError) -> bool:
    """Whether another worker, or a fallback, may answer a request of which the client has seen nothing. A move to
    another worker is taken from the retry budget, unless this one takes no more requests."""
    served, retries = call.served, call.runtime.retries
    if visit.count < retries.attempts and served.pool.may_serve([*call.tried, visit.worker]):
        return visit.ejected or error.code == LEAVING or retries.spend()
    return any(call.runtime.models[name].pool.ready for name in call.fallbacks)


def build(parts: Parts) -> Built:
    leave = Leave(parts.offers.resumable)
    parts.offers.leave_worker = leave.leave_worker
    return Built((leave,))
