"""Requests that are refused for want of room: counted by reason, and logged without a line for each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

from gateway.fleet.report import Report
from gateway.fleet.waiting import Refusal

_EVERY_S = 10.0


class Refusals:
    """The refusals of one configuration's queues. waiting: how many requests of a model wait now."""

    def __init__(self, report: Report, waiting: Callable[[str], int]) -> None:
        self._report = report
        self._waiting = waiting
        self._counts: dict[str, Counter[str]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def of(self, model: str) -> Callable[[Refusal], None]:
        """A function to call with the reason of each refusal of `model`."""
        return partial(self._refused, model)

    def _refused(self, model: str, reason: Refusal) -> None:
        self._report.refused(model, reason)
        if reason == "no_worker":  # the log has that the workers are down
            return
        self._counts.setdefault(model, Counter())[reason] += 1
        if model not in self._timers:
            self._log(model)

    def _log(self, model: str) -> None:
        """Logs the counts at the first refusal, and then every 10 s while there are more."""
        self._timers.pop(model, None)
        counts = self._counts.pop(model, None)
        if counts:
            self._report.event("warning", "queue refuses", model=model, waiting=self._waiting(model), **counts)
            self._timers[model] = asyncio.get_running_loop().call_later(_EVERY_S, self._log, model)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
