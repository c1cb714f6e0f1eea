"""A cap on retries, so that a failing fleet is not asked many times over (Finagle's and Envoy's retry budgets)."""

from __future__ import annotations

from collections.abc import Callable


class RetryBudget:
    """Retries may be `share` of the requests, or `min_per_second` where those are too few for that, whichever is more.

    What is not used is kept, up to `BURST`: enough for one worker's breaker to open while the others answer. Both are
    saved apart and spent together: what one pays is not the other's to pay again.
    """

    BURST = 10.0

    def __init__(self, share: float, min_per_second: float, clock: Callable[[], float]) -> None:
        self._share = share
        self._rate = min_per_second
        self._clock = clock
        self._by_share = self.BURST if share else 0.0
        self._by_time = self.BURST if min_per_second else 0.0
        self._earned = 0.0
        self._since = clock()

    def earn(self) -> None:
        """Notes a request."""
        self._earned += self._share

    @property
    def left(self) -> float:
        """Retries that may be made now; below 1 none is."""
        self._save()
        return max(self._by_share, self._by_time)

    def spend(self) -> bool:
        """Whether one more retry may be made now."""
        self._save()
        if self._by_share < 1.0 and self._by_time < 1.0:
            return False
        self._by_share = max(0.0, self._by_share - 1.0)
        self._by_time = max(0.0, self._by_time - 1.0)
        return True

    def _save(self) -> None:
        now = self._clock()
        self._by_share = min(self.BURST, self._by_share + self._earned)
        self._by_time = min(self.BURST, self._by_time + (now - self._since) * self._rate)
        self._earned, self._since = 0.0, now
