"""The sums that this process has seen of budgets, by which a store that lost them restores them: see `spent`."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.ratelimit.model import Plan, Settlement, Verdict
from gateway.ratelimit.spent import MARK

MOST = 65_536
"""Counters that are remembered, some 200 bytes each."""
_NEVER_SEEN = (0, 0)


class Floors:
    """The birth of each counter, and the sum that it had."""

    def __init__(self) -> None:
        self._seen: dict[bytes, tuple[int, int]] = {}

    def of(self, plan: Plan) -> list[tuple[int, int]]:
        """A floor for each of the budgets of `plan`."""
        return [self._seen.get(plan.keys[index], _NEVER_SEEN) for index in plan.sums]

    def see(self, plan: Plan, verdict: Verdict) -> None:
        """Learns from a verdict of the shared store."""
        for index in plan.sums:
            counted, key = verdict.counters[index], plan.keys[index]
            self._seen.pop(key, None)  # the last seen is the last to be forgotten
            self._seen[key] = (counted.reset_us // MARK, plan.shapes[index].limit - counted.remaining)
        if len(self._seen) > MOST:
            for old in list(self._seen)[: MOST // 2]:
                del self._seen[old]

    def add(self, plan: Plan, settlements: Sequence[Settlement]) -> None:
        """The shared store will settle these."""
        for one in settlements:
            key = plan.keys[one.index]
            birth, used = self._seen.get(key, _NEVER_SEEN)
            if one.index in plan.sums and birth == one.entry:
                self._seen[key] = (birth, max(used + one.delta, 0))
