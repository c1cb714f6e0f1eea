"""One worker as the gateway sees it: where it is, whether it is ready, how busy we keep it."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.ports import UNKNOWN
from gateway.fleet.breaker import Breaker, BreakerPolicy


class Worker:
    """address is scheme://host:port[/base]. ready is what its last health probe said; in_flight counts our requests.
    draining: it finishes what it has and takes nothing new. facts is what it said of itself when it was asked.

    on_free holds whom to tell when it may have become free: the pools that it is in, more than one during a reload.
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
        """What a request notes when it begins, see `Breaker`."""
        return self.breaker.generation

    @property
    def half_open(self) -> bool:
        """It was ejected; the requests that go to it now find out whether it may return."""
        return self.breaker.ejected

    @property
    def serving(self) -> bool:
        """Ready, and here to stay."""
        return self.ready and not self.draining

    def open_to(self, now: float) -> bool:
        """Serving, not ejected, and below its limit."""
        return (
            self.ready
            and not self.draining
            and (self.max_in_flight is None or self.in_flight < self.max_in_flight)
            and self.breaker.allows(now)
        )
