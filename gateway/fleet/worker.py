"""One worker as the gateway sees it: where it is, whether it is ready, how busy we keep it."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.ports import UNKNOWN
from gateway.fleet.breaker import Breaker, BreakerPolicy


class Worker:
    """One worker.

    address    scheme://host:port[/base]
    ready      the result of the last health probe
    in_flight  our requests that run on it
    draining   it finishes its requests and takes no new ones
    facts      what it answered when it was asked about itself
    on_free    callbacks for when it may have become free: its pools, more than one during a reload
    """

    __slots__ = (
        "address",
        "breaker",
        "draining",
        "facts",
        "in_flight",
        "max_in_flight",
        "missed_probes",
        "on_free",
        "probed",
        "ready",
        "turn",
    )

    def __init__(self, address: str, policy: BreakerPolicy, max_in_flight: int | None) -> None:
        self.address = address
        self.breaker = Breaker(policy)
        self.max_in_flight = max_in_flight
        self.in_flight = 0
        self.ready = False
        self.draining = False
        self.facts = UNKNOWN
        self.missed_probes = 0
        self.probed = False
        self.turn = 0
        self.on_free: list[Callable[[], None]] = []

    def freed(self) -> None:
        for hear in self.on_free:
            hear()

    @property
    def generation(self) -> int:
        """What a request notes when it begins. See `Breaker`."""
        return self.breaker.generation

    @property
    def half_open(self) -> bool:
        """Whether it is ejected. Requests that go to it now are trials."""
        return self.breaker.ejected

    @property
    def serving(self) -> bool:
        """Ready and not draining."""
        return self.ready and not self.draining

    def open_to(self, now: float) -> bool:
        """Serving, not ejected, and below its limit."""
        return (
            self.ready
            and not self.draining
            and (self.max_in_flight is None or self.in_flight < self.max_in_flight)
            and self.breaker.allows(now)
        )
