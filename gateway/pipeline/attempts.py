"""The attempts of one request: one worker after another until one answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from gateway.core.demand import Demand
from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import Headers, Request, Response
from gateway.core.lanes import lane_for
from gateway.core.lifecycle import Reply
from gateway.core.messages import Embed
from gateway.core.ports import Dialect, Exchange, Lane, RequestRecord, RequestTrace, WorkerHandle
from gateway.core.usage import Usage
from gateway.core.whole import read_whole
from gateway.pipeline.faults import fault_of, whole_answer
from gateway.pipeline.first_step import FirstStep
from gateway.pipeline.hedge import hedged
from gateway.pipeline.offload import offload
from gateway.pipeline.outgoing import Outgoing
from gateway.pipeline.pump import Pump
from gateway.pipeline.quarantine import Quarantine, looks_deadly
from gateway.pipeline.reply import ClientReply
from gateway.pipeline.runtime import Runtime
from gateway.pipeline.timing import milliseconds
from gateway.wire.bulk import is_large


class Attempts:
    """Picks a worker, sends, passes the reply on, and reports the outcome to the pool. Tries another worker while that
    may help and the client has seen nothing. Writes into the record: attempts, worker, ttft_ms, queue_ms, upstream_ms.

    queued   the request waits for a worker, or has had none yet
    deaths   what will tell whether a worker died of the request; a fallback's attempts go on with those before
    began    when the request began, in seconds of the runtime's clock
    on_done  called when a stream is known to be complete, before its end reaches the client
    first    set where another worker may compute the prompt first; then no worker computes it twice
    on_sent  called when the first worker is about to be sent the request
    on_token called when a stream has a first token and will have no other worker, see `forget_prompt`
    prompt   estimated tokens of the prompt: once the prompt is forgotten, or before if that takes long
    """

    first: FirstStep | None = None
    on_sent: Callable[[], None] | None = None
    # Where the worker that generates finds the computed prompt. It is found there once.
    _handed: bytes | None = None

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
        # When the last attempt began.
        self._sent_at: float | None = None
        # Of the last stream that a worker began.
        self._lane: Lane | None = None
        # Of a whole reply.
        self._usage: Usage | None = None
        self._finishes: list[str] = []
        # Another worker's answer came before this one's, and the pool knows.
        self._outrun = False
        # The second worker of an attempt of which both failed, and how.
        self._beside: list[tuple[WorkerHandle, GatewayError]] = []
        self.deaths: list[asyncio.Task[None]] = []
        self.on_token: Callable[[], None] | None = None
        self._demand: Demand | None = None
        self.prompt: int | None = None
        self._forgotten = False

    async def run(self, priority: int, demand: Demand) -> None:
        """Returns when the client has its reply, or the whole of a stream that failed on the way.

        Requests of a higher priority wait less for a worker; `demand` says which one suits. Raises the GatewayError of
        the last attempt while the client has seen nothing.
        """
        runtime, record, pool = self._runtime, self._record, self._outgoing.served.pool
        self._demand = demand
        if record.stream:
            self._reply.keep_alive(self._new_lane)
        clock, spans = runtime.clock, self._trace
        question = self._outgoing.question
        quarantine = runtime.quarantine if question is None else None
        deaths = self.deaths
        tried: list[Any] = []
        failure: GatewayError | None = None
        failed_at = ""
        if self.first is not None:
            if quarantine is not None and len(deaths) > 1:
                await self._refuse_deadly(quarantine)
            self.queued = False
            self._handed = await self.first.run(priority, spans, self._measure)
            if quarantine is not None and self.first.failed is not None and self._may_have_died(self.first.failed[1]):
                deaths.append(quarantine.suspect(record.model, self.first.failed[0], self._reply.request))
        while True:
            if quarantine is not None and len(deaths) > 1:
                await self._refuse_deadly(quarantine)
            self.queued, asked_at = True, clock()
            if spans is not None:
                spans.waiting()
            try:
                if question is not None:
                    worker = pool.lend(tried)
                else:
                    # Mostly one is free, and there is nothing to wait for.
                    worker = pool.spare(tried, demand) or await pool.acquire(tried, priority, demand)
            except GatewayError as error:
                raise failure or error from None
            finally:
                sent_at = self._waited(asked_at)
            self.queued = False
            if failure is not None:
                runtime.observer.retried(record.model, failed_at, failure)
            record.attempts += 1
            record.worker = worker.address
            if self.on_sent is not None:
                self.on_sent()
                self.on_sent = None  # it holds the prompt
            if question is None:
                record.picked = demand.picked
            self._sent_at = sent_at
            generation = worker.generation
            if runtime.trace is not None:
                self._trace_choice(runtime.trace, worker)
            if spans is not None:
                self._outgoing.carry(spans.sending(worker.address, record.attempts))
            ended: GatewayError | None = None
            try:
                late_failure = ended = await self._attempt(worker, generation)
                if late_failure is None:
                    if not self._outrun:
                        pool.succeeded(worker, generation)
                    if quarantine is not None and not self._forgotten and (quarantine.noted or quarantine.held):
                        await quarantine.clear(self._reply.request)
                else:
                    pool.failed(worker, generation, late_failure)
                    if quarantine is not None and self._may_have_died(late_failure):
                        quarantine.suspect(record.model, worker, self._reply.request)
                return
            except GatewayError as error:
                ended = error
                # What was handed over may be at fault, not this worker: it may try again, and compute the prompt.
                spoiled = self._handed is not None and error.upstream is not None and error.blame is Blame.WORKER
                self._handed = None
                failed = [] if spoiled else [(worker, error), *self._beside]
                self._beside.clear()
                if spoiled:
                    pool.abandoned(worker, generation)
                else:
                    pool.failed(worker, generation, error)
                if quarantine is not None:
                    for one, how in failed:
                        if self._may_have_died(how):
                            deaths.append(quarantine.suspect(record.model, one, self._reply.request))
                again = self._may_retry(error)
                if runtime.trace is not None:
                    self._trace_failure(runtime.trace, worker, error, again)
                if not again:
                    raise
                record.prefill = None  # from now on who generates computes the prompt
                tried += [one for one, _ in failed]
                failure, failed_at = error, worker.address
                failure.release_frames()
            except BaseException:  # cancelled, or a bug of ours
                pool.abandoned(worker, generation)
                raise
            finally:
                if question is None:
                    pool.release(worker, demand)
                record.upstream_ms += milliseconds((self._answered_at or clock()) - sent_at)
                self._answered_at, self._sent_at = None, clock()
                if spans is not None:
                    spans.attempt_ended(ended)

    def explain(self) -> Headers:
        """What became of the request until now, for the head of its reply; nothing before a worker was picked."""
        record = self._record
        if self._sent_at is None:
            return []
        now = self._runtime.clock()
        waited_s = (record.queue_ms + record.upstream_ms) / 1000 + (self._answered_at or now) - self._sent_at
        said = {
            b"x-dragoman-worker": record.worker,
            b"x-dragoman-attempts": record.attempts,
            b"x-dragoman-queue-ms": f"{record.queue_ms:.3f}",
            b"x-dragoman-overhead-ms": f"{max(0.0, now - self._began - waited_s) * 1000:.3f}",
            b"x-dragoman-picked": record.picked,
            b"x-dragoman-prefill": record.prefill,
        }
        return [(name, str(value).encode()) for name, value in said.items() if value is not None]

    def _may_retry(self, error: GatewayError) -> bool:
        """True while the client has seen nothing and another worker may do better."""
        theirs = error.blame is Blame.WORKER or (error.kind is Kind.OVERLOADED and error.upstream is not None)
        return (
            theirs
            and error.retryable
            and self._reply.unseen
            and self._record.attempts < self._runtime.attempts
            and self._runtime.may_retry()
        )

    def _waited(self, since: float) -> float:
        """Nothing but a worker was waited for since `since`. Returns the time now."""
        now = self._runtime.clock()
        self._record.queue_ms += milliseconds(now - since)
        if self._sent_at is not None:
            self._sent_at = now  # this wait is not one with the last worker, too
        return now

    async def _refuse_deadly(self, quarantine: Quarantine) -> None:
        """Raises GatewayError if it turns out that two workers died of the request."""
        since = self._runtime.clock()
        await asyncio.wait(self.deaths)
        self._waited(since)
        await quarantine.refuse_held(self._reply.request)

    def _may_have_died(self, error: GatewayError) -> bool:
        """Whether the attempt ended as it does when its worker dies of the request."""
        return looks_deadly(error) and (self._lane is None or not self._lane.produced)

    async def _attempt(self, worker: WorkerHandle, generation: int) -> GatewayError | None:
        """One attempt. Returns the error that ended a stream of which the client had seen something, else None; raises
        GatewayError for any other failure."""
        outgoing = self._outgoing
        op: Any = outgoing.op
        served, limit = outgoing.served, self._runtime.max_reply_bytes
        if outgoing.unmeasured:
            await self._measure(worker)
        if served.hedge_s is not None and isinstance(op, Embed):
            await self._hedge(worker, generation, served.hedge_s)
            return None
        request = outgoing.request if self._handed is None else await self._second(self._handed)
        exchange = await served.transport.send(request, worker.address, outgoing.deadlines)
        del request  # a stream outlasts the need for it
        if self._runtime.trace is not None:
            self._runtime.trace("worker answered", id=self._record.id, worker=worker.address, status=exchange.status)
        try:
            if exchange.status != 200 and outgoing.question is None:
                raise await fault_of(exchange, served, op)
            if op.stream:
                del op
                return await self._stream(exchange, worker, generation)
            body = await exchange.body(limit)
        finally:
            exchange.close()
        self._answered_at = self._runtime.clock()
        if served.hear is not None:
            served.hear(worker, exchange.headers)
        response = Response(exchange.status, exchange.headers, body)
        # The vectors of many inputs, or the logprobs of many tokens, come to megabytes.
        answer = await offload(self._whole, op, response) if is_large(body) else self._whole(op, response)
        await self._reply.respond(answer)
        return None

    async def _hedge(self, worker: WorkerHandle, generation: int, delay_s: float) -> None:
        """An attempt that asks a second worker, too, when the first one is late."""
        outgoing, record, runtime = self._outgoing, self._record, self._runtime
        served, op = outgoing.served, outgoing.op

        async def send(to: WorkerHandle) -> Response:
            return await whole_answer(outgoing, to, runtime.max_reply_bytes)

        def asked() -> None:
            record.attempts += 1

        def both_failed(other: WorkerHandle, error: GatewayError) -> None:
            self._beside.append((other, error))

        before, won = record.attempts, False
        try:
            found = await hedged(send, served.pool, worker, generation, delay_s, runtime.may_retry, asked, both_failed)
            won = found.won
        finally:  # whoever leaves had two workers, too
            if record.attempts > before:
                runtime.observer.hedged(record.model, won)
        self._answered_at = runtime.clock()
        if found.other is not None and won:
            record.worker, self._outrun = found.other.address, True
        response, large = found.response, is_large(found.response.body)
        answer = await offload(self._whole, op, response) if large else self._whole(op, response)
        await self._reply.respond(answer)

    async def _measure(self, worker: WorkerHandle) -> None:
        cut = await self._outgoing.measure(worker, self._runtime.max_reply_bytes)
        if cut:
            self._reply.name_dropped(cut)

    async def _second(self, handed: bytes) -> Request:
        outgoing, prefill = self._outgoing, self._outgoing.served.prefill
        assert prefill is not None
        second, plain = prefill.handover.second, outgoing.request
        request = await offload(second, plain, handed) if outgoing.large else second(plain, handed)
        # This worker may be sent the plain request after it, and must not see an id twice.
        own = b"x-request-id"
        request.headers = [(name, value + b"-d" if name == own else value) for name, value in request.headers]
        return request

    async def _stream(self, exchange: Exchange, worker: WorkerHandle, generation: int) -> GatewayError | None:
        lane = self._lane = self._new_lane()
        pump = Pump(exchange, lane, self._reply, self._outgoing.served.gaps)
        pump.on_done, pump.on_token = self._on_done, self.on_token
        if worker.half_open:
            pump.on_first = partial(self._outgoing.served.pool.answered, worker, generation)
        try:
            await pump.run()
        finally:
            if pump.first_output_at is not None and (lane.error is None or lane.produced):
                self._record.ttft_ms = milliseconds(pump.first_output_at - self._began)
                if self._trace is not None:
                    self._trace.first_output(self._runtime.clock() - pump.first_output_at)
        return lane.error

    def forget_prompt(self) -> bool:
        """Lets go of the prompt of a stream that has a first token: it is there several times, and a stream lasts long.
        What only the prompt tells is read from it before. False: it is still needed."""
        quarantine = self._runtime.quarantine
        if quarantine is not None and (quarantine.noted or quarantine.held):
            return False  # there a request is known by a hash of its body
        if self.prompt is None:
            self.prompt = self._runtime.estimate(self._outgoing.op)
        self._forgotten = True
        self._outgoing.forget()
        if self.first is not None:
            self.first = None
        if self._demand is not None:
            self._demand.forget_prompt()
        return True

    @property
    def lane_keeps_op(self) -> bool:
        return self._lane is not None and self._lane.keeps_op

    def _new_lane(self) -> Lane:
        op: Any = self._outgoing.op
        return lane_for(self._dialect, self._outgoing.served.backend, op, self._runtime.max_reply_bytes)

    def _whole(self, op: Any, response: Response) -> Response:
        """The client's reply, from the worker's."""
        dialect, backend, question = self._dialect, self._outgoing.served.backend, self._outgoing.question
        if question is not None:
            return dialect.write(question.read(response), op)
        passthrough = dialect.passthrough.get(backend.wire_of(op))
        if passthrough is not None:
            out, self._usage = passthrough.whole(response, op)
            if self._trace is not None and self._trace.id is not None:
                self._finishes = passthrough.finishes(out)
            return out
        reply = read_whole(backend, response, op)
        self._usage = reply.usage
        if isinstance(reply, Reply):
            self._finishes = [choice.reason for choice in reply.choices]
        return dialect.write(reply, op)

    @property
    def finishes(self) -> list[str]:
        """Why the choices of the reply ended, in the order of their indices; of a plain one only where it is traced."""
        lane = self._lane
        return self._finishes if lane is None else [reason for _, reason in sorted(lane.finishes.items())]

    def used(self) -> Usage | None:
        """The usage that the worker reported; else an estimate; None if it is unknown.

        A stream without a report used the output that was relayed. If its client left before the first token, it used
        its prompt only; if it failed before the first token, nothing. The usage of a plain reply that never came is
        unknown.
        """
        lane, record = self._lane, self._record
        usage = self._usage if lane is None else lane.usage
        if usage is None and record.stream and record.attempts:
            produced = 0 if lane is None else lane.produced
            failed = lane is None or lane.error is not None
            if produced or not failed or record.outcome == "cancelled":
                usage = Usage(None, produced, source="estimated")
        if usage is not None and usage.input is None:
            prompt = self._runtime.estimate(self._outgoing.op) if self.prompt is None else self.prompt
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
