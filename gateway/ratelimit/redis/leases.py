"""Leases: a busy caller's next requests are charged in Redis in advance, so that most of them ask nobody.

A plan that is asked often takes a lease: a request that asks Redis anyway takes with it as much as the next ones will
need within `LIFE`. Redis grants that only if half of each limit is left then. So in the second half of a limit each
request asks Redis, which alone refuses.

Exactness.  A lease is charged to the slice of time in which it ends, so each request from it counts at least as long as
if Redis had been asked for it. Its rest is given back when it ends, and before a request asks Redis that the lease has
no room for. Plans of one caller, for several models, share counters: if Redis refuses a request, the leases of other
plans on its counters are given back, and Redis is asked once more. A gateway that dies gives nothing back: its lease
leaves the window, and slots expire, as those of its running requests do.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from collections.abc import Callable, Sequence
from math import inf
from operator import add, sub
from time import monotonic
from typing import Any

from gateway.light_task import Promise
from gateway.ratelimit.model import ADMITTED, Plan, Settlement, Verdict
from gateway.ratelimit.redis.codec import ADMIT, LEASE, SETTLE, Operation, Result
from gateway.ratelimit.redis.store import RedisStore
from gateway.ratelimit.window import Counted

LIFE = 0.25
"""Seconds, as in the script. A charge counts for so much longer than it must: below a minute that would be too much of
the window."""
LEAST_WIDTH = 500_000
"""Microseconds of a slice of a minute. Limits of shorter windows are not leased."""
LEAST = 4
"""Requests within the last `LIFE` that make a lease worth its cost."""
_TIMES = 2
"""How many times as many a lease is for: there may be more."""
_NAMES = 256
"""Requests that may run on one lease at once."""


class Lease(Promise[Result]):
    """A lease, once `bring` has the answer.

    ends      by the monotonic clock
    names     those that no request has: slots are held under them
    taken     those that running requests have
    rest      what is left of each limit
    reserved  of each limit: what is left, and what was used by requests that have ended
    """

    __slots__ = (
        "_answered", "_constant", "_left", "counters", "ends", "names", "plan", "reserved", "rest", "taken",
    )  # fmt: skip

    def __init__(
        self,
        plan: Plan,
        ends: float,
        names: list[str],
        costs: list[int],
        answered: Callable[[Lease, Verdict], None],
    ) -> None:
        super().__init__()
        self.plan, self.ends, self.names = plan, ends, names
        self.rest = self.reserved = costs
        self.taken: set[str] = set()
        self.counters: list[Counted] = []
        self._answered = answered

    def bring(self, value: Result) -> None:
        assert isinstance(value, Verdict)
        self.counters = counters = value.counters
        self._left = [one.remaining for one in counters]
        self._constant = [one.reset_us for one in counters], [one.entry for one in counters]
        self._answered(self, value)

    def fail(self, error: Exception) -> None:
        """The answer may come yet: then what it grants is given back. If it is lost, the batcher releases the slots."""

    def admit(self, costs: Sequence[int]) -> Verdict | None:
        """None if it has no room."""
        rest = list(map(sub, self.rest, costs))
        if not self.names or min(rest) < 0:
            return None
        self.rest, self.reserved = rest, list(map(sub, self.reserved, costs))
        name = self.names.pop()
        self.taken.add(name)
        return Verdict(ADMITTED, 0, list(map(Counted, map(add, self._left, rest), *self._constant)), 0, name)

    def settle(self, name: str, settlements: Sequence[Settlement]) -> bool:
        """Whether that is done: the request is one of this lease. If it used more than it had reserved, the next ones
        have less, and Redis learns of it when they miss it or the lease ends."""
        if name not in self.taken:
            return False
        self.taken.discard(name)
        slots = self.plan.slots
        for one in settlements:
            self.rest[one.index] += 1 if one.index in slots else -one.delta
            self.reserved[one.index] += one.held
        self.names.append(name)
        return True


class Demand:
    """The requests of a plan lately.

    asked  in this period, which `ends` by the monotonic clock; infinite: the plan can take no lease
    lease  that of this period
    """

    __slots__ = ("asked", "ends", "lease")

    def __init__(self, plan: Plan) -> None:
        self.asked = 0
        fits = [shape.counter or (shape.width >= LEAST_WIDTH and not shape.burst) for shape in plan.shapes]
        self.ends = 0.0 if all(fits) and not plan.sums else inf
        self.lease: Lease | None = None


class LeasingStore(RedisStore):
    """Counters in Redis, from which busy plans take leases."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._leases: dict[Lease, TimerHandle] = {}
        self._by_key: dict[bytes, set[Lease]] = {}  # the leases on each counter
        self._gave_back = 0.0  # when a lease last ended, by the monotonic clock

    def admit(self, plan: Plan, costs: Sequence[Any], holder: str) -> Verdict | Promise[Verdict]:
        demand: Demand | None = plan.demand
        if demand is None:
            demand = plan.demand = Demand(plan)
        demand.asked += 1
        now = monotonic()
        had = demand.lease
        if had is not None:
            verdict = had.admit(costs) if now < had.ends else None
            if verdict is not None:
                return verdict
            self._give_back(had)
        if now < demand.ends:
            return super().admit(plan, costs, holder)
        count = _TIMES * demand.asked if now < demand.ends + LIFE and demand.asked >= LEAST else 0
        demand.ends, demand.asked = now + LIFE, 0
        wanted = self._wanted(plan, costs, holder, count, demand.ends) if count and all(costs) else None
        answer: Promise[Any] = self._batchers[plan.tag].ask(ADMIT, plan, costs, holder, wanted)
        return answer

    def _wanted(self, plan: Plan, costs: Sequence[int], name: str, count: int, ends: float) -> Operation | None:
        """A lease for so many such requests; `name` is that of the first of them, which asks Redis."""
        room = [plan.shapes[index].limit // 4 for index in plan.slots]
        names = [f"{name}.{number}" for number in range(min([count, _NAMES, *room]))]
        if not names:
            return None
        total = [cost * count for cost in costs]
        for index in plan.slots:
            total[index] = len(names)
        asks = Lease(plan, ends, names, total, self._granted)
        return Operation(LEASE, "", plan, (total, names), asks)

    def _granted(self, lease: Lease, verdict: Verdict) -> None:
        if verdict.violated != ADMITTED:
            return
        left = max(lease.ends - monotonic(), 0.0)
        self._leases[lease] = asyncio.get_running_loop().call_later(left, self._give_back, lease)
        lease.plan.demand.lease = lease
        for key in lease.plan.keys:
            self._by_key.setdefault(key, set()).add(lease)

    def _give_back(self, lease: Lease) -> None:
        """Ends a lease."""
        self._leases.pop(lease).cancel()
        self._gave_back = monotonic()
        plan, batcher = lease.plan, self._batchers[lease.plan.tag]
        for key in set(plan.keys):
            found = self._by_key[key]
            found.discard(lease)
            if not found:
                del self._by_key[key]
        if plan.demand.lease is lease:
            plan.demand.lease = None
        back = [
            Settlement(index, lease.counters[index].entry, -rest, lease.reserved[index])
            for index, rest in enumerate(lease.rest)
            if lease.reserved[index] and index not in plan.slots
        ]
        if lease.names:
            back += plan.releases
        if back:
            batcher.post(SETTLE, plan, back, lease.names, needed=False)

    def make_room(self, plan: Plan, since: int) -> bool:
        for key in plan.keys:
            for lease in list(self._by_key.get(key, ())):
                self._give_back(lease)
        return self._gave_back * 1_000_000 >= since  # also by another request of the same call

    def settle(
        self, plan: Plan, holder: str, settlements: Sequence[Settlement], admitted: Verdict | None = None
    ) -> None:
        had = plan.demand and plan.demand.lease
        if had is None or not had.settle(holder, settlements):
            super().settle(plan, holder, settlements, admitted)

    async def flush(self) -> None:
        for lease in list(self._leases):
            self._give_back(lease)
        await super().flush()
        if self._leases:  # granted meanwhile
            await self.flush()

    async def close(self) -> None:
        await self.flush()
        await super().close()
