"""The output that a request is likely to have, learnt of finished requests: what `reserve: expected` reserves.

Outputs are learnt apart for each key, model, and size of the cap (its number of bits): calls that a client caps at a
few tokens say nothing about those that it lets run. Each has a mean and a mean deviation; a request is expected to
have both together, which is above most.

    expected = (cap + k * (mean + deviation)) / (k + 1),    k = min(requests, KNOWN)

So the first requests of a key reserve their cap, and later ones never less than a share of `1 / (KNOWN + 1)` of it:
that bounds what all running requests of a limit may use beyond what they have reserved. A key that has shown
less than that begins with the outputs of the other keys of the model.
"""

from __future__ import annotations

from collections import OrderedDict
from math import ceil

from gateway.core.estimate import Cost

KNOWN = 15
_REMEMBERED = 32
"""A request counts for a share of 1 in so many, so a changed habit is learnt within some tens of requests."""
_LEAST_SHARE = 1.0 / _REMEMBERED
_MOST = 16_384
"""Habits that are remembered, some 300 bytes each. A flood of keys displaces the longest unused."""


class Habit:
    """The outputs of some requests."""

    __slots__ = ("count", "deviation", "mean")

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.deviation = 0.0

    def learn(self, output: float) -> None:
        self.count = count = self.count + 1
        share = 1.0 / count if count < _REMEMBERED else _LEAST_SHARE
        away = output - self.mean
        self.mean += share * away
        if count > 1:  # the first shows no deviation
            self.deviation += share * (abs(away) - self.deviation)


class Expectations:
    """The habits that this process has learnt."""

    def __init__(self) -> None:
        self._habits: OrderedDict[tuple[str | int | None, ...], Habit] = OrderedDict()

    def __len__(self) -> int:
        return len(self._habits)

    def of(self, cost: Cost, key: str | None, model: str | None) -> Cost:
        """The likely use of a request of `key` that may use `cost`."""
        if not cost.each or model is None:
            return cost
        size, known = cost.each.bit_length(), 0
        total = float(cost.each)
        for whose in ((key, model, size), (model, size)):
            habit = self._habits.get(whose)
            if habit is not None:
                taken = min(habit.count, KNOWN - known)
                total += taken * (habit.mean + habit.deviation)
                known += taken
            if known == KNOWN:
                break
        each = min(ceil(total / (known + 1)), cost.each)
        return cost if each == cost.each else cost.with_outputs_of(each)

    def learn(self, cost: Cost, key: str | None, model: str, output: int) -> None:
        """A request that might have used `cost` has ended, with `output` tokens in all of its outputs together."""
        if not cost.each:
            return
        habits, size, each = self._habits, cost.each.bit_length(), output / cost.choices
        for whose in ((key, model, size), (model, size)):
            habit = habits.get(whose)
            if habit is None:
                habit = habits[whose] = Habit()
                if len(habits) > _MOST:
                    habits.popitem(last=False)
            else:
                habits.move_to_end(whose)  # the last one used is the last to be forgotten
            habit.learn(each)


def reserved_for_sure(each: int) -> int:
    """The least that is reserved for an output of up to `each` tokens, whatever was learnt."""
    return ceil(each / (KNOWN + 1))
