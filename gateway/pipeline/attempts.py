"""The attempts of one request: one worker after another until one answers.

`Attempts` is the plain case. Some operations and models need a subclass, chosen by the model and the operation
(`strategies.attempts_for`): `prefill.PrefillAttempts`, `hedge.HedgedAttempts`, and `QuestionAttempts` below.
"""

from __future__ import annotations

from asyncio import CancelledError, TimerHandle, get_running_loop
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import cast

from gateway.core.continuation import NOT_KEPT, SeenText
from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import Request, Response
from gateway.core.lifecycle import Embeddings, Reply, Scores
from gateway.core.messages import Chat, Complete, Embed, Generate, Score, choices_of
from gateway.core.ports import Exchange, Lane, Moves, Partial, WorkerHandle
from gateway.core.usage import Usage
from gateway.light_task import AnyTask, current_task
from gateway.pipeline.call import Call
from gateway.pipeline.going_on import Continuation, breaks, resumed
from gateway.pipeline.moving import MOVES, late, leave, reason_of
from gateway.pipeline.offload import offload
from gateway.pipeline.other_models import UNAVAILABLE
from gateway.pipeline.pump import Pump
from gateway.pipeline.timing import milliseconds
from gateway.pipeline.visit import Fault, Visit, error_of
from gateway.translation.guarded import event_lane
from gateway.translation.lanes import lane_for
from gateway.translation.whole import read_whole
from gateway.wire.bulk import is_large

_PROBED_S = 0.25
"""Seconds in which a worker that has just failed, and lives, answers a probe."""
_LOOK_S = 1.0
"""Seconds between two looks at whether a worker that the request has tried has returned."""


class Attempts:
    """Picks a worker, sends, passes the reply on. Tries another worker while that may help: while the client has seen
    nothing, with the request itself; then, with what is left of a stream (`going_on`). Writes into the record:
    attempts, worker, picked, ttft_ms, queue_ms, upstream_ms, moved, continued, not_continued."""

    # The failure of the visit before this one, and its worker.
    _failure: GatewayError | None = None
    _failed_at = ""
    # Attempts of earlier rounds, which ended well.
    _before = 0
    # Ends a visit that has nothing for the client until then.
    _timer: TimerHandle | None = None

    def __init__(self, call: Call) -> None:
        self._call = call

    async def run(self) -> None:
        """Returns when the client has its reply. Raises the GatewayError of the last attempt; if the client has seen a
        part of a stream, that of the first failure after which no worker went on with it."""
        call = self._call
        record, watchers = call.record, call.watchers
        if record.stream:
            call.reply.keep_alive(self._new_lane)
        while True:
            for before in watchers.before_worker:
                if (known := before(call)) is not None:
                    await self._may_be_sent(known)
            call.stage = "queued"
            for waiting in watchers.waiting:
                waiting(call)
            try:
                call.confirm()
                tried = call.tried if call.continuation is None else [*call.tried, *call.served.pool.suspects]
                # Mostly one is free, and there is nothing to wait for.
                visit = self._at_once(tried) or await self._wait(tried)
            except (GatewayError, CancelledError) as error:
                raise self._without_worker(error) from None
            call.stage = "visiting"
            if self._failure is not None:
                self._note_next(self._failure)
            try:
                with visit:
                    if call.outgoing.deadlines.moves is not None:
                        self._watch(visit, call.outgoing.deadlines.moves)
                    await (self._attempt(visit) if call.continuation is None else self._go_on(visit))
                return
            except GatewayError as error:
                if not await self._may_try_again(error, visit):
                    return
            finally:
                if self._timer is not None:
                    self._timer.cancel()

    async def _may_be_sent(self, known: Awaitable[None]) -> None:
        """Raises GatewayError if no other worker may be sent the request, as `known` does."""
        try:
            await known
        except GatewayError:
            if self._call.continuation is not None:
                self._not_continued("quarantined")
            raise

    # -- the pick ---------------------------------------------------------------------------------------------------

    def _at_once(self, tried: Sequence[WorkerHandle]) -> Visit | None:
        """A visit to a worker that is free now; None if the request has to wait for one."""
        call = self._call
        worker = call.served.pool.try_acquire(tried, call.routing)
        return None if worker is None else self._visit(worker)

    async def _wait(self, tried: Sequence[WorkerHandle]) -> Visit:
        """A visit, after a wait in the queue. Raises GatewayError as `_acquire` does."""
        call = self._call
        since = call.runtime.clock()
        try:
            worker = await self._acquire(tried)
        finally:
            call.waited(since)
        visit = self._visit(worker)
        try:
            call.confirm()
        except GatewayError:
            with visit:
                visit.abandoned()
                raise
        return visit

    async def _acquire(self, tried: Sequence[WorkerHandle]) -> WorkerHandle:
        """A worker, once one is free. A request that has lost its worker, and that no other could serve, waits for one
        to return; it may be one that it has tried, but none whose probes are silent. Raises GatewayError as
        `Pool.acquire` does."""
        call = self._call
        clock, pool, routing = call.runtime.clock, call.served.pool, call.routing
        give_up_at = clock() + call.runtime.retries.wait_s if self._lost_worker() else 0.0
        pause = _PROBED_S
        while True:
            routing.patience = max(0.0, min(pause, give_up_at - clock())) if give_up_at else 0.0
            try:
                return await pool.acquire(tried, call.principal.priority, routing)
            except GatewayError as error:
                # A worker that has failed the request and lives on is not asked again.
                alive = pool.may_serve(())
                if error.kind is not Kind.NO_WORKER or not routing.patience or alive > pool.may_serve(call.tried):
                    raise
            tried, pause = [*(call.tried if alive else ()), *pool.suspects], _LOOK_S

    def _lost_worker(self) -> bool:
        """Whether the request may wait for a worker to return: another one has begun with it, and has ended, stalls or
        leaves; and no fallback is there."""
        call, failure = self._call, self._failure
        if failure is None or call.continuation is not None:
            return failure is not None
        others = call.served.other_models
        fallback = others is not None and bool(others.fallback) and UNAVAILABLE in others.on
        return not fallback and (failure.broke or failure.code in MOVES)

    def _visit(self, worker: WorkerHandle) -> Visit:
        call = self._call
        record, routing, served = call.record, call.routing, call.served
        record.attempts += 1
        record.worker = worker.address
        if call.failed is not None:
            call.name_worker(worker.address)
        record.picked = routing.picked
        return Visit(served.pool, worker, routing, served.transport, call)

    def _may_retry(self, error: GatewayError, visit: Visit) -> bool:
        """True while the client has seen nothing and another worker may do better."""
        call = self._call
        meaning, retries = error.meaning, call.runtime.retries
        return (
            meaning is not None
            and error.retryable
            and call.reply.unseen
            and call.record.attempts - self._before < retries.attempts
            # A move was paid for when it was decided.
            and (visit.moving is error or visit.ejected or not meaning.budget or retries.spend())
        )

    def _unfit(self, visit: Visit) -> list[WorkerHandle]:
        """The workers that the next attempt leaves out."""
        return [visit.worker] if visit.outcome == "failed" or visit.moving is not None else []

    # -- after a failure --------------------------------------------------------------------------------------------

    async def _may_try_again(self, error: GatewayError, visit: Visit) -> bool:
        """Whether another worker is asked after the failure of this visit. False if the client has its reply all the
        same. Raises GatewayError if the request has failed."""
        call = self._call
        record = call.record
        call.failed = call.failed or visit.worker.address
        if error.upstream is not None and (error.detail is not None or error.why is not None):
            call.runtime.observer.answered_with(record, visit.worker.address, error)
        if call.reply.committed:
            again = await self._may_go_on(error, visit)
        else:
            again = self._may_retry(error, visit)
            if visit.moving is not None:
                reason = reason_of(error)
                record.moved += (reason,)
                call.runtime.observer.moved(record.model, reason)
        for failed in call.watchers.failed:
            failed(call, visit, error, again)
        if again:
            record.prefill = None  # from now on the worker that generates computes the prompt
            call.tried = [*call.tried, *self._unfit(visit)]
            self._failure, self._failed_at = error, visit.worker.address
            error.release_frames()
        elif call.lane is None or not call.lane.done:
            raise self._cause(error)
        return again

    def _without_worker(self, error: GatewayError | CancelledError) -> GatewayError | CancelledError:
        """The error of a request that gets no worker: the pool gave `error`, or it was cancelled while it waited."""
        call, reason = self._call, "no_worker"
        if isinstance(error, GatewayError) and error.kind in (Kind.UNAUTHENTICATED, Kind.FORBIDDEN):
            reason, self._failure = "key_refused", None
        if isinstance(error, CancelledError):
            cause = call.interrupted
            reason = Kind.CLIENT_GONE.value if cause is None else cause.code or cause.kind.value
        if call.continuation is not None:
            self._not_continued(reason)
        return error if isinstance(error, CancelledError) else self._cause(self._failure or error)

    # -- another worker, for a request that has one already ---------------------------------------------------------

    def _watch(self, visit: Visit, moves: Moves) -> None:
        """Has the request leave the worker if nothing of its reply has come in time."""
        call, task = self._call, current_task()
        generates = type(call.op) is Chat or type(call.op) is Complete
        seconds = moves.unstreamed if generates and not call.record.stream else moves.first_token
        if seconds is not None and task is not None:
            self._timer = get_running_loop().call_later(seconds, self._look, visit, task, seconds)

    def _look(self, visit: Visit, task: AnyTask, seconds: float) -> None:
        call = self._call
        stream = call.reply.stream
        if stream is not None and stream.lane.produced > call.produced_before:
            return
        if not leave(call, visit, late(seconds), task):  # nobody else is there: look again
            self._timer = get_running_loop().call_later(seconds, self._look, visit, task, seconds)

    def _note_next(self, failure: GatewayError) -> None:
        """A worker has failed, and another one is asked now."""
        call, failed_at = self._call, self._failed_at
        record, observer = call.record, call.runtime.observer
        if call.continuation is None:
            observer.retried(record.model, failed_at, failure)
        else:
            reason = reason_of(failure)
            record.continued += (reason,)
            observer.continued(record.model, failed_at, reason)

    async def _may_go_on(self, error: GatewayError, visit: Visit) -> bool:
        """Whether another worker is asked to go on with the stream. If only the end of the stream is missing, this ends
        it, and its lane is done."""
        call, lane = self._call, self._call.lane
        going_on = call.continuation
        if lane is None or not call.served.continues or (going_on is None and not breaks(error)):
            return False
        if error.blame is Blame.US and error.upstream is None:
            return False  # the request is over
        if going_on is None:
            going_on = call.continuation = Continuation()
        obstacle = going_on.obstacle(call, visit, error)
        rest = await resumed(call, lane)
        if isinstance(rest, Partial) and reason_of(error) == "failed":
            self._not_continued("failed")  # the engine itself reports that its reply is not right
        elif isinstance(rest, Partial):
            last = lane.conclude(call.used() or Usage(call.prompt, lane.produced, source="estimated"))
            if lane.error is not None:
                self._not_continued("failed")  # such an end is a failure in the client's dialect
                return False
            call.record.continued += ("ended",)
            call.runtime.observer.continued(call.record.model, visit.worker.address, "ended")
            await self._conclude(last)
        elif obstacle is not None or isinstance(rest, str):
            self._not_continued(obstacle or str(rest))
        else:
            going_on.resumption = rest
            return True
        return False

    async def _conclude(self, last: bytes) -> None:
        """Ends the client's stream by its last bytes, without a worker."""
        call = self._call
        assert call.lane is not None
        if call.guard is not None:
            await call.guard.finish()
        else:
            call.settle()
            await call.reply.conclude(last, call.lane)

    def _not_continued(self, reason: str) -> None:
        record = self._call.record
        record.not_continued = reason
        self._call.runtime.observer.not_continued(record.model, reason)

    def _cause(self, error: GatewayError) -> GatewayError:
        """The error for the client if `error` was the last one. A client need not learn how others failed to go on with
        its stream."""
        going_on = self._call.continuation
        if going_on is None or going_on.failure is None or (error.blame is Blame.US and error.upstream is None):
            return error
        return going_on.failure

    async def _go_on(self, visit: Visit) -> None:
        call = self._call
        assert call.continuation is not None
        await self._exchange(visit, call.continuation.next_request(call))

    # -- one attempt ------------------------------------------------------------------------------------------------

    async def _attempt(self, visit: Visit) -> None:
        if self._call.outgoing.unmeasured:
            await measure(self._call, visit)
        await self._exchange(visit, self._call.outgoing.request)

    async def _exchange(self, visit: Visit, request: Request) -> None:
        call = self._call
        exchange = await visit.send(request, call.outgoing.deadlines)
        for responded in call.watchers.responded:
            responded(call, visit, exchange.status)
        if exchange.status != 200:
            raise await error_of(exchange, self._fault)
        if call.record.stream:
            await self._stream(exchange, visit)
            return
        await self._pass_whole(exchange, visit)

    async def _pass_whole(self, exchange: Exchange, visit: Visit) -> None:
        call = self._call
        body = await exchange.body(call.runtime.relay.max_reply_bytes)
        if call.served.hear is not None:
            call.served.hear(visit.worker, exchange.headers)
        await self._respond(Response(exchange.status, exchange.headers, body))

    @property
    def _fault(self) -> Fault:
        return partial(self._call.served.backend.fault, op=self._call.op)

    async def _respond(self, response: Response) -> None:
        """Passes the worker's whole reply on."""
        call = self._call
        call.reply_at = call.runtime.clock()
        # The vectors of many inputs, or the logprobs of many tokens, come to megabytes.
        large = is_large(response.body)
        if call.guard is None:
            await call.reply.respond(
                await offload(self._translated, response, share=call.share) if large else self._translated(response)
            )
        else:
            held = await offload(self._written, response, share=call.share) if large else self._written(response)
            call.guard.keep(held[0], cast("Reply", held[1]))

    def _translated(self, response: Response) -> Response:
        """The client's reply, from the worker's."""
        call = self._call
        dialect, backend, op = call.reply.dialect, call.served.backend, call.asked
        passthrough = dialect.passthrough.get(backend.reply_wire(op))
        if passthrough is not None:
            translated, call.record.usage = passthrough.whole(response, cast("Generate | Embed", op))
            if call.record.trace is not None:
                call.finishes = passthrough.finishes(translated)
            return translated
        return self._written(response)[0]

    def _written(self, response: Response) -> tuple[Response, Reply | Embeddings | Scores]:
        """The client's reply, and what it says. Guards are shown the latter, so with one it has nothing else."""
        call = self._call
        op = cast("Generate | Embed | Score", call.asked)  # QuestionAttempts has the others
        reply = read_whole(call.served.backend, response, op)
        call.record.usage = reply.usage
        if type(reply) is Reply:
            if call.record.trace is not None:
                call.finishes = [choice.reason for choice in reply.choices]
            if call.guard is not None and type(op) is Chat:
                for choice in reply.choices:
                    choice.extra = None  # the transcript of a sound, annotations
        return call.reply.dialect.write(reply, op), reply

    async def _stream(self, exchange: Exchange, visit: Visit) -> None:
        call = self._call
        going_on = call.continuation
        lane = call.lane = self._new_lane(call.keep_text()) if going_on is None else going_on.spliced(call)
        await self._pump(Pump(exchange, lane, call, visit))

    async def _pump(self, pump: Pump) -> None:
        call, lane = self._call, pump.lane
        try:
            await pump.run()
        finally:
            first_at = pump.first_output_at
            if first_at is not None and (lane.error is None or lane.produced):
                if call.continuation is None or call.record.ttft_ms is None:
                    call.record.ttft_ms = milliseconds(first_at - call.began)
                for first_output in call.watchers.first_output:
                    first_output(call, call.runtime.clock() - first_at)

    def _new_lane(self, seen: SeenText = NOT_KEPT) -> Lane:
        call = self._call
        op = cast("Generate", call.asked)  # no other operation is streamed
        dialect, backend, most = call.reply.dialect, call.served.backend, call.runtime.relay.max_reply_bytes
        if call.guard is None:
            return lane_for(dialect, backend, op, most, seen)
        if choices_of(op) != 1:
            seen.stop("choices")
        return event_lane(partial(backend.reader, op), call.guard.writer(dialect.writer(op)), most, seen)


class QuestionAttempts(Attempts):
    """Attempts for an operation that workers answer without their model (`core.messages.Question`): it takes no place,
    passes the queue by, and may be answered by any status."""

    def _at_once(self, tried: Sequence[WorkerHandle]) -> Visit:
        call = self._call
        record, served = call.record, call.served
        worker = served.pool.borrow(tried)
        record.attempts += 1
        record.worker = worker.address
        call.name_worker(worker.address)
        return Visit(served.pool, worker, None, served.transport, call)

    async def _exchange(self, visit: Visit, request: Request) -> None:
        call = self._call
        await self._respond(await visit.ask(request, call.outgoing.deadlines, call.runtime.relay.max_reply_bytes))

    def _translated(self, response: Response) -> Response:
        call = self._call
        assert call.outgoing.question is not None
        return call.reply.dialect.write(call.outgoing.question.read(response), call.asked)


async def measure(call: Call, visit: Visit) -> None:
    """Has the visited worker measure the prompt, and writes the request that fits its length. Raises GatewayError."""
    cut = await call.outgoing.measure(visit, call.asked, call.runtime.relay.max_reply_bytes)
    if cut:
        call.reply.name_left_out(cut)
