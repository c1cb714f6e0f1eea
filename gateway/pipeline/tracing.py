"""Watchers for operators: spans, the log at level debug, and headers that explain how a request came to its worker."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.errors import GatewayError
from gateway.core.http import Headers, header_value
from gateway.core.ports import RequestTrace, Tracer
from gateway.pipeline.call import Call
from gateway.pipeline.visit import Visit
from gateway.pipeline.watch import MakeWatcher, Watcher

EXPLAIN = b"x-dragoman-explain"
"""Header by which a client asks how its request came to its worker, whatever its value."""


def spans(tracer: Tracer) -> MakeWatcher:
    """The spans of a request. Each attempt has a trace context of its own, instead of the client's."""

    def make(call: Call) -> Watcher:
        trace = tracer.begin(call.context)
        call.record.trace = trace.id
        call.context = []
        return _Spans(call, trace)

    return make


class _Spans(Watcher):
    def __init__(self, call: Call, trace: RequestTrace) -> None:
        self._call = call
        self._trace = trace

    def waiting(self) -> None:
        self._trace.waiting()

    def visiting(self, visit: Visit) -> None:
        call = self._call
        call.outgoing.carry(self._trace.sending(visit.worker.address, 0 if visit.prefill else call.record.attempts))

    def first_output(self, ago_s: float) -> None:
        self._trace.first_output(ago_s)

    def left(self, visit: Visit, error: GatewayError | None) -> None:
        self._trace.attempt_ended(error)

    def closed(self) -> None:
        self._trace.finished(self._call.record)


def debug(log: Callable[..., None]) -> MakeWatcher:
    """Events of each step, by `log(event, **fields)`."""
    return lambda call: _Debug(call, log)


class _Debug(Watcher):
    def __init__(self, call: Call, log: Callable[..., None]) -> None:
        self._call = call
        self._log = log

    def asked(self) -> None:
        record = self._call.record
        self._log("request read", id=record.id, operation=record.operation, model=record.model, stream=record.stream)

    def visiting(self, visit: Visit) -> None:
        call, record = self._call, self._call.record
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

    def responded(self, visit: Visit, status: int) -> None:
        self._log("worker answered", id=self._call.record.id, worker=visit.worker.address, status=status)

    def failed(self, visit: Visit, error: GatewayError, again: bool) -> None:
        record = self._call.record
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


def explain_always(call: Call) -> Watcher:
    """Names worker, attempts, wait and reason in the headers of each reply."""
    return _Explain(call)


def explain_asked(call: Call) -> Watcher | None:
    """As `explain_always`, for requests with the header `EXPLAIN`."""
    return None if header_value(call.reply.request.headers, EXPLAIN) is None else _Explain(call)


class _Explain(Watcher):
    def __init__(self, call: Call) -> None:
        self._call = call

    def headers(self) -> Headers:
        return self._call.explain()
