"""The interface for the events and figures of the workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gateway.fleet.waiting import Refusal


class Report(Protocol):
    """The log and the metrics, as the fleet uses them; `gateway.app.observer` implements it."""

    def event(self, level: str, message: str, **fields: Any) -> None:
        """Logs an event."""

    def masked(self, text: str) -> str:
        """`text`, which a worker wrote, with keys masked."""

    def worker(self, model: str, address: str, ready: bool) -> None:
        """Shows whether a worker is ready."""

    def worker_left(self, model: str, address: str) -> None: ...
    def ejected(self, model: str, address: str) -> None: ...
    def stalled(self, model: str, address: str) -> None: ...
    def refused(self, model: str, reason: Refusal) -> None: ...
    def waits(self, model: str) -> Callable[[float], None]:
        """Returns a function that takes the seconds that each request waited for a worker."""
