"""The decisions of one process about requests: counts for metrics, and the return of refused clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import product
from random import random
from time import monotonic
from typing import Literal

MODES = {True: "strict", False: "local"}
_CROWDS = 10_000


class Decisions:
    """Counts of decisions, by rule.

    alone     requests that this process decided alone, because the store was down or did not answer in time
    on_alone  see `SubjectLimiter`
    """

    def __init__(self, on_alone: Callable[[int, float], None] | None) -> None:
        self.alone = 0
        self._on_alone = on_alone
        self._reported = (0, monotonic())  # the count of the last log line, and when
        # By the names of all rules that were asked: [decided here, decided by the store].
        self._admitted: dict[tuple[str, ...], list[int]] = {}
        self._others: Counter[tuple[str, str, str]] = Counter()

    def admitted(self, names: tuple[str, ...]) -> list[int]:
        """[by this process, by the store]: the requests that the rules of these names admitted. Callers count in it."""
        return self._admitted.setdefault(names, [0, 0])

    def count(self, rule: str, mode: str, decision: Literal["refused", "shadowed"]) -> None:
        self._others[rule, mode, decision] += 1

    def of(self, decision: Literal["refused", "shadowed"]) -> Counter[str]:
        """Rule name -> requests that it refused, or that a shadow rule would have refused."""
        found: Counter[str] = Counter()
        for (name, _, one), count in self._others.items():
            if one == decision:
                found[name] += count
        return found

    @property
    def counts(self) -> Mapping[tuple[str, str, str], int]:
        """Decisions by (rule, mode, decision). A mode is "strict" (the store decided), "local" (this process alone) or
        "closed" (refused because the store is down); a decision is "admitted", "refused" or "shadowed"."""
        found = Counter(self._others)
        for names, counts in self._admitted.items():
            for name, strict in product(names, (False, True)):
                found[name, MODES[strict], "admitted"] += counts[strict]
        for (name, mode, decision), count in self._others.items():
            if decision == "shadowed":
                found[name, mode, "admitted"] -= count
        return +found

    def report_alone(self) -> None:
        """Reports the requests decided alone since the last report, if there are any."""
        count, since = self._reported
        now = monotonic()
        self._reported = (self.alone, now)
        if self.alone > count and self._on_alone is not None:
            self._on_alone(self.alone - count, now - since)


class Crowds:
    """The clients that were refused and have not come back. clock: seconds."""

    def __init__(self) -> None:
        self.clock: Callable[[], float] = monotonic
        # Counter -> how many clients, as of when, and the end of their waits.
        self._found: dict[bytes, tuple[float, float, float]] = {}

    def spread(self, key: bytes, wait: float, each: float, most: float) -> float:
        """Seconds to add to a wait, so that clients refused by the counter `key` do not all return at the moment when
        there is room for one. Each gets a random moment within the time that the clients refused before it need, `each`
        for one and at most `most`. A request that waits alone gets the exact moment. One client that comes back too
        early counts as many: it looks like those of one program, which share its key and must not come back together.
        """
        now = self.clock()
        count, since, until = self._found.get(key, (0.0, 0.0, 0.0))
        count *= max(until - now, 0.0) / (until - since) if until > since else 0.0  # the others have come back
        more = random() * min(count * each, most)
        if len(self._found) >= _CROWDS and key not in self._found:
            for old in list(self._found)[: _CROWDS // 2]:
                del self._found[old]
        self._found[key] = (count + 1, now, max(until, now + wait + more))
        return more
