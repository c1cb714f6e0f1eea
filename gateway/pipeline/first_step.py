"""The first of two steps, where prefill and decode are apart: a prefill worker computes the prompt, and says where the
worker that generates finds the result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.core.demand import Demand
from gateway.core.errors import GatewayError
from gateway.core.http import Request, Response
from gateway.core.ports import RequestRecord, RequestTrace, WorkerHandle
from gateway.pipeline.faults import fault_of
from gateway.pipeline.models import Prefill
from gateway.pipeline.offload import offload
from gateway.pipeline.outgoing import Outgoing
from gateway.pipeline.runtime import Runtime
from gateway.pipeline.timing import milliseconds

_MAX_REPLY_BYTES = 4 << 20

Measure = Callable[[WorkerHandle], Awaitable[None]]
"""Has a worker asked for the prompt's length, where that must be known before the request can be written."""


class FirstStep:
    """Of one request. `demand` is what it brings to the pick of the prefill worker.

    failed  the worker that failed, and how; None if none did

    Writes into the record: prefill, queue_ms, upstream_ms.
    """

    def __init__(
        self, prefill: Prefill, demand: Demand, runtime: Runtime, outgoing: Outgoing, record: RequestRecord
    ) -> None:
        self._prefill = prefill
        self._demand = demand
        self._runtime = runtime
        self._outgoing = outgoing
        self._record = record
        self.failed: tuple[WorkerHandle, GatewayError] | None = None

    async def run(self, priority: int, spans: RequestTrace | None, measure: Measure) -> bytes | None:
        """What the second request is to carry. None if the worker that generates has to compute the prompt itself: the
        step failed, or this request cannot be taken apart."""
        outgoing, runtime, record, pool = self._outgoing, self._runtime, self._record, self._prefill.pool
        least = self._prefill.min_tokens
        if least and runtime.estimate(outgoing.op) < least:
            return None
        request = None
        if not outgoing.unmeasured:
            request = await self._written()
            if request is None:
                return None
        clock = runtime.clock
        asked_at = clock()
        try:
            worker = await pool.acquire((), priority, self._demand)
        except GatewayError as error:
            error.release_frames()
            runtime.observer.prefilled(record.model, None, error)
            return None
        finally:
            sent_at = clock()
            record.queue_ms += milliseconds(sent_at - asked_at)
        generation = worker.generation
        failure: GatewayError | None = None
        try:
            if spans is not None:
                outgoing.carry(spans.sending(worker.address, 0))
            if request is None:
                await measure(worker)
                request = await self._written()
            handed = None if request is None else await self._ask(worker, request)
        except GatewayError as error:
            error.release_frames()
            failure, handed = error, None
            self.failed = worker, error
            pool.failed(worker, generation, error)
        except BaseException:
            pool.abandoned(worker, generation)
            raise
        else:
            pool.succeeded(worker, generation)
        finally:
            pool.release(worker, self._demand)
            record.upstream_ms += milliseconds(clock() - sent_at)
            if spans is not None:
                spans.attempt_ended(failure)
        if handed is not None:
            record.prefill = worker.address
        if handed is not None or failure is not None:
            runtime.observer.prefilled(record.model, worker.address, failure)
        return handed

    async def _written(self) -> Request | None:
        outgoing, first = self._outgoing, self._prefill.handover.first
        return await offload(first, outgoing.request) if outgoing.large else first(outgoing.request)

    async def _ask(self, worker: WorkerHandle, request: Request) -> bytes:
        """Has `worker` compute the prompt. Raises GatewayError."""
        served = self._outgoing.served
        request.headers = self._outgoing.request.headers  # the trace's are new
        exchange = await served.transport.send(request, worker.address, self._outgoing.deadlines)
        try:
            if exchange.status != 200:
                raise await fault_of(exchange, served)
            body = await exchange.body(_MAX_REPLY_BYTES)
        finally:
            exchange.close()
        return self._prefill.handover.handed(Response(exchange.status, exchange.headers, body))
