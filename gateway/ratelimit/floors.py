"""The sums that this process has seen of budgets, by which a store that lost them restores them: see `spent`."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.ratelimit.kept import Kept, Seen
from gateway.ratelimit.model import Plan, Settlement, Verdict
from gateway.ratelimit.spent import MARK

MOST = 65_536
"""Counters that are remembered, some 200 bytes each."""
_NEVER_SEEN = (0, 0)


class Floors:
    """The birth of each counter, and the sum that it had. kept: where they outlive this process, if anywhere."""

    def __init__(self) -> None:
        self._seen: Seen = {}
        self._changed = False
        self._kept: Kept | None = None

    def keep(self, kept: Kept) -> None:
        """Takes up what was kept, and keeps all from now on."""
        self._kept = kept
        self._seen = {**kept.read(), **self._seen}

    async def save(self) -> None:
        """Writes what has changed since it was written last."""
        if self._kept is not None and self._changed:
            self._changed = False
            self._changed = not await self._kept.write(dict(self._seen)) or self._changed

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def of(self, plan: Plan) -> list[tuple[int, int]]:
        """A floor for each of the budgets of `plan`."""
        return [self._seen.get(plan.keys[index], _NEVER_SEEN) for index in plan.sums]

    def see(self, plan: Plan, verdict: Verdict) -> None:
        """Learns from a verdict of the shared store."""
        self._changed = True
        for index in plan.sums:
            counted, key = verdict.counters[index], plan.keys[index]
            self._seen.pop(key, None)  # the last seen is the last to be forgotten
            self._seen[key] = (counted.reset_us // MARK, plan.shapes[index].limit - counted.remaining)
        if len(self._seen) > MOST:
            for old in list(self._seen)[: MOST // 2]:
                del self._seen[old]

    def add(self, plan: Plan, settlements: Sequence[Settlement]) -> None:
        """The shared store will settle these."""
        self._changed = True
        for one in settlements:
            key = plan.keys[one.index]
            birth, used = self._seen.get(key, _NEVER_SEEN)
            if one.index in plan.sums and birth == one.entry:
                self._seen[key] = (birth, max(used + one.delta, 0))
