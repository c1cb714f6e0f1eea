"""A stream goes on: another worker continues the text that the client has seen, and the client's stream is one.

The lane keeps that text (`Lane.partial`), the call the request that the first worker got (`Call.drop_prompt`), and the
backend makes a request for the rest of both (`Backend.resume`). Whatever cannot be continued ends with the error of the
first failure; the record says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import Request
from gateway.core.ports import Lane, Partial, Resumption
from gateway.pipeline.offload import run_step

if TYPE_CHECKING:
    from gateway.pipeline.call import Call
    from gateway.pipeline.visit import Visit

MOST_DEATHS: Final = 10
"""Failures of workers that one stream survives, however much each worker added: a request may kill every worker that
goes on with it, after a while."""
FEW: Final = 16
"""Pieces of output. A worker that fails before it has added as many may have failed because of the request."""


class Continuation:
    """The history of one stream that workers go on with. Made at the first failure.

    failure     the first one, since the last worker that added more than a few tokens
    resumption  for the next worker; None before anything was decided
    asked       how many workers were asked to go on
    tokens      of the reply that they computed again
    """

    def __init__(self) -> None:
        self.failure: GatewayError | None = None
        self.resumption: Resumption | None = None
        self.asked = 0
        self.tokens = 0
        self._failures = 0
        self._visits = 0  # since a worker has added more than a few tokens

    def next_request(self, call: Call) -> Request:
        """The request for the next worker. Its id is another one: a worker that stalled may still have the first."""
        assert self.resumption is not None
        self.asked += 1
        self.tokens += call.produced_before
        request, own, suffix = self.resumption.request, b"x-request-id", b"-c%d" % self.asked
        # The trace's headers are new.
        headers = call.outgoing.request.headers
        request.headers = [(name, value + suffix if name == own else value) for name, value in headers]
        return request

    def spliced(self, call: Call) -> Lane:
        """The stream's lane, for the bytes of the next worker."""
        assert call.lane is not None
        assert self.resumption is not None
        call.lane.splice(self.resumption.repeated)
        return call.lane

    def exhausted(self, attempts: int) -> bool:
        """Whether one more failure would be the last one."""
        return self._visits + 1 >= attempts or self._failures >= MOST_DEATHS

    def obstacle(self, call: Call, visit: Visit, error: GatewayError) -> str | None:
        """Why the failure of this visit may not be followed by another one, whatever the reply is; None if it may."""
        retries = call.runtime.retries
        assert call.lane is not None
        added = call.lane.produced - call.produced_before
        if added >= FEW or self.failure is None:
            self.failure, self._visits = error, 0
            call.tried = ()
        self._failures += 1
        self._visits += 1
        call.produced_before = call.lane.produced
        meaning = error.meaning
        if meaning is None:
            return "refused"
        if self._visits >= retries.attempts or self._failures > MOST_DEATHS:
            return "attempts"
        # A stream that goes on adds no load, but one that is tried again and again does.
        if added == 0 and visit.moving is None and not visit.ejected and meaning.budget and not retries.spend():
            return "retry_budget"
        return None


def breaks(error: GatewayError) -> bool:
    """Whether another worker might have gone on: a failure of the worker, and not of this reply."""
    return error.blame is Blame.WORKER and (error.retryable or error.kind is Kind.TIMEOUT)


def may_go_on(call: Call, visit: Visit) -> bool:
    """Whether another worker can go on now with the stream of this visit."""
    lane = call.lane
    if lane is None or not call.served.pool.may_serve([visit.worker]):
        return False
    going_on, attempts = call.continuation, call.runtime.retries.attempts
    if attempts < 2 or (going_on is not None and going_on.exhausted(attempts)):
        return False
    partial = lane.partial()
    if isinstance(partial, str) or partial.finished:
        return False
    return isinstance(call.served.backend.resume(call.outgoing.request, partial), Resumption)


async def resumed(call: Call, lane: Lane) -> Resumption | Partial | str:
    """How another worker goes on with the stream. A `Partial` instead if only the end of the reply is missing; a text
    is why the stream cannot be continued."""
    partial = lane.partial()
    if isinstance(partial, str) or partial.finished:
        return partial
    found = await run_step(call.share, call.served.backend.resume, call.outgoing.request, partial)
    return partial if found == "length" else found
