"""A cap on retries, so that a failing fleet is not asked many times over (Finagle's and Envoy's retry budgets)."""

from __future__ import annotations

from collections.abc import Callable


class RetryBudget:
    """Each request earns `share` of a retry; besides, `min_per_second` are free. Unused ones are kept for 10 s."""

    _KEPT_S = 10.0

    def __init__(self, share: float, min_per_second: float, clock: Callable[[], float]) -> None:
        self._share = share
        self._rate = min_per_second
        self._clock = clock
        self._earned = 0.0
        self._free = min_per_second
        self._at = clock()

    def earn(self) -> None:
        self._earned = min(self._earned + self._share, 100.0)

    def spend(self) -> bool:
        """Whether one more retry may be made now."""
        now = self._clock()
        elapsed, self._at = now - self._at, now
        self._free = min(self._free + elapsed * self._rate, self._rate)
        self._earned *= max(0.0, 1.0 - elapsed / self._KEPT_S)
        if self._earned >= 1.0:
            self._earned -= 1.0
            return True
        if self._free >= 1.0:
            self._free -= 1.0
            return True
        return False
