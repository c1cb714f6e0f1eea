"""The money that was spent of a budget in one period of its calendar.

The period is part of the counter's name: nothing slides here, and what is charged stays. A request is admitted if what
was spent, what running requests have reserved, and its own reservation are at most the budget together. It reserves
what is expected, or all that is left where that is less: an expectation may be wrong, and a refused request teaches
nothing.

Debt.  The part of the sum above the limit is a debt: if the rule reserves what is expected, the counter of the next
period begins with it. A counter begins once, when its first request comes. A request that runs over the end of a period
is settled in its own period alone.

Each counter has a birth, the millisecond in which it was made: a request that was charged on a counter that was reset
or lost since gives nothing back to the new one.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from gateway.ratelimit.window import RETRY_SLOT, Counted, Shape

FOREVER = 1 << 50
"""Microseconds: no wait helps, and no other limit asks for a longer one."""

ABANDONED = 3_600_000
"""Milliseconds without a reservation after which what requests have reserved is spent: a gateway was killed with them.
A request that runs on is settled as ever."""


class Asked(NamedTuple):
    """The reservation that a request asks of a budget, in nano: `expected`, or what is left if that is less, but never
    less than `least`."""

    expected: int
    least: int


class Spent:
    """One budget's counter in this process. The methods are those of `window.Window`; an entry is a birth.

    used    spent and reserved, in nano
    held    of it, reserved by running requests
    admitted  the millisecond of the last reservation
    level   the highest mark that was passed: those of `Shape.levels`, from 1, and one more if a request was refused
    """

    __slots__ = ("admitted", "birth", "expires", "held", "level", "passed", "used")
    debt = 0

    def __init__(self) -> None:
        self.birth = self.used = self.held = self.level = self.passed = self.expires = self.admitted = 0

    @staticmethod
    def shape(limit: int, days: int, levels: tuple[int, ...], shadow: bool, owes: bool = False) -> Shape:
        """levels: sums, ascending, at which a mark is passed. owes: see `begin`."""
        return Shape(2, limit, 0, 0, 0, int(shadow), 0, (days + 2) * 86_400_000, levels, int(owes))

    def share(self, shape: Shape) -> float | None:
        return self.used / shape.limit

    def slide(self, now: int, shape: Shape) -> None:
        if not self.birth:
            self.birth = max(now // 1000, 1)

    def begin(self, now: int, before: int, shape: Shape) -> None:
        """Makes a new counter, which begins with what was spent in the period before it above the limit. before: the
        sum of that period."""
        if not self.birth:
            self.slide(now, shape)
            self.used = max(before - shape.limit, 0)

    def delay(self, now: int, cost: Asked, shape: Shape) -> int:
        self.slide(now, shape)
        if now // 1000 - self.admitted > ABANDONED:
            self.held = 0
        spent = self.used - self.held
        wait, level = 0, bisect_right(shape.levels, spent)
        if cost.expected and self.used + cost.least > shape.limit:
            wait = RETRY_SLOT
            if spent + cost.least > shape.limit:
                wait, level = FOREVER, len(shape.levels) + 1
        if level > self.level:
            self.level = self.passed = level
        return wait

    def take(self, now: int, cost: Asked, shape: Shape, holder: str, ttl: int) -> Counted:
        charged = max(min(cost.expected, shape.limit - self.used), cost.least)
        self.used += charged
        self.held += charged
        if charged:
            self.admitted = now // 1000
        self.expires = now + shape.keep * 1000
        return Counted(*self.state(now, shape), self.birth, charged)

    def settle(self, now: int, index: int, delta: int, shape: Shape, holder: str, held: int) -> None:
        self.slide(now, shape)
        self.expires = now + shape.keep * 1000
        if delta > 0 or index == self.birth:
            self.used = max(self.used + delta, 0)
        if index == self.birth:
            self.held = max(self.held - held, 0)

    def reset(self, now: int, shape: Shape) -> None:
        expires = now + shape.keep * 1000
        self.__init__()  # type: ignore[misc]  # as new
        self.birth, self.expires = max(now // 1000, 1), expires

    def state(self, now: int, shape: Shape) -> tuple[int, int]:
        """(what is left, negative if more was spent; the mark that was passed just now, 0 for none)."""
        passed, self.passed = self.passed, 0
        return shape.limit - self.used, passed
