"""Watchers for operators: spans, the log at level debug, and headers that explain how a request came to its worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.core.errors import GatewayError
from gateway.core.http import header_value
from gateway.core.ports import RequestTrace, Tracer
from gateway.pipeline.call import Call
from gateway.pipeline.moving import reason_of
from gateway.pipeline.visit import Visit
from gateway.pipeline.watch import Watcher

EXPLAIN = b"x-dragoman-explain"
"""Header by which a client asks how its request came to its worker, whatever its value."""


class Spans(Watcher):
    """The spans of requests. Each attempt has a trace context of its own, instead of the client's. `route_of` returns
    the template of a path, or ""."""

    def __init__(self, tracer: Tracer, route_of: Callable[[str], str]) -> None:
        self._tracer = tracer
        self._route_of = route_of

    def begun(self, call: Call) -> None:
        route = self._route_of(call.scope["path"])
        trace = call.notes[self] = self._tracer.begin(call.context, call.scope["method"], route)
        call.record.trace = trace.id
        call.context = []

    def _of(self, call: Call) -> RequestTrace:
        trace: RequestTrace = call.notes[self]
        return trace

    def guarded(self, call: Call, guard: str, stage: str, result: str, seconds: float) -> None:
        self._of(call).guarded(guard, stage, result, seconds)

    def waiting(self, call: Call) -> None:
        self._of(call).waiting()

    def visiting(self, call: Call, visit: Visit) -> None:
        attempt = 0 if visit.prefill else call.record.attempts
        call.outgoing.carry(self._of(call).sending(visit.worker.address, attempt))

    def first_output(self, call: Call, ago_s: float) -> None:
        self._of(call).first_output(ago_s)

    def left(self, call: Call, visit: Visit, error: GatewayError | None) -> None:
        self._of(call).attempt_ended(error)

    def failed(self, call: Call, visit: Visit, error: GatewayError, again: bool) -> None:
        if again:
            step = "continued" if call.continuation is not None else "moved" if visit.moving is not None else "retried"
            self._of(call).went_on(step, reason_of(error))

    def closed(self, call: Call) -> None:
        lane = call.lane
        finishes: Sequence[str] = call.finishes
        if lane is not None:
            finishes = [reason for _, reason in sorted(lane.finishes.items())]
        self._of(call).finished(call.record, finishes)


class EventLog(Protocol):
    def __call__(self, event: str, /, **fields: object) -> None:
        """Logs `event` with these members."""


class DebugLog(Watcher):
    """Logs each step."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def asked(self, call: Call) -> None:
        record = call.record
        self._log("request read", id=record.id, operation=record.operation, model=record.model, stream=record.stream)

    def guarded(self, call: Call, guard: str, stage: str, result: str, seconds: float) -> None:
        ms = round(seconds * 1000, 3)
        self._log("guard asked", id=call.record.id, guard=guard, stage=stage, result=result, ms=ms)

    def visiting(self, call: Call, visit: Visit) -> None:
        record = call.record
        if not visit.prefill:
            self._log(
                "worker chosen",
                id=record.id,
                model=record.model,
                worker=visit.worker.address,
                attempt=record.attempts,
                half_open=visit.worker.half_open,
                ms=round((call.runtime.clock() - call.began) * 1000, 3),
            )

    def responded(self, call: Call, visit: Visit, status: int) -> None:
        self._log("worker answered", id=call.record.id, worker=visit.worker.address, status=status)

    def failed(self, call: Call, visit: Visit, error: GatewayError, again: bool) -> None:
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


class Explain(Watcher):
    """Names worker, attempts, wait and reason in the headers of replies: of all, or of those whose request has the
    header `EXPLAIN`."""

    def __init__(self, always: bool) -> None:
        self._always = always

    def begun(self, call: Call) -> None:
        reply = call.reply
        if self._always or header_value(reply.request.headers, EXPLAIN) is not None:
            reply.explain_by(call.explain)
