"""The base of pick policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.candidates import Candidates
from gateway.fleet.worker import Worker


class PickPolicy:
    """Chooses among the open workers of one model. One that remembers what it sent overrides `sent` and `keep`.

    name     as in configuration
    needs    the facts that it needs about a request: "", none; "tokens", its length; "prompt", also its prefixes
    """

    name: str
    needs: Literal["", "tokens", "prompt"] = ""

    def pick(self, candidates: Candidates, now: float, routing: RoutingFacts) -> Worker | None:
        """Chooses one of the candidates that is still open; None if there is none. It is given the request. Sets
        `routing.why` and `routing.matched`."""
        raise NotImplementedError

    def sent(self, worker: Worker, routing: RoutingFacts) -> None:
        """The request is sent to `worker` now."""

    def keep(self, workers: Sequence[Worker]) -> None:
        """`workers` are the model's workers from now on."""
