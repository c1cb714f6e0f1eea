"""A stream goes on: another worker continues the text that the client has seen, and the client's stream is one.

The lane keeps that text (`Lane.partial`), `Call.sent_text` the request that the first worker got (`Call.drop_prompt`),
and the backend makes a request for the rest of both (`Backend.resume`). Whatever cannot be continued ends with the
error of the first failure; the record says why.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable
from typing import Final

from gateway.core.byte_budget import Held
from gateway.core.continuation import NO_TEXT, SentText
from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import Request
from gateway.core.moves import reason_of
from gateway.core.ports import Lane, Partial, Resumption
from gateway.core.usage import Usage
from gateway.features import Built, Parts
from gateway.kernel.call import Call
from gateway.kernel.delivery import conclude
from gateway.kernel.feature import Attempt, Failure, Feature, Step
from gateway.kernel.visit import FEW, Visit
from gateway.offload import run_step

MOST_DEATHS: Final = 10
"""Failures of workers that one stream survives, however much each worker added: a request may kill every worker that
goes on with it, after a while."""


class Resume(Feature):
    """Has streams go on at other workers. A call's notes have the history of its stream from the first failure on."""

    def around_workers(self, inner: Step) -> Step:
        def workers(call: Call) -> Awaitable[None]:
            streams = call.record.stream and call.op is not None and call.op.generates
            return resumable(call) if streams else inner(call)

        async def resumable(call: Call) -> None:
            try:
                await inner(call)
            except GatewayError as error:
                if (history := self.history(call)) is not None:
                    if call.stage == "queued":
                        _not_continued(call, "key_refused" if error.kind in _REFUSED else "no_worker")
                    elif error.final:
                        _not_continued(call, "quarantined")
                    raise history.cause(error) from None
                raise
            except CancelledError:
                if self.history(call) is not None and call.stage == "queued":
                    cause = call.interrupted
                    _not_continued(call, Kind.CLIENT_GONE.value if cause is None else cause.code or cause.kind.value)
                raise
            finally:
                call.sent_text.close()
                call.sent_text = NO_TEXT

        return workers

    def around_attempt(self, inner: Attempt) -> Attempt:
        def attempt(call: Call, visit: Visit) -> Awaitable[None]:
            if not call.record.stream or visit.work is not None:
                return inner(call, visit)
            history = self.history(call)
            if history is not None and history.resumption is not None:
                history.begin(call, visit)
            elif call.op is not None and call.op.generates:
                call.sent_text.close()
                call.sent_text = SentText(Held(call.runtime.budgets.continuations, call.owner))
            return inner(call, visit)

        return attempt

    def around_failure(self, inner: Failure) -> Failure:
        def failure(call: Call, visit: Visit, error: GatewayError) -> Awaitable[bool]:
            return self._go_on(call, visit, error) if call.reply.committed else inner(call, visit, error)

        return failure

    def history(self, call: Call) -> History | None:
        found: History | None = call.notes.get(self)
        return found

    async def _go_on(self, call: Call, visit: Visit, error: GatewayError) -> bool:
        """Whether another worker is asked to go on with the stream. If only the end of the stream is missing, this ends
        it, and its lane is done."""
        lane, history = call.lane, self.history(call)
        if lane is None or (history is None and not breaks(error)):
            return False
        if error.blame is Blame.US and error.upstream is None:
            return False  # the request is over
        if history is None:
            history = call.notes[self] = History()
            call.at_end[self] = history.recomputed
        obstacle = history.obstacle(call, visit, error)
        rest = await resumed(call, lane)
        if isinstance(rest, Partial) and reason_of(error) == "failed":
            _not_continued(call, "failed")  # the engine itself reports that its reply is not right
        elif isinstance(rest, Partial):
            last = lane.conclude(call.used() or Usage(call.prompt, lane.produced, source="estimated"))
            if lane.error is not None:
                _not_continued(call, "failed")  # such an end is a failure in the client's dialect
                return False
            _continued(call, visit.worker.address, "ended")
            await conclude(call, last)
        elif obstacle is not None or isinstance(rest, str):
            _not_continued(call, obstacle or str(rest))
        else:
            history.resumption, history.next_note = rest, (visit.worker.address, reason_of(error))
            return True
        return False

    def may_go_on(self, call: Call, visit: Visit) -> bool:
        """Whether another worker can go on now with the stream of this visit."""
        lane = call.lane
        if lane is None or not call.served.pool.may_serve([visit.worker]):
            return False
        history, attempts = self.history(call), call.runtime.retries.attempts
        if attempts < 2 or (history is not None and history.exhausted(attempts)):
            return False
        partial = lane.partial()
        if isinstance(partial, str) or partial.finished:
            return False
        return isinstance(call.outgoing.resume(partial), Resumption)


_REFUSED = (Kind.UNAUTHENTICATED, Kind.FORBIDDEN)


def _continued(call: Call, worker: str, reason: str) -> None:
    call.record.continued += (reason,)
    call.runtime.observer.continued(call.record.model, worker, reason)


def _not_continued(call: Call, reason: str) -> None:
    call.record.not_continued = reason
    call.runtime.observer.not_continued(call.record.model, reason)


class History:
    """The history of one stream that workers go on with. Made at the first failure.

    failure     the first one, since the last worker that added more than a few tokens
    resumption  for the next worker; None before anything was decided
    next_note   the worker that failed, and the reason, for the record once another one goes on
    asked       how many workers were asked to go on
    tokens      of the reply that they computed again
    """

    next_note = ("", "")

    def __init__(self) -> None:
        self.failure: GatewayError | None = None
        self.resumption: Resumption | None = None
        self.asked = 0
        self.tokens = 0
        self._failures = 0
        self._visits = 0  # since a worker has added more than a few tokens

    def begin(self, call: Call, visit: Visit) -> None:
        """The visit goes on with the stream."""
        assert self.resumption is not None
        assert call.lane is not None
        _continued(call, *self.next_note)
        self.asked += 1
        self.tokens += call.lane.produced
        visit.request, visit.repeated = self._request(call, self.resumption.request), self.resumption.repeated

    def _request(self, call: Call, request: Request) -> Request:
        """`request` under an id of its own: a worker that stalled may still have the first."""
        own, suffix = b"x-request-id", b"-c%d" % self.asked
        # The trace's headers are new.
        headers = call.outgoing.request.headers
        request.headers = [(name, value + suffix if name == own else value) for name, value in headers]
        return request

    def exhausted(self, attempts: int) -> bool:
        """Whether one more failure would be the last one."""
        return self._visits + 1 >= attempts or self._failures >= MOST_DEATHS

    def obstacle(self, call: Call, visit: Visit, error: GatewayError) -> str | None:
        """Why the failure of this visit may not be followed by another one, whatever the reply is; None if it may."""
        retries = call.runtime.retries
        assert call.lane is not None
        added = call.lane.produced - visit.produced_before
        if added >= FEW or self.failure is None:
            self.failure, self._visits = error, 0
            call.tried = ()
        self._failures += 1
        self._visits += 1
        meaning = error.meaning
        if meaning is None:
            return "refused"
        if self._visits >= retries.attempts or self._failures > MOST_DEATHS:
            return "attempts"
        # A stream that goes on adds no load, but one that is tried again and again does.
        if added == 0 and visit.moving is None and not visit.ejected and meaning.budget and not retries.spend():
            return "retry_budget"
        return None

    def cause(self, error: GatewayError) -> GatewayError:
        """The error for the client if `error` was the last one. A client need not learn how others failed to go on with
        its stream."""
        if self.failure is None or (error.blame is Blame.US and error.upstream is None):
            return error
        return self.failure

    def recomputed(self, call: Call) -> None:
        """Writes what was computed again into the record."""
        if self.asked:
            usage = call.record.usage
            prompt = (usage.input if usage is not None else None) or call.prompt or 0
            call.record.recomputed = self.asked * prompt + self.tokens


def breaks(error: GatewayError) -> bool:
    """Whether another worker might have gone on: a failure of the worker, and not of this reply."""
    return error.blame is Blame.WORKER and (error.retryable or error.kind is Kind.TIMEOUT)


async def resumed(call: Call, lane: Lane) -> Resumption | Partial | str:
    """How another worker goes on with the stream. A `Partial` instead if only the end of the reply is missing; a text
    is why the stream cannot be continued."""
    partial = lane.partial()
    if isinstance(partial, str) or partial.finished:
        return partial
    found = await run_step(call.share, call.outgoing.resume, partial)
    return partial if found == "length" else found


def build(parts: Parts) -> Built:
    resume = Resume()
    parts.offers.resumable = resume.may_go_on
    return Built(of_model=lambda model: resume if model.options.continue_streams else None)
