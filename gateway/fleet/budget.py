"""A retry budget, so that retries do not multiply the load on a failing fleet (as in Finagle and Envoy)."""

from __future__ import annotations

from collections.abc import Callable


class RetryBudget:
    """Allows retries up to `share` of the requests or `min_per_second`, whichever is more.

    Unused allowance is kept, up to `BURST`: enough for one worker's breaker to open while the others answer. The two
    allowances are saved separately and spent together: each retry is taken from both.
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
        """Counts a request."""
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
