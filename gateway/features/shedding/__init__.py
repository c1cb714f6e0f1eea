"""Refusing requests while this process itself cannot keep up: the lowest priorities first."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from gateway.core.errors import GatewayError, Kind
from gateway.features import Built, Parts
from gateway.kernel.call import Call
from gateway.kernel.feature import Feature, Step

_READINGS = 5
_UP, _DOWN = 0.1, 0.05
_READINGS_PER_S = 10.0
# Some requests of the highest priority are always served.
_MOST_OF_THE_LAST = 0.9
_LONGEST_S = 60.0


class Shedding(Feature):
    """Sheds load by how late the event loop is.

    pressure  how many of the priorities in use are refused, the lowest first; a fraction is that share of the next. It
              rises by a tenth with each reading while the last five are all above the bound, and falls by half of that
              with each that is below half of it

    on_change is called with whether requests are refused, when that changes; on_refuse for each.
    """

    def __init__(self, on_change: Callable[[bool], None], on_refuse: Callable[[], None]) -> None:
        self.pressure = 0.0
        self._on_change = on_change
        self._on_refuse = on_refuse
        self.limit_s = 0.0
        self.priorities: list[int] = [0]
        self._carried = [0.0]
        self._lately: deque[float] = deque(maxlen=_READINGS)

    def configure(self, limit_s: float, priorities: Iterable[int]) -> None:
        """limit_s: how late the loop may be, 0 for no bound. priorities: those that requests may have."""
        self.limit_s = limit_s
        self.priorities = sorted(set(priorities)) or [0]
        self._carried = [0.0] * len(self.priorities)
        self.press(min(self.pressure, self._most) if limit_s else 0.0)

    @property
    def _most(self) -> float:
        return len(self.priorities) - 1 + _MOST_OF_THE_LAST

    def late(self, seconds: float) -> None:
        """One of ten readings a second: the loop came so late to a timer."""
        self._lately.append(seconds)
        if not self.limit_s:
            return
        if len(self._lately) == _READINGS and min(self._lately) > self.limit_s:
            self.press(min(self._most, self.pressure + _UP))
        elif self.pressure and seconds < self.limit_s / 2:
            self.press(max(0.0, self.pressure - _DOWN))

    def press(self, pressure: float) -> None:
        """Sets `pressure`."""
        before, self.pressure = self.pressure, pressure
        if (before > 0) != (pressure > 0):
            self._on_change(pressure > 0)

    def around_receive(self, inner: Step) -> Step:
        def receive(call: Call) -> Awaitable[None]:
            if self.pressure and call.route is not None and not call.route.open:
                self.check(call.pending.principal.priority)
            return inner(call)

        return receive

    def check(self, priority: int) -> None:
        """Call this while there is `pressure`. Raises GatewayError(OVERLOADED) for a request that must be refused."""
        index = min(bisect_left(self.priorities, priority), len(self.priorities) - 1)
        share = self.pressure - index
        if share <= 0:
            return
        if share < 1:
            self._carried[index] += share
            if self._carried[index] < 1:
                return
            self._carried[index] -= 1
        self._on_refuse()
        again_s = min(_LONGEST_S, max(1.0, share / (_DOWN * _READINGS_PER_S)))
        raise GatewayError(Kind.OVERLOADED, "the gateway is overloaded", code="gateway_overloaded", retry_after=again_s)


def build(parts: Parts) -> Built:
    log = parts.log

    def changed(begins: bool) -> None:
        log.event("warning" if begins else "info", "shedding" if begins else "shedding over")

    shedding: Shedding = parts.earlier_services.get("shedding") or Shedding(
        changed, parts.metrics.shed.labels("lag").inc
    )
    parts.offers.loop_lag = shedding.late
    parts.offers.prioritized = partial(shedding.configure, parts.config.listen.shed_lag_s)
    return Built((shedding,), service=shedding)
