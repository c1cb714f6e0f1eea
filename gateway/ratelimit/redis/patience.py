"""The time that a call to the store may take before its requests are decided without the store."""

from __future__ import annotations

REMEMBERED_S = 5.0
"""A round trip counts for this long at least, and for twice as long at most."""
MOST = 10.0


class Patience:
    """`seconds` is `least`, or twice the slowest round trip of the last 5 to 10 seconds if that is longer, but at most
    ten times `least`. So a server that is always 30 ms away, or on a busy machine, does not count as down."""

    def __init__(self, least: float) -> None:
        self.seconds = least
        self.least = least
        self.most = MOST * least
        self._slowest = 0.0
        self._before = 0.0
        self._until = 0.0

    def took(self, seconds: float, now: float) -> None:
        """A call was answered after `seconds`; `now` is monotonic."""
        if now >= self._until:
            # After two periods without calls, older measurements do not count.
            self._before = self._slowest if now < self._until + REMEMBERED_S else 0.0
            self._slowest, self._until = 0.0, now + REMEMBERED_S
        elif seconds <= self._slowest:
            return
        self._slowest = max(self._slowest, seconds)
        self.seconds = min(max(self.least, 2 * self._slowest, 2 * self._before), self.most)
