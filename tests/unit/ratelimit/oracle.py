"""What the window promises, computed by brute force from a log of admissions."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.ratelimit.window import Shape


class Log:
    """Every admission with what it still counts for."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.amounts: list[int] = []

    def add(self, now: int, amount: int) -> int:
        self.times.append(now)
        self.amounts.append(amount)
        return len(self.times) - 1

    def within(self, after: int, until: int) -> int:
        """Sum of what was admitted in (after, until]."""
        return sum(amount for at, amount in zip(self.times, self.amounts, strict=True) if after < at <= until)

    def most(self, window: int) -> int:
        """The most in any interval of `window` microseconds. It is enough to look at those that end at an admission."""
        return max((self.within(at - window, at) for at in self.times), default=0)


def may_refuse(log: Log, now: int, cost: int, shape: Shape) -> bool:
    """Whether the admissions of the window plus one slice plus the guard, the longest that any may count, leave no
    room: only then a refusal is honest."""
    return log.within(now - shape.span - shape.width, now) + cost > shape.limit


def most_in(admits: Sequence[tuple[float, int]], window: float) -> int:
    """The most amount in any half-open interval of `window`, from unsorted (time, amount); linear after sorting."""
    ordered = sorted(admits)
    first = total = worst = 0
    for at, amount in ordered:
        total += amount
        while ordered[first][0] <= at - window:
            total -= ordered[first][1]
            first += 1
        worst = max(worst, total)
    return worst
