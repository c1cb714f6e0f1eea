"""Counters in this process: the default without Redis, and the stand-in while Redis is down.

Decisions are exact while at most `max_keys` counters are live at once. Beyond that, a new counter displaces one of the
eight longest untouched counters: the one with the most of its limit left. So memory is bounded, and counters near their
limit are the last to go. Counters with requests in flight are never displaced; there are at most as many as requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from time import monotonic_ns
from typing import Any

from gateway.ratelimit.kinds import COUNTERS, AnyCounter
from gateway.ratelimit.model import ADMITTED, Plan, Settlement, Verdict
from gateway.ratelimit.plan import Layout
from gateway.ratelimit.spent import Spent
from gateway.ratelimit.window import Counted, Shape, Slots, Window

Group = OrderedDict[bytes, tuple[AnyCounter, Shape]]

_CANDIDATES = 8


class MemoryStore:
    """Counters in this process. clock returns nanoseconds and never goes back."""

    def __init__(self, max_keys: int = 100_000, clock: Callable[[], int] = monotonic_ns) -> None:
        self.layout = Layout()
        self.up = True
        self.reason = ""
        self.replicas = 1
        self.changed: Callable[[bool, str], None] | None = None
        self._max_keys = max(max_keys, 64)  # more than one request may touch
        self._clock = clock
        self._ttl = 30_000_000
        # Grouped by how long they are kept: the first in a group is the longest untouched and expires first.
        self._groups: dict[int, Group] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def admit(self, plan: Plan, costs: Sequence[Any], holder: str) -> Verdict:
        now, ttl, groups = self._clock() // 1000, self._ttl, self._groups
        if plan.sums:
            for index in plan.sums:
                self._begin(plan, index, now)
            return self._decide(plan, costs, holder, now)
        # Nearly all requests fit at once. If one does not, what was taken for it goes back.
        found: list[Counted] = []
        for key, shape, cost in zip(plan.keys, plan.shapes, costs, strict=True):
            counter: Any  # without sums none is `Spent`
            try:
                group = groups[shape.keep]
                group.move_to_end(key)
                counter = group[key][0]
            except KeyError:
                counter = self._touch(key, shape, now)
            counted = counter.take_at_once(now, cost, shape, holder, ttl)
            if counted is None:
                for key, shape, at, charged in zip(plan.keys, plan.shapes, found, costs, strict=False):
                    counter = groups[shape.keep][key][0]
                    counter.undo(at.entry, charged, holder)
                return self._decide(plan, costs, holder, now)
            found.append(counted)
        return Verdict(ADMITTED, 0, found)

    def _decide(self, plan: Plan, costs: Sequence[Any], holder: str, now: int) -> Verdict:
        """As `admit`: looks at all counters before it takes from any."""
        touched = [self._touch(key, shape, now) for key, shape in zip(plan.keys, plan.shapes, strict=True)]
        waits = [one.delay(now, cost, shape) for one, cost, shape in zip(touched, costs, plan.shapes, strict=True)]
        violated, longest, latest = -1, 0, 0
        if any(waits):
            for index, wait in enumerate(waits):
                counter, shape = touched[index], plan.shapes[index]
                sooner = counter.sooner(now, costs[index], shape, wait) if isinstance(counter, Window) else wait
                if sooner > longest and not shape.shadow:
                    violated, longest, latest = index, sooner, wait
        counters: list[Counted] = []
        for counter, shape, cost, wait in zip(touched, plan.shapes, costs, waits, strict=True):
            if wait or violated >= 0:
                counters.append(Counted(*counter.state(now, shape), -1))
            else:
                counters.append(counter.take(now, cost, shape, holder, self._ttl))
        for index in plan.sums:
            budget = touched[index]
            assert isinstance(budget, Spent)
            counters[index].held = budget.held
        return Verdict(violated, longest, counters, latest)

    def settle(
        self, plan: Plan, holder: str, settlements: Sequence[Settlement], admitted: Verdict | None = None
    ) -> None:
        now, groups, keys, shapes = self._clock() // 1000, self._groups, plan.keys, plan.shapes
        for one in settlements:
            index, delta = one.index, one.delta
            key, shape = keys[index], shapes[index]
            try:
                counter = self._touch(key, shape, now) if delta > 0 else groups[shape.keep][key][0]
            except KeyError:
                continue  # nothing can be given back
            if plan.sums and index in plan.sums:
                self._begin(plan, index, now)
            counter.settle(now, one.entry, delta, shape, holder, one.held)

    def renew(self, holders: Sequence[tuple[str, Plan]]) -> None:
        now = self._clock() // 1000
        for holder, plan in holders:
            for index in plan.slots:
                counter = self._touch(plan.keys[index], plan.shapes[index], now)
                assert isinstance(counter, Slots)
                counter.hold(now, holder, self._ttl)

    async def look(self, plan: Plan) -> Verdict:
        now = self._clock() // 1000
        found = []
        for index, (key, shape) in enumerate(zip(plan.keys, plan.shapes, strict=True)):
            group = self._groups.get(shape.keep, OrderedDict())
            if key not in group:
                owed = max(self._before(plan, index) - shape.limit, 0) if shape.owes else 0
                found.append(Counted((shape.burst or shape.limit) - owed, 0, owed))
            else:
                counter = group[key][0]
                counter.slide(now, shape)
                left, reset = counter.state(now, shape)
                found.append(Counted(left, 0 if isinstance(counter, Spent) else reset, counter.used))
        return Verdict(ADMITTED, 0, found)

    async def reset(self, plan: Plan) -> None:
        now = self._clock() // 1000
        for key, shape in zip(plan.keys, plan.shapes, strict=True):
            counter = self._touch(key, shape, now)
            counter.reset(now, shape)

    async def start(self, slot_ttl: float) -> None:
        self._ttl = round(slot_ttl * 1_000_000)

    async def beat(self) -> None:
        now = self._clock() // 1000
        for group in self._groups.values():
            self._drop_expired(group, now, 10_000)

    async def flush(self) -> None:
        return None

    async def close(self) -> None:
        return None

    def raise_budgets(self, plan: Plan, used: Sequence[int]) -> None:
        """Raises what is spent of each budget of `plan` to `used`, in nano; less changes nothing."""
        for index, least in zip(plan.sums, used, strict=True):
            if least:
                counter = self._begin(plan, index, self._clock() // 1000)
                counter.used = max(counter.used, least)

    def _begin(self, plan: Plan, index: int, now: int) -> Spent:
        """The counter of a budget, in which its period has begun."""
        counter = self._touch(plan.keys[index], plan.shapes[index], now)
        assert isinstance(counter, Spent)
        counter.begin(now, self._before(plan, index), plan.shapes[index])
        return counter

    def _before(self, plan: Plan, index: int) -> int:
        """The sum of the period before that of a budget's counter; 0 if its debt is nobody's."""
        shape = plan.shapes[index]
        if not shape.owes:
            return 0
        group = self._groups.get(shape.keep)
        found = None if group is None else group.get(plan.before[plan.sums.index(index)])
        return 0 if found is None else found[0].used

    def forget_sums(self) -> None:
        """Forgets what was spent of budgets."""
        for group in self._groups.values():
            spent = [key for key, (counter, _) in group.items() if isinstance(counter, Spent)]
            for key in spent:
                del group[key]
            self._size -= len(spent)

    def _touch(self, key: bytes, shape: Shape, now: int) -> AnyCounter:
        group = self._groups.setdefault(shape.keep, OrderedDict())
        found = group.get(key)
        if found is not None:
            group.move_to_end(key)
            return found[0]
        self._drop_expired(group, now, 2)
        if self._size >= self._max_keys:
            self._displace(max(self._groups.values(), key=len))
        counter = COUNTERS[shape.counter]()
        counter.expires = now + (shape.keep * 1000 or self._ttl)
        group[key] = (counter, shape)
        self._size += 1
        return counter

    def _drop_expired(self, group: Group, now: int, most: int) -> None:
        """Drops up to `most` expired counters, the longest untouched first. Two for each new counter, so that even a
        flood of new ones cannot outrun it. A counter that owes lives longer than its group, and must not stop this."""
        for _ in range(most):
            key = next(iter(group), None)
            if key is None:
                return
            counter = group[key][0]
            if counter.expires <= now:
                del group[key]
                self._size -= 1
            elif counter.debt:
                group.move_to_end(key)
            else:
                return

    def _displace(self, group: Group) -> None:
        shares = {}
        for key in list(islice(group, _CANDIDATES)):
            counter, shape = group[key]
            share = counter.share(shape)
            if share is not None:
                shares[key] = share
            group.move_to_end(key)
        if shares:
            del group[min(shares, key=lambda key: shares[key])]
            self._size -= 1
