"""A cap on retries, so that a failing fleet is not asked many times over (Finagle's and Envoy's retry budgets)."""

from __future__ import annotations

from collections.abc import Callable


class RetryBudget:
    """Retries may be `share` of the requests, or `min_per_second` where those are too few for that, whichever is more.

    What is not used is kept, up to `BURST`: enough for one worker's breaker to open while the others answer.
    """

    BURST = 10.0

    def __init__(self, share: float, min_per_second: float, clock: Callable[[], float]) -> None:
        self._share = share
        self._rate = min_per_second
        self._clock = clock
        self._kept = self.BURST if share or min_per_second else 0.0
        self._earned = 0.0
        self._since = clock()

    def earn(self) -> None:
        """Notes a request."""
        self._earned += self._share

    def spend(self) -> bool:
        """Whether one more retry may be made now."""
        now = self._clock()
        self._kept = min(self.BURST, self._kept + max(self._earned, (now - self._since) * self._rate))
        self._earned, self._since = 0.0, now
        if self._kept < 1.0:
            return False
        self._kept -= 1.0
        return True
