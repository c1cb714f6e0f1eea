"""Two steps for one request, if prefill and decode are apart: a prefill worker computes the prompt, and returns where
the worker that generates finds the result."""

from __future__ import annotations

from gateway.core.errors import Blame, GatewayError
from gateway.core.http import Request
from gateway.core.ports import Handover
from gateway.pipeline.attempts import Attempts, measure
from gateway.pipeline.call import Call
from gateway.pipeline.models import PrefillWorkers
from gateway.pipeline.offload import run_step
from gateway.pipeline.visit import Visit

_MAX_REPLY_BYTES = 4 << 20


class PrefillAttempts(Attempts):
    """The first attempt carries what the prefill worker handed over. If that fails, or cannot be had, the worker that
    generates computes the prompt. Writes into the record: prefill."""

    # The data that the prefill worker handed over. It is used once.
    _handed: bytes | None = None

    async def run(self) -> None:
        call = self._call
        for before in call.watchers.before_worker:
            if (known := before(call)) is not None:
                await known
        call.stage = "visiting"
        prefill = call.served.prefill
        assert prefill is not None  # `strategies.attempts_for` chose this class by it
        self._handed = await compute_prompt(call, prefill)
        await super().run()

    async def _attempt(self, visit: Visit) -> None:
        handed, self._handed = self._handed, None
        if handed is None:
            await super()._attempt(visit)
            return
        call, prefill = self._call, self._call.served.prefill
        assert prefill is not None
        if call.outgoing.unmeasured:
            await measure(call, visit)
        try:
            await self._exchange(visit, await self._second(prefill.handover, handed))
        except GatewayError as error:
            if error.upstream is not None and error.blame is Blame.WORKER:
                visit.abandoned()  # what was handed over may be at fault: this worker may be tried again
            raise

    async def _second(self, handover: Handover, handed: bytes) -> Request:
        outgoing = self._call.outgoing
        request = await run_step(self._call.share, handover.second, outgoing.request, handed)
        # This worker may be sent the plain request after it, and must not see an id twice.
        own = b"x-request-id"
        request.headers = [(name, value + b"-d" if name == own else value) for name, value in request.headers]
        outgoing.handed_on = request
        return request


async def compute_prompt(call: Call, prefill: PrefillWorkers) -> bytes | None:
    """The data that the second request has to carry. None if the worker that generates has to compute the prompt
    itself: the step failed, or this request cannot be taken apart."""
    outgoing, runtime, record, pool = call.outgoing, call.runtime, call.record, prefill.pool
    if prefill.min_tokens and (call.prompt or runtime.estimate(call.asked)) < prefill.min_tokens:
        return None
    request = None
    if not outgoing.unmeasured:
        request = await run_step(call.share, prefill.handover.first, outgoing.request)
        if request is None:
            return None
    routing = await run_step(call.share, pool.routing, call.asked, call.reply.request.headers)
    routing.take_over(call.routing)
    began = runtime.clock()
    try:
        worker = await pool.acquire((), call.principal.priority, routing)
    except GatewayError as error:
        error.release_frames()
        runtime.observer.prefilled(record.model, None, error)
        return None
    finally:
        call.waited(began)
    failure: GatewayError | None = None
    handed: bytes | None = None
    try:
        with Visit(pool, worker, routing, call.served.transport, call, prefill=True) as visit:
            call.confirm()
            if request is None:
                await measure(call, visit)
                request = await run_step(call.share, prefill.handover.first, outgoing.request)
            if request is not None:
                request.headers = outgoing.request.headers  # the trace's are new
                fault = call.served.backend.fault
                response = await visit.ask(request, outgoing.deadlines, _MAX_REPLY_BYTES, fault)
                handed = prefill.handover.handed(response)
    except GatewayError as error:
        error.release_frames()
        failure = error
    if handed is not None:
        record.prefill = worker.address
    if handed is not None or failure is not None:
        runtime.observer.prefilled(record.model, worker.address, failure)
    return handed
