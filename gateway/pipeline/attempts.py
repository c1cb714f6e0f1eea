"""The attempts of one request: one worker after another until one answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import Response
from gateway.core.lanes import lane_for
from gateway.core.lifecycle import TokenCount, fold
from gateway.core.messages import Embed
from gateway.core.ports import Dialect, Exchange, Lane, RequestRecord, RequestTrace, WorkerHandle
from gateway.core.usage import Usage
from gateway.pipeline.offload import offload
from gateway.pipeline.outgoing import Outgoing
from gateway.pipeline.pump import Pump
from gateway.pipeline.reply import ClientReply
from gateway.pipeline.runtime import Runtime
from gateway.wire.bulk import is_large

_MAX_FAULT_BYTES = 1 << 20


class Attempts:
    """Picks a worker, sends, passes the reply on, and learns from what became of it; tries another worker while that
    helps and the client has seen nothing. It writes into the record: attempts, worker, ttft_ms, queue_ms, upstream_ms.

    queued   the request waits for a worker, or has had none yet
    began    when the request began, in seconds of the runtime's clock
    on_done  called when a stream is known to be complete, before its end reaches the client
    """

    def __init__(
        self,
        runtime: Runtime,
        dialect: Dialect,
        outgoing: Outgoing,
        reply: ClientReply,
        record: RequestRecord,
        began: float,
        on_done: Callable[[], None] | None,
        trace: RequestTrace | None = None,
    ) -> None:
        self.queued = True
        self._runtime = runtime
        self._dialect = dialect
        self._outgoing = outgoing
        self._reply = reply
        self._record = record
        self._began = began
        self._on_done = on_done
        self._trace = trace
        # When a whole reply had come, in seconds of the runtime's clock.
        self._answered_at: float | None = None
        # Of the last stream that a worker began.
        self._lane: Lane | None = None
        # Of a whole reply.
        self._usage: Usage | None = None

    async def run(self, priority: int) -> None:
        """Returns when the client has its reply, or the whole of a stream that failed on the way.

        Requests of a higher priority wait less for a worker. Raises the GatewayError of the last attempt while the
        client has seen nothing.
        """
        runtime, record, pool = self._runtime, self._record, self._outgoing.served.pool
        if record.stream:
            self._reply.keep_alive(self._new_lane)
        clock, spans = runtime.clock, self._trace
        question = self._outgoing.question
        tried: list[Any] = []
        failure: GatewayError | None = None
        while True:
            self.queued, asked_at = True, clock()
            if spans is not None:
                spans.waiting()
            try:
                worker = await pool.acquire(tried, priority) if question is None else pool.lend(tried)
            except GatewayError as error:
                raise failure or error from None
            finally:
                sent_at = clock()
                record.queue_ms += _ms(sent_at - asked_at)
            self.queued = False
            if failure is not None:
                runtime.observer.retried(record.model, tried[-1].address, failure)
            record.attempts += 1
            record.worker = worker.address
            generation = worker.generation
            if runtime.trace is not None:
                self._trace_choice(runtime.trace, worker)
            if spans is not None:
                self._outgoing.carry(spans.sending(worker.address, record.attempts))
            ended: GatewayError | None = None
            try:
                late_failure = ended = await self._attempt(worker, generation)
                if late_failure is None:
                    pool.succeeded(worker, generation)
                else:
                    pool.failed(worker, generation, late_failure)
                return
            except GatewayError as error:
                ended = error
                pool.failed(worker, generation, error)
                again = self._may_retry(error)
                if runtime.trace is not None:
                    self._trace_failure(runtime.trace, worker, error, again)
                if not again:
                    raise
                tried.append(worker)
                failure = error
                failure.release_frames()
            except BaseException:  # cancelled, or a bug of ours
                pool.abandoned(worker, generation)
                raise
            finally:
                if question is None:
                    pool.release(worker)
                record.upstream_ms += _ms((self._answered_at or clock()) - sent_at)
                if spans is not None:
                    spans.attempt_ended(ended)

    def _may_retry(self, error: GatewayError) -> bool:
        """Before the client has seen anything only, and only what another worker may do better."""
        theirs = error.blame is Blame.WORKER or (error.kind is Kind.OVERLOADED and error.upstream is not None)
        return (
            theirs
            and error.retryable
            and self._reply.unseen
            and self._record.attempts < self._runtime.attempts
            and self._runtime.may_retry()
        )

    async def _attempt(self, worker: WorkerHandle, generation: int) -> GatewayError | None:
        """One attempt. Returns the error that ended a stream of which the client had seen something, else None; raises
        GatewayError for any other failure."""
        outgoing = self._outgoing
        op: Any = outgoing.op
        served, limit = outgoing.served, self._runtime.max_reply_bytes
        if outgoing.unmeasured:
            cut = await outgoing.measure(worker, limit)
            if cut:
                self._reply.name_dropped(cut)
        exchange = await served.transport.send(outgoing.request, worker.address, served.deadlines)
        if self._runtime.trace is not None:
            self._runtime.trace("worker answered", id=self._record.id, worker=worker.address, status=exchange.status)
        try:
            if exchange.status != 200 and outgoing.question is None:
                body = await exchange.body(_MAX_FAULT_BYTES)
                raise served.backend.fault(Response(exchange.status, exchange.headers, body))
            if op.stream:
                return await self._stream(exchange, worker, generation)
            body = await exchange.body(limit)
        finally:
            exchange.close()
        self._answered_at = self._runtime.clock()
        response = Response(exchange.status, exchange.headers, body)
        # The vectors of many inputs, or the logprobs of many tokens, come to megabytes.
        answer = await offload(self._whole, op, response) if is_large(body) else self._whole(op, response)
        await self._reply.respond(answer)
        return None

    async def _stream(self, exchange: Exchange, worker: WorkerHandle, generation: int) -> GatewayError | None:
        lane = self._lane = self._new_lane()
        pump = Pump(exchange, lane, self._reply, self._outgoing.served.gaps)
        pump.on_done = self._on_done
        if worker.half_open:
            pump.on_first = partial(self._outgoing.served.pool.answered, worker, generation)
        try:
            await pump.run()
        finally:
            if pump.first_output_at is not None and (lane.error is None or lane.produced):
                self._record.ttft_ms = round((pump.first_output_at - self._began) * 1000, 3)
                if self._trace is not None:
                    self._trace.first_output(self._runtime.clock() - pump.first_output_at)
        return lane.error

    def _new_lane(self) -> Lane:
        op: Any = self._outgoing.op
        return lane_for(self._dialect, self._outgoing.served.backend, op, self._runtime.max_reply_bytes)

    def _whole(self, op: Any, response: Response) -> Response:
        """The client's reply, made of the worker's."""
        dialect, backend, question = self._dialect, self._outgoing.served.backend, self._outgoing.question
        if question is not None:
            return dialect.write(TokenCount(question.read(response)), op)
        passthrough = dialect.passthrough.get(backend.wire_of(op))
        if passthrough is not None:
            out, self._usage = passthrough.whole(response, op)
            return out
        reply = backend.read_embeddings(response, op) if isinstance(op, Embed) else fold(backend.read(response, op))
        self._usage = reply.usage
        return dialect.write(reply, op)

    def used(self) -> Usage | None:
        """What the worker says was used; else an estimate, or None where nobody knows.

        What a stream produced is seen. So a stream that was not reported to the end used what was produced, and one
        whose client left before the first token used its prompt alone. A stream that failed before that used nothing.
        Of a plain reply that never came nobody knows.
        """
        lane, record = self._lane, self._record
        usage = self._usage if lane is None else lane.usage
        if usage is None and record.stream and record.attempts:
            produced = 0 if lane is None else lane.produced
            failed = lane is None or lane.error is not None
            if produced or not failed or record.outcome == "cancelled":
                usage = Usage(None, produced, source="estimated")
        if usage is not None and usage.input is None:
            prompt = self._runtime.estimate(self._outgoing.op)
            usage = Usage(prompt, usage.output, usage.cached, usage.reasoning, "estimated")
        return usage

    # -- for the log at level debug ---------------------------------------------------------------------------------

    def _trace_choice(self, trace: Callable[..., None], worker: WorkerHandle) -> None:
        record = self._record
        trace(
            "worker chosen",
            id=record.id,
            model=record.model,
            worker=worker.address,
            attempt=record.attempts,
            half_open=worker.half_open,
            ms=round((self._runtime.clock() - self._began) * 1000, 3),
        )

    def _trace_failure(
        self, trace: Callable[..., None], worker: WorkerHandle, error: GatewayError, again: bool
    ) -> None:
        trace(
            "attempt failed",
            id=self._record.id,
            model=self._record.model,
            worker=worker.address,
            attempt=self._record.attempts,
            code=error.code or error.kind.value,
            blame=error.blame.value,
            upstream=error.upstream,
            again=again,
        )


def _ms(seconds: float) -> float:
    """Milliseconds, cut to microseconds: a tenth of what `round` costs."""
    return int(seconds * 1_000_000) / 1000
