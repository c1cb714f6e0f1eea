"""Watchers: what looks at the steps of requests without being one of them (traces, quarantine, copies, explanations).

A feature that only looks on is a `Watcher`, made for each request by a `MakeWatcher`; `gateway.app` lists the makers of
one configuration (`Runtime.watchers`, `ServedModel.watchers`). While a feature is off it is not in the list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.core.errors import GatewayError
from gateway.core.http import Headers

if TYPE_CHECKING:
    from gateway.pipeline.call import Call
    from gateway.pipeline.visit import Visit


class Watcher:
    """Looks at one request. The methods stand in the order of the steps; each does nothing unless it is overridden."""

    @property
    def keeps_prompt(self) -> bool:
        """True while the watcher needs the request's body: then a stream keeps the body after its first token."""
        return False

    def asked(self) -> None:
        """The request was read, and its model found. Called again for each other model that is asked."""

    async def before_worker(self) -> None:
        """A worker will be picked. Raises GatewayError to end the request."""

    def waiting(self) -> None:
        """The wait for a worker begins."""

    def visiting(self, visit: Visit) -> None:
        """A worker was picked, and will be sent the request."""

    def responded(self, visit: Visit, status: int) -> None:
        """The head of the worker's response is there."""

    def first_output(self, ago_s: float) -> None:
        """The first output of a stream came `ago_s` seconds ago."""

    def left(self, visit: Visit, error: GatewayError | None) -> None:
        """A visit is over. error is what ended it, None for a whole reply and for a cancelled request."""

    def failed(self, visit: Visit, error: GatewayError, again: bool) -> None:
        """An attempt failed. again: another worker will be tried."""

    async def answered(self) -> None:
        """A worker's whole reply was passed on."""

    def headers(self) -> Headers:
        """Headers for the reply's head."""
        return []

    def closed(self) -> None:
        """The request is over, and its record complete. Called once, on every exit."""


MakeWatcher = Callable[["Call"], Watcher | None]
"""Makes the watcher of a request; None if the request needs none."""
