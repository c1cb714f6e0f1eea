"""Steps of requests for operators: spans, the log at level debug, and headers that explain how a request came to its
worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from gateway.core.errors import GatewayError
from gateway.core.http import Headers
from gateway.core.moves import reason_of
from gateway.core.ports import RequestTrace, Tracer
from gateway.features import Built, Parts
from gateway.kernel.call import Call
from gateway.kernel.feature import Attempt, CallObserver, Failure, Feature, Step
from gateway.kernel.visit import Visit
from gateway.observe.tracing import tracer_of

EXPLAIN = b"x-dragoman-explain"
"""Header by which a client asks how its request came to its worker, whatever its value."""


class Spans(Feature):
    """The spans of requests. Each attempt has a trace context of its own, instead of the client's. `route_of` returns
    the template of a path, or "".

    A call's notes have its trace."""

    def __init__(self, tracer: Tracer, route_of: Callable[[str], str]) -> None:
        self._tracer = tracer
        self._route_of = route_of

    def around_request(self, inner: Step) -> Step:
        async def request(call: Call) -> None:
            route = self._route_of(call.scope["path"])
            call.notes[self] = trace = self._tracer.begin(call.context, call.scope["method"], route)
            call.record.trace = trace.id
            call.observers += (_Steps(trace),)
            call.context = []
            try:
                await inner(call)
            finally:
                lane, finishes = call.lane, call.finishes
                if lane is not None:
                    finishes = [reason for _, reason in sorted(lane.finishes.items())]
                trace.finished(call.record, finishes)

        return request

    def around_attempt(self, inner: Attempt) -> Attempt:
        async def attempt(call: Call, visit: Visit) -> None:
            trace = self.trace_of(call)
            number = 0 if visit.work is not None else call.record.attempts
            call.outgoing.carry(trace.sending(visit.worker.address, number))
            error: GatewayError | None = None
            try:
                await inner(call, visit)
            except GatewayError as failure:
                error = failure
                raise
            except BaseException:
                error = visit.moving
                raise
            finally:
                if visit.first_output_at is not None:
                    trace.first_output(call.runtime.clock() - visit.first_output_at)
                trace.attempt_ended(error)
                error = None

        return attempt

    def around_failure(self, inner: Failure) -> Failure:
        async def failure(call: Call, visit: Visit, error: GatewayError) -> bool:
            again = await inner(call, visit, error)
            if again:
                goes_on = "moved" if visit.moving is not None else "retried"
                self.trace_of(call).went_on("continued" if call.reply.committed else goes_on, reason_of(error))
            return again

        return failure

    def trace_of(self, call: Call) -> RequestTrace:
        trace: RequestTrace = call.notes[self]
        return trace


class _Steps(CallObserver):
    """Has the spans of one request begin."""

    def __init__(self, trace: RequestTrace) -> None:
        self._trace = trace

    def waiting(self) -> None:
        self._trace.waiting()

    def guarded(self, guard: str, stage: str, result: str, seconds: float) -> None:
        self._trace.guarded(guard, stage, result, seconds)


class EventLog(Protocol):
    def __call__(self, event: str, /, **fields: object) -> None:
        """Logs `event` with these members."""


class DebugLog(Feature):
    """Logs that a request was read, and each worker that is chosen, answers or fails."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def around_request(self, inner: Step) -> Step:
        def request(call: Call) -> Awaitable[None]:
            call.observers += (_LoggedSteps(self._log, call.record.id),)
            return inner(call)

        return request

    def around_read(self, inner: Step) -> Step:
        async def read(call: Call) -> None:
            await inner(call)
            if call.op is not None:
                record, model = call.record, call.served.name
                about: dict[str, Any] = {"operation": record.operation, "model": model, "stream": record.stream}
                self._log("request read", id=record.id, **about)

        return read

    def around_attempt(self, inner: Attempt) -> Attempt:
        def attempt(call: Call, visit: Visit) -> Awaitable[None]:
            record, worker = call.record, visit.worker
            if visit.work is None:
                self._log(
                    "worker chosen",
                    id=record.id,
                    model=record.model,
                    worker=worker.address,
                    attempt=record.attempts,
                    half_open=worker.half_open,
                    after_ms=round((call.runtime.clock() - call.began) * 1000, 3),
                )
            return inner(call, visit)

        return attempt

    def around_failure(self, inner: Failure) -> Failure:
        async def failure(call: Call, visit: Visit, error: GatewayError) -> bool:
            again = False
            try:
                again = await inner(call, visit, error)
            finally:
                record = call.record
                self._log(
                    "attempt failed",
                    id=record.id,
                    model=record.model,
                    worker=visit.worker.address,
                    attempt=record.attempts,
                    code=error.code or error.kind.value,
                    blame=error.blame.value,
                    upstream=error.upstream,
                    again=again,
                )
            return again

        return failure


class _LoggedSteps(CallObserver):
    def __init__(self, log: EventLog, id: str) -> None:
        self._log = log
        self._id = id

    def responded(self, worker: str, status: int) -> None:
        self._log("worker answered", id=self._id, worker=worker, status=status)

    def guarded(self, guard: str, stage: str, result: str, seconds: float) -> None:
        took = round(seconds * 1000, 3)
        self._log("guard asked", id=self._id, guard=guard, stage=stage, result=result, duration_ms=took)


class Explain(Feature):
    """Names worker, attempts, wait and reason in the headers of replies: of all, or of those whose request has the
    header `EXPLAIN`."""

    def __init__(self, always: bool) -> None:
        self._always = always
        self.headers = self._explain

    def _explain(self, call: Call) -> Headers:
        return call.explain() if self._always or EXPLAIN in call.request.head.names else []


def build(parts: Parts) -> Built:
    config = parts.config
    tracer = tracer_of(config.tracing, parts.earlier_services.get("tracing"))
    layers: list[Feature] = []
    if tracer is not None:
        spans = Spans(tracer, parts.routes())
        layers.append(spans)
        parts.offers.trace_of = spans.trace_of
    if config.routing.explain != "never":
        layers.append(Explain(config.routing.explain == "always"))
    debug = config.log.level == "debug"
    steps = {"steps": DebugLog(partial(parts.log.event, "debug"))} if debug else {}
    return Built(tuple(layers), steps, service=tracer)
