"""Two steps for one request, if prefill and decode are apart: a prefill worker computes the prompt, and returns where
the worker that generates finds the result."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from gateway.core.errors import Blame, GatewayError
from gateway.core.http import Request
from gateway.core.ports import Handover, Pool
from gateway.features import Built, OneModel, Parts
from gateway.kernel.attempts import measure
from gateway.kernel.call import Call
from gateway.kernel.feature import Attempt, Feature, Step
from gateway.kernel.visit import Visit
from gateway.offload import run_step

_MAX_REPLY_BYTES = 4 << 20


class Prefill(Feature):
    """The first attempt carries what the prefill worker handed over. If that fails, or cannot be had, the worker that
    generates computes the prompt. Writes into the record: prefill.

    pool        of the workers that compute prompts
    min_tokens  shorter prompts, by estimate, are not for them

    A call's notes have the data that was handed over, until it is used.
    """

    def __init__(self, pool: Pool, handover: Handover, min_tokens: int) -> None:
        self._pool = pool
        self._handover = handover
        self._min_tokens = min_tokens

    def for_adapter(self, pools: Sequence[Any]) -> Prefill:
        return Prefill(pools[1], self._handover, self._min_tokens)

    def in_background(self) -> None:
        """Others need the workers that compute prompts."""

    def around_workers(self, inner: Step) -> Step:
        def workers(call: Call) -> Awaitable[None]:
            generates = call.op is not None and call.op.generates
            return in_two_steps(call) if generates else inner(call)

        async def in_two_steps(call: Call) -> None:
            call.stage = "visiting"
            call.notes[self] = await self._compute(call)
            await inner(call)

        return workers

    def around_attempt(self, inner: Attempt) -> Attempt:
        def attempt(call: Call, visit: Visit) -> Awaitable[None]:
            handed = None if visit.work is not None else call.notes.get(self)
            if handed is not None:
                return second(call, visit, handed)
            if visit.work is None:
                call.record.prefill = None  # this worker computes the prompt
            return inner(call, visit)

        async def second(call: Call, visit: Visit, handed: bytes) -> None:
            call.notes[self] = None  # it is used once
            if call.outgoing.unmeasured:
                await measure(call, visit)
            visit.request = await self._second(call, handed)
            try:
                await inner(call, visit)
            except GatewayError as error:
                if error.upstream is not None and error.blame is Blame.WORKER:
                    visit.abandoned()  # what was handed over may be at fault: this worker may be tried again
                raise

        return attempt

    async def _second(self, call: Call, handed: bytes) -> Request:
        request = await run_step(call.share, self._handover.second, call.outgoing.request, handed)
        # This worker may be sent the plain request after it, and must not see an id twice.
        own = b"x-request-id"
        request.headers = [(name, value + b"-d" if name == own else value) for name, value in request.headers]
        return request

    async def _compute(self, call: Call) -> bytes | None:
        """The data that the second request has to carry. None if the worker that generates has to compute the prompt
        itself: the step failed, or this request cannot be taken apart. Raises the GatewayError after which no other
        worker may be asked."""
        outgoing, runtime, record = call.outgoing, call.runtime, call.record
        if self._min_tokens and (call.prompt or runtime.estimate(call.asked)) < self._min_tokens:
            return None
        request: Request | None = None
        if not outgoing.unmeasured:
            request = await run_step(call.share, self._handover.first, outgoing.request)
            if request is None:
                return None
        routing = await run_step(call.share, self._pool.routing, call.asked, call.request.headers)
        routing.take_over(call.routing)
        began = runtime.clock()
        try:
            worker = await self._pool.acquire((), call.principal.priority, routing)
        except GatewayError as error:
            error.release_frames()
            runtime.observer.prefilled(record.model, None, error)
            return None
        finally:
            call.waited(began)
        handed: bytes | None = None

        async def prepare(call: Call, visit: Visit) -> None:
            nonlocal request, handed
            call.confirm(call.served)
            if request is None:
                await measure(call, visit)
                request = await run_step(call.share, self._handover.first, outgoing.request)
            if request is not None:
                request.headers = outgoing.request.headers  # the trace's are new
                response = await visit.ask(request, outgoing.deadlines, _MAX_REPLY_BYTES, call.fault)
                request = None
                handed = self._handover.handed(response)

        failure: GatewayError | None = None
        try:
            with Visit(self._pool, worker, routing, call.served.transport, call, prepare) as visit:
                await call.way.attempt(call, visit)
        except GatewayError as error:
            error.release_frames()
            failure = error
        if handed is not None:
            record.prefill = worker.address
        if handed is not None or failure is not None:
            runtime.observer.prefilled(record.model, worker.address, failure)
        if failure is not None and failure.final:
            raise failure
        return handed


def build(parts: Parts) -> Built:
    return Built(of_model=_of_model)


def _of_model(model: OneModel) -> Prefill | None:
    options = model.options.prefill
    if options is None or model.prefill is None:
        return None
    assert model.backend.handover is not None  # the configuration was checked
    return Prefill(model.prefill, model.backend.handover, options.min_tokens)
