"""From what the kernel and the fleet report to the log, the metrics and the stream of usage records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.auth import ANONYMOUS
from gateway.auth.last_used import LastUsed
from gateway.core.errors import Blame, GatewayError
from gateway.core.ports import RequestRecord
from gateway.fleet.waiting import Refusal
from gateway.observe.accounting import AccountingStream
from gateway.observe.ledger import Ledger
from gateway.observe.log import Log
from gateway.observe.metrics import Metrics

_MOST_FLAGS = 8
_NOBODY = ("", ANONYMOUS.key)


class FleetObserver:
    """Implements fleet.report.Report."""

    def __init__(self, log: Log, metrics: Metrics) -> None:
        self._metrics = metrics
        self.event = log.event
        self.masked = log.masked
        self.worker, self.worker_left = metrics.worker, metrics.worker_left

    def waits(self, model: str) -> Callable[[float], None]:
        return self._metrics.waits[model].add

    def refused(self, model: str, reason: Refusal) -> None:
        self._metrics.queue_refused.labels(model, reason).inc()

    def ejected(self, model: str, address: str) -> None:
        self._metrics.ejected.labels(model, address).inc()

    def stalled(self, model: str, address: str) -> None:
        self._metrics.stalls.labels(model, address).inc()


class Observer:
    """Implements core.ports.Observer."""

    def __init__(
        self, log: Log, metrics: Metrics, stream: AccountingStream | None = None, ledger: Ledger | None = None
    ) -> None:
        self._log = log
        self._metrics = metrics
        self._stream = stream
        self._ledger = ledger
        self.begun = metrics.begun

    def finished(self, record: RequestRecord) -> None:
        self._metrics.finished(record)
        self._log.request(record)
        # Skip what unknown callers were refused: there is nobody to bill, and strangers could push the records of
        # known callers out of the stream. With `auth: open` all are anonymous: what reached a model is recorded.
        if self._stream is not None and (record.model or record.key not in _NOBODY):
            self._stream.add(record)
        if self._ledger is not None and record.attempts:
            self._ledger.add(record)

    def retried(self, model: str, worker: str, error: GatewayError) -> None:
        self._metrics.retries.labels(model).inc()
        reason, code = error.why, error.code or error.kind.value
        self._log.event("warning", "retry", model=model, worker=worker, code=code, reason=reason and reason.value)

    def answered_with(self, record: RequestRecord, worker: str, error: GatewayError) -> None:
        self._log.rationed(
            "warning",
            "worker answered with an error",
            id=record.id,
            model=record.model,
            worker=worker,
            status=error.upstream,
            reason=None if error.why is None else error.why.value,
            text=None if error.detail is None else self._log.masked(error.detail),
        )

    def moved(self, model: str, reason: str) -> None:
        self._metrics.moved.labels(model, reason).inc()

    def continued(self, model: str, worker: str, reason: str) -> None:
        self._metrics.continued.labels(model, reason).inc()
        self._log.rationed("warning", "stream continued", model=model, worker=worker, reason=reason)

    def not_continued(self, model: str, reason: str) -> None:
        self._metrics.not_continued.labels(model, reason).inc()

    def tool_called(self, kind: str, error: str | None) -> None:
        self._metrics.tool_calls.labels(kind, error or "ok").inc()

    def guarded(self, guard: str, stage: str, result: str, seconds: float) -> None:
        self._metrics.guard_checks.labels(guard, stage, result).inc()
        self._metrics.guard_seconds[guard, stage].add(seconds)

    def hedged(self, model: str, won: bool) -> None:
        self._metrics.hedges.labels(model, "second" if won else "first").inc()

    def prefilled(self, model: str, worker: str | None, error: GatewayError | None) -> None:
        theirs = error is not None and error.blame is not Blame.CLIENT
        outcome = "handed" if error is None else "failed" if theirs else "refused"
        self._metrics.prefills.labels(model, outcome).inc()
        if error is not None and theirs:
            code = error.code or error.kind.value
            self._log.event("warning", "prefill failed", model=model, worker=worker, code=code)

    def misses(self, record: RequestRecord, flags: tuple[str, ...]) -> None:
        named = list(flags[:_MOST_FLAGS])
        self._log.rationed(
            "warning",
            "worker started without flags",
            id=record.id,
            model=record.model,
            worker=record.worker,
            flags=named,
        )

    def bug(self, record: RequestRecord, error: BaseException) -> None:
        self._metrics.bugs.inc()
        self._log.bug(record, error)


class KeysObserver(Observer):
    """One that also notes when each key was used last."""

    def __init__(self, used: LastUsed, *others: Any) -> None:
        super().__init__(*others)
        self._used = used

    def finished(self, record: RequestRecord) -> None:
        super().finished(record)
        self._used.note(record.key)
