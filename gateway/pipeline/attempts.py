"""The attempts of one request: one worker after another until one answers.

`Attempts` is the plain case. Some operations and models need a subclass, chosen by the model and the operation
(`strategies.attempts_for`): `prefill.PrefillAttempts`, `hedge.HedgedAttempts`, and `QuestionAttempts` below.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import Request, Response
from gateway.core.lifecycle import Reply
from gateway.core.messages import Embed, Generate, Score
from gateway.core.ports import Exchange, Lane, WorkerHandle
from gateway.pipeline.call import Call
from gateway.pipeline.offload import offload
from gateway.pipeline.pump import Pump
from gateway.pipeline.timing import milliseconds
from gateway.pipeline.visit import Fault, Visit, error_of
from gateway.translation.lanes import lane_for
from gateway.translation.whole import read_whole
from gateway.wire.bulk import is_large


class Attempts:
    """Picks a worker, sends, passes the reply on. Tries another worker while that may help and the client has seen
    nothing. Writes into the record: attempts, worker, picked, ttft_ms, queue_ms, upstream_ms."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def run(self) -> None:
        """Returns when the client has its reply, or the whole of a stream that failed on the way. Raises the
        GatewayError of the last attempt while the client has seen nothing."""
        call = self._call
        runtime, record, watchers = call.runtime, call.record, call.watchers
        if record.stream:
            call.reply.keep_alive(self._new_lane)
        failure: GatewayError | None = None
        failed_at = ""
        while True:
            for before in watchers.before_worker:
                await before(call)
            call.stage = "queued"
            asked_at = runtime.clock()
            for waiting in watchers.waiting:
                waiting(call)
            try:
                # Mostly one is free, and there is nothing to wait for.
                visit = self._at_once(call.tried) or await self._wait(call.tried)
            except GatewayError as error:
                raise failure or error from None
            finally:
                call.waited(asked_at)
            call.stage = "visiting"
            if failure is not None:
                runtime.observer.retried(record.model, failed_at, failure)
            try:
                with visit:
                    late_failure = await self._attempt(visit)
                    if late_failure is not None:
                        visit.failed(late_failure)
                        return
                    for answered in watchers.answered:
                        await answered(call)
                return
            except GatewayError as error:
                again = self._may_retry(error, visit)
                for failed in watchers.failed:
                    failed(call, visit, error, again)
                if not again:
                    raise
                record.prefill = None  # from now on the worker that generates computes the prompt
                call.tried = [*call.tried, *self._unfit(visit)]
                failure, failed_at = error, visit.worker.address
                failure.release_frames()

    # -- the pick ---------------------------------------------------------------------------------------------------

    def _at_once(self, tried: Sequence[WorkerHandle]) -> Visit | None:
        """A visit to a worker that is free now; None if the request has to wait for one."""
        call = self._call
        worker = call.served.pool.try_acquire(tried, call.routing)
        return None if worker is None else self._visit(worker)

    async def _wait(self, tried: Sequence[WorkerHandle]) -> Visit:
        call = self._call
        return self._visit(await call.served.pool.acquire(tried, call.principal.priority, call.routing))

    def _visit(self, worker: WorkerHandle) -> Visit:
        call = self._call
        record, routing, served = call.record, call.routing, call.served
        record.attempts += 1
        record.worker = worker.address
        record.picked = routing.picked
        return Visit(served.pool, worker, routing, served.transport, call)

    def _may_retry(self, error: GatewayError, visit: Visit) -> bool:
        """True while the client has seen nothing and another worker may do better."""
        call = self._call
        theirs = error.blame is Blame.WORKER or (error.kind is Kind.OVERLOADED and error.upstream is not None)
        return (
            theirs
            and error.retryable
            and call.reply.unseen
            and call.record.attempts < call.runtime.retries.attempts
            and (visit.moving is error or call.runtime.retries.spend())  # a move was paid for when it was decided
        )

    def _unfit(self, visit: Visit) -> list[WorkerHandle]:
        """The workers that the next attempt leaves out."""
        return [visit.worker] if visit.outcome == "failed" or visit.moving is not None else []

    # -- one attempt ------------------------------------------------------------------------------------------------

    async def _attempt(self, visit: Visit) -> GatewayError | None:
        """One attempt. Returns the error that ended a stream of which the client had seen something, else None; raises
        GatewayError for any other failure."""
        if self._call.outgoing.unmeasured:
            await measure(self._call, visit)
        return await self._exchange(visit, self._call.outgoing.request)

    async def _exchange(self, visit: Visit, request: Request) -> GatewayError | None:
        call = self._call
        exchange = await visit.send(request, call.outgoing.deadlines)
        for responded in call.watchers.responded:
            responded(call, visit, exchange.status)
        if exchange.status != 200:
            raise await error_of(exchange, self._fault)
        if call.record.stream:
            return await self._stream(exchange, visit)
        body = await exchange.body(call.runtime.relay.max_reply_bytes)
        if call.served.hear is not None:
            call.served.hear(visit.worker, exchange.headers)
        await self._respond(Response(exchange.status, exchange.headers, body))
        return None

    @property
    def _fault(self) -> Fault:
        return partial(self._call.served.backend.fault, op=self._call.op)

    async def _respond(self, response: Response) -> None:
        """Passes the worker's whole reply on."""
        call = self._call
        call.reply_at = call.runtime.clock()
        # The vectors of many inputs, or the logprobs of many tokens, come to megabytes.
        large = is_large(response.body)
        await call.reply.respond(
            await offload(self._translated, response, share=call.share) if large else self._translated(response)
        )

    def _translated(self, response: Response) -> Response:
        """The client's reply, from the worker's."""
        call = self._call
        dialect, backend, op = call.reply.dialect, call.served.backend, call.asked
        passthrough = dialect.passthrough.get(backend.reply_wire(op))
        if passthrough is not None:
            translated, call.record.usage = passthrough.whole(response, cast(Generate | Embed, op))
            if call.record.trace is not None:
                call.finishes = passthrough.finishes(translated)
            return translated
        reply = read_whole(backend, response, cast(Generate | Embed | Score, op))  # QuestionAttempts has the others
        call.record.usage = reply.usage
        if call.record.trace is not None and type(reply) is Reply:
            call.finishes = [choice.reason for choice in reply.choices]
        return dialect.write(reply, op)

    async def _stream(self, exchange: Exchange, visit: Visit) -> GatewayError | None:
        call = self._call
        lane = call.lane = self._new_lane()
        pump = Pump(exchange, lane, call, visit)
        try:
            await pump.run()
        finally:
            first_at = pump.first_output_at
            if first_at is not None and (lane.error is None or lane.produced):
                call.record.ttft_ms = milliseconds(first_at - call.began)
                for first_output in call.watchers.first_output:
                    first_output(call, call.runtime.clock() - first_at)
        return lane.error

    def _new_lane(self) -> Lane:
        call = self._call
        op = cast(Generate, call.asked)  # no other operation is streamed
        return lane_for(call.reply.dialect, call.served.backend, op, call.runtime.relay.max_reply_bytes)


class QuestionAttempts(Attempts):
    """Attempts for an operation that workers answer without their model (`core.messages.Question`): it takes no place,
    passes the queue by, and may be answered by any status."""

    def _at_once(self, tried: Sequence[WorkerHandle]) -> Visit:
        call = self._call
        record, served = call.record, call.served
        worker = served.pool.borrow(tried)
        record.attempts += 1
        record.worker = worker.address
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
        call.reply.name_dropped(cut)
