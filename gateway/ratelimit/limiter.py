"""The limiter: reserve before a request, settle after it. The store counts; this module chooses the store.

While the shared store is down, each rule obeys its `on_redis_failure`. Requests decided here are counted in a memory
store. It is kept after the outage, so that a server that fails repeatedly does not give a fresh window each time.
"""

from __future__ import annotations

import asyncio
import secrets
from asyncio import Task, TimerHandle
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from time import monotonic, time
from typing import Any
from weakref import ref

from gateway.background import cancel_tasks, keep_running
from gateway.config import Limit
from gateway.core.charged import Outcome
from gateway.core.errors import GatewayError, Kind
from gateway.core.estimate import Cost
from gateway.core.usage import Usage
from gateway.light_task import Promise
from gateway.ratelimit.decisions import MODES, Crowds, Decisions
from gateway.ratelimit.expected import Expectations, reserved_for_sure
from gateway.ratelimit.kinds import KINDS, BudgetRule, Wait
from gateway.ratelimit.memory import MemoryStore
from gateway.ratelimit.model import (
    ADMITTED,
    UNLIMITED,
    Limited,
    LimitState,
    Plan,
    Settlement,
    Subject,
    Verdict,
)
from gateway.ratelimit.plan import Plans, Replaced, RuleIndex, scaled
from gateway.ratelimit.reservation import Reservation
from gateway.ratelimit.spent import FOREVER, Asked
from gateway.ratelimit.store import Store, StoreDown

FREE = Cost()
OnBudget = Callable[[BudgetRule, Subject, float, int], None]
"""Called with a budget, whose it is, the share of it that was passed just now (1.0: a request was refused), and what
was spent, in nano. One gateway calls it for all, once for each share of a period."""
_RENEWED, _RENEWED_EVERY = 200, 0.01
"""Reservations renewed at once, and the pause after them in seconds, so that admissions need not wait for thousands."""
_CLOSED_RETRY = 5.0
"""Seconds that a closed rule tells clients to wait. The store is probed again within it."""
_REPLACED_SLOTS = 600.0
"""The longest time in seconds that slots of a replaced rule count. Most requests that hold them have ended by then."""
_HOUR, _AFTER = 3600.0, 0.001
"""Seconds. A timer is set a little after the end of a period, which must be over when it runs."""
_GENERATIONS = 8
"""The number of reloads whose replaced rules are remembered."""
_BUDGETS = 65_536
"""Budgets whose sums are remembered, some 200 bytes each."""
_SLOT_SPREAD = 5.0
"""The most by which the waits for a slot are spread, in seconds."""


class SubjectLimiter:
    """Enforces `rules` by counters in a store. The configuration has checked that they fit the store's layout.

    slot_ttl   seconds that a slot lives without renewal; it is renewed three times in it or more often
    heartbeat   seconds between two heartbeats
    on_change   called with ("strict" | "degraded", reason) after each change, for one log line and a gauge
    on_budget   see `OnBudget`
    on_alone    called with (requests, seconds): the number of requests that this process decided alone in that time; at
                most once a heartbeat while the store is up, and when it has come back
    store       counts, and says why it is down and how many processes share it
    crowds      the clients that were refused, by whose number waits are spread
    replaced    the rules of earlier reloads that are still enforced, the newest last
    expectations  what requests are likely to use
    """

    def __init__(
        self,
        rules: Sequence[Limit] | RuleIndex,
        store: Store,
        *,
        slot_ttl: float = 30.0,
        heartbeat: float = 5.0,
        on_change: Callable[[str, str], None] | None = None,
        on_alone: Callable[[int, float], None] | None = None,
        on_budget: OnBudget | None = None,
    ) -> None:
        self.decisions = Decisions(on_alone)
        self.crowds = Crowds()
        self.store = store
        self._local = MemoryStore()
        self._index = RuleIndex.of(rules)
        # Counter of a budget -> what the shared store last said is spent of it: while the store is down, this process
        # spends its share of the rest.
        self._spent: dict[bytes, int] = {}
        self.expectations = Expectations()
        self.replaced: list[Replaced] = []
        self._next_end = inf  # when replaced rules end
        self._plans = Plans(self._index, store.layout)
        self._slot_ttl = slot_ttl
        self._every = min(heartbeat, slot_ttl / 3)
        self._on_change = on_change
        self._on_budget = on_budget
        self._turning: TimerHandle | None = None  # at the end of a budget's period
        self._prefix = secrets.token_hex(6)
        self._count = 0
        self._live: dict[str, ref[Reservation]] = {}  # with slots; one that its request dropped must not be renewed
        self._beating: Task[None] | None = None
        store.changed = self._changed

    @property
    def state(self) -> str:
        """ "strict": the store decides. "degraded": it is down."""
        return "strict" if self.store.up else "degraded"

    @property
    def counts_end_users(self) -> bool:
        """Whether a budget is that of single end users."""
        return self._index.end_users

    @property
    def in_flight(self) -> int:
        """Reservations of this process that hold slots."""
        return len(self._live)

    def use(self, rules: Sequence[Limit] | RuleIndex) -> None:
        """Replaces the rules. A rule with the same kind, window, name and scope as before keeps its counters. Any other
        rule begins with empty counters, so the rule that it replaces is enforced beside it for one more window (the
        shorter of the two): a reload admits nobody twice."""
        index = RuleIndex.of(rules)
        if index is self._index:
            return
        now = monotonic()
        old, self._index = self._index, index
        self.replaced = [*self.replaced, Replaced(old, index, now, _REPLACED_SLOTS)][-_GENERATIONS:]
        self._retire(now)

    def own(self, key: str, rules: Sequence[Limit]) -> None:
        """Replaces the rules of one key of the store; see `use` for its counters."""
        if self._index.own(key, rules):
            self._turn()

    def own_of_team(self, team: str, rules: Sequence[tuple[float, Limit]]) -> None:
        """As `own`, the rules of one team of the store, each with its position among all rules."""
        if self._index.own_of_team(team, rules):
            self._turn()

    def _retire(self, now: float) -> None:
        """Forgets replaced rules whose time is over."""
        self.replaced = [one for one in self.replaced if one.ends and one.ends[-1] > now]
        self._next_end = min((end for one in self.replaced for end in one.ends if end > now), default=inf)
        self._turn()

    def _turn(self) -> None:
        """Makes new plans: a period of the calendar has ended, for which this sets a timer. It looks once an hour,
        because clocks may be set."""
        if self._turning is not None:
            self._turning.cancel()
            self._turning = None
        calendars = self._index.calendars
        if calendars and self._beating is not None:
            now = time()
            wait = min(min(one.ends(now) for one in calendars) - now, _HOUR)
            self._turning = asyncio.get_running_loop().call_later(wait + _AFTER, self._turn)
        self._plans = Plans(self._index, self.store.layout, self.replaced, monotonic())

    async def start(self, *, beats: bool = True) -> None:
        """Connects, and sends heartbeats, unless the caller only reads: it is soon not counted as a replica. Does not
        raise if the store is down: it starts degraded and recovers by itself."""
        await self._local.start(self._slot_ttl)
        await self.store.start(self._slot_ttl)
        if beats:
            self._beating = asyncio.create_task(self._beat())
            self._turn()

    async def close(self) -> None:
        """Sends the remaining settlements and signs off, so that the other replicas' shares grow at once."""
        if self._turning is not None:
            self._turning.cancel()
        await cancel_tasks(self._beating)
        await self.store.close()

    async def reserve(
        self, subject: Subject, cost: Cost | None = FREE, before: Reservation | None = None, *, early: bool = False
    ) -> Reservation:
        """Charges the request on all of its limits but those of `before`, or raises and charges none. cost: None for a
        question that uses no tokens. early: only on the limits that count a request whatever it holds and whatever
        model it names; then subject has no model.

        Raises `Limited`, or GatewayError(OVERLOADED) if the store is down and a rule fails closed. A cancelled call
        returns what it may have been granted.
        """
        made = self.begin(subject, cost, before, early=early)
        return made if type(made) is Reservation else await made  # type: ignore[misc]  # else it is a coroutine

    def begin(
        self, subject: Subject, cost: Cost | None = FREE, before: Reservation | None = None, *, early: bool = False
    ) -> Reservation | Coroutine[Any, Any, Reservation]:
        """As `reserve`, without a coroutine if the store in force needs none. The store has been asked when this
        returns; a coroutine must be awaited, and before that the caller may do other things in the same turn."""
        plans = self._plans
        plan = plans.early(subject) if early else plans.of(subject, () if before is None else before.plan.keys)
        self._count = count = self._count + 1
        made = Reservation(self, f"{self._prefix}{count}", plan, cost, (), UNLIMITED, self.store.up, early)
        if not plan.rules:
            return made
        made.charged = costs = self._costs(plan, cost, subject) if plan.measured or plan.sums else plan.costs
        store = self.store
        if not store.up:
            return self._reserve_alone(made, subject)
        try:
            answer = store.admit(plan, costs, made.id)
        except StoreDown:
            return self._reserve_alone(made, subject)
        if type(answer) is not Verdict:
            return self._answered(made, subject, answer)  # type: ignore[arg-type]  # then it is a promise
        made.verdict = answer
        return self._decided(made, subject)

    async def _answered(self, made: Reservation, subject: Subject, answer: Promise[Verdict]) -> Reservation:
        """The reservation once the store has answered."""
        alone: tuple[Plan, Sequence[int], Verdict] | None = None
        whole = made.plan
        try:
            try:
                made.verdict = await answer
            except StoreDown:
                self._decide_alone(made, subject)
                if made.verdict.violated < 0 or not self.store.up:
                    return self._decided(made, subject)
                # This process has no room in its share; there may be room all the same.
                alone = made.plan, made.charged, made.verdict
                again = self._ask_again(made, whole, subject)
                if isinstance(again, Verdict):
                    made.verdict = again
                else:
                    answer = again
                    made.verdict = await answer
                self.decisions.alone -= 1
        except StoreDown:
            assert alone is not None
            made.strict, (made.plan, made.charged, made.verdict) = False, alone
        except asyncio.CancelledError:
            # The store undoes what it grants to a waiter that has left. This one left between the answer and its own
            # resumption.
            if made.strict and answer.value is not None and answer.value.violated == ADMITTED:
                made.verdict = answer.value
                made.charged = made.plan.charged(made.charged, made.verdict.counters)
                self.settle(made, None, "unserved")
            raise
        return self._decided(made, subject)

    def _ask_again(self, made: Reservation, plan: Plan, subject: Subject) -> Verdict | Promise[Verdict]:
        """Asks the store once more, under another name: what it grants under the first is undone."""
        self._count += 1
        made.id = f"{self._prefix}{self._count}"
        made.plan, made.strict, made.shared = plan, True, None
        made.charged = costs = self._costs(plan, made.cost, subject) if plan.measured or plan.sums else plan.costs
        return self.store.admit(plan, costs, made.id)

    def settle(
        self,
        made: Reservation,
        used: Usage | None,
        outcome: Outcome = "finished",
        *,
        at_least: bool = False,
        money: int = 0,
    ) -> None:
        """Ends a reservation: frees its slots and corrects what was charged to what was used. Returns at once and
        cannot be interrupted, so it is safe in `finally`. A second call does nothing.

        used: None is unknown and keeps the reservation, and with at_least nothing of it is given back. money: what
        budgets are charged, in nano. Outcome "unserved" returns everything, the request itself too.
        """
        if made.settled:
            return
        made.settled = True
        plan, counters, charged = made.plan, made.verdict.counters, made.charged
        settlements: list[Settlement] = list(plan.releases)
        if settlements:
            self._live.pop(made.id, None)
            if plan.shadows:  # which may have charged nothing
                settlements = [one for one in settlements if counters[one.index].entry >= 0]
        if outcome == "unserved":
            for index, counted in enumerate(counters):
                if index not in plan.slots and index not in plan.sums and counted.entry >= 0:
                    settlements.append(Settlement(index, counted.entry, -charged[index], charged[index]))
        else:
            for index, kind, _, _ in plan.measured:
                entry, delta = counters[index].entry, 0 if used is None else kind.uses(used) - charged[index]
                if (delta or charged[index]) and entry >= 0:
                    delta = 0 if at_least and delta < 0 else delta
                    settlements.append(Settlement(index, entry, delta, charged[index]))
        for index in plan.sums:
            if counters[index].entry >= 0:
                settlements.append(Settlement(index, counters[index].entry, money - charged[index], charged[index]))
                if made.strict and (key := plan.keys[index]) in self._spent:
                    self._spent[key] = max(self._spent[key] + money - charged[index], 0)
        if money and not made.strict:
            self._post(made, money)
        if not settlements:
            return
        if made.strict:
            self.store.settle(plan, made.id, settlements, made.verdict)
        else:
            self._local.settle(plan, made.id, settlements)
        if made.adopted:
            other = self._local if made.strict else self.store
            other.settle(plan, made.id, [one for one in settlements if one.index in plan.slots])

    def _post(self, made: Reservation, money: int) -> None:
        """Has the store charge what a request cost that was decided without it; it may learn of it later."""
        if made.shared is not None:
            owed = [Settlement(index, 0, money) for index in made.shared.sums]
            self.store.settle(made.shared, made.id, owed)

    async def inspect(self, subject: Subject) -> tuple[LimitState, ...]:
        """The state of every limit of `subject`; charges nothing. Raises GatewayError(OVERLOADED) if the store is
        down."""
        plan = self._plans.of(subject)
        with _store_is_needed():
            verdict = await self.store.look(plan) if plan.rules else UNLIMITED
        states = plan.states(verdict)
        for state, counted in zip(states, verdict.counters, strict=True):
            state.used = counted.entry
        return states

    async def reset(self, subject: Subject) -> None:
        """Forgets what `subject` used. Requests in flight keep running uncounted. Raises as `inspect`."""
        plan = self._plans.of(subject)
        with _store_is_needed():
            if plan.rules:
                await self.store.reset(plan)

    async def flush(self) -> None:
        """Returns when all settlements so far have taken effect; for shutdown and tests."""
        await self.store.flush()

    def _reserve_alone(self, made: Reservation, subject: Subject) -> Reservation:
        self._decide_alone(made, subject)
        return self._decided(made, subject)

    def _decide_alone(self, made: Reservation, subject: Subject) -> None:
        """Sets the verdict of this process. Raises GatewayError if a rule fails closed."""
        self.decisions.alone += 1
        for rule in made.plan.rules:
            if rule.on_redis_failure == "closed" and not rule.shadow:
                self._refuse(rule, "closed")
                raise GatewayError(
                    Kind.OVERLOADED,
                    "the limits of this request cannot be checked right now",
                    code="limits_unavailable",
                    retry_after=_CLOSED_RETRY,
                )
        replicas = self.store.replicas
        made.shared = made.plan if made.plan.sums else None
        made.plan = plan = scaled(made.plan, replicas)
        made.strict = False
        if not plan.rules:
            made.charged, made.verdict = (), UNLIMITED
            return
        made.charged = costs = self._costs(plan, made.cost, subject) if plan.measured or plan.sums else plan.costs
        if plan.sums:
            shares = [-(-self._spent.get(plan.keys[index], 0) // replicas) for index in plan.sums]
            self._local.raise_budgets(plan, shares)
        made.verdict = self._local.admit(plan, costs, made.id)

    def _costs(self, plan: Plan, cost: Cost | None, subject: Subject) -> Sequence[Any]:
        """The charge on each limit, `Asked` of budgets. A reservation is bounded by the limit: a request that reserves
        more than all of it is admitted while nothing of it is used, and what it uses beyond is a debt."""
        costs: list[Any] = list(plan.costs)
        cost = cost or FREE
        likely = self.expectations.of(cost, subject.key, subject.model) if plan.expects else cost
        for index, kind, limit, expected in plan.measured:
            reserved = kind.reserves(likely if expected else cost)
            if reserved <= limit:
                costs[index] = reserved
                continue
            costs[index] = limit
            rule = plan.rules[index]
            wrong = None if rule.shadow else kind.never_fits(cost, rule)
            if wrong is not None:
                self._refuse(rule, MODES[self.store.up])
                raise Limited(rule, wrong[0], param=wrong[1])
        least = cost.money
        if plan.sums and plan.expects and cost.each:
            least = cost.with_outputs_of(reserved_for_sure(cost.each)).money
        for index in plan.sums:
            limit, expects = plan.shapes[index].limit, plan.rules[index].reserve == "expected"
            most, fewest = (likely.money, least) if expects else (cost.money, cost.money)
            costs[index] = Asked(min(most, limit), min(fewest, limit))
        return costs

    def _warn(self, plan: Plan, verdict: Verdict, subject: Subject) -> None:
        """Reports the marks that budgets have passed just now."""
        for index in plan.sums:
            counted, rule, shape = verdict.counters[index], plan.rules[index], plan.shapes[index]
            mark = counted.reset_us
            if mark and self._on_budget is not None:
                assert isinstance(rule, BudgetRule)
                at = rule.warn_at[mark - 1] if mark <= len(shape.levels) else 1.0
                self._on_budget(rule, subject, at, shape.limit - counted.remaining - counted.held)

    def _see(self, plan: Plan, verdict: Verdict) -> None:
        for index in plan.sums:
            key = plan.keys[index]
            self._spent.pop(key, None)  # the last used is the last to be forgotten
            self._spent[key] = plan.shapes[index].limit - verdict.counters[index].remaining
        if len(self._spent) > _BUDGETS:
            for old in list(self._spent)[: _BUDGETS // 2]:
                del self._spent[old]

    def _decided(self, made: Reservation, subject: Subject) -> Reservation:
        plan, verdict, mode = made.plan, made.verdict, MODES[made.strict]
        if verdict.name:
            made.id = verdict.name
        if plan.sums:
            made.charged = plan.charged(made.charged, verdict.counters)
            if made.strict:
                self._see(plan, verdict)
            self._warn(plan, verdict, subject)
        if verdict.violated >= 0:
            raise self._refusal(made, plan.rules[verdict.violated], mode)
        for index in plan.shadows:
            if verdict.counters[index].entry < 0:
                self.decisions.count(plan.rules[index].name, mode, "shadowed")
        if plan.admitted is None:
            plan.admitted = self.decisions.admitted(plan.names)
        plan.admitted[made.strict] += 1
        if plan.slots:
            self._live[made.id] = ref(made)
        return made

    def _refusal(self, made: Reservation, rule: Limit, mode: str) -> Limited:
        verdict, index = made.verdict, made.verdict.violated
        self._refuse(rule, mode)
        charge, fits_s = made.charged[index], verdict.wait_us / 1e6
        if verdict.wait_us == FOREVER:
            left = verdict.counters[index].remaining
            message = KINDS[rule.kind].refusal(rule, made.plan.shapes[index].limit, left, charge, Wait(fits_s))
            return Limited(rule, message, made.states, kind=Kind.QUOTA)
        held = verdict.latest_us > verdict.wait_us
        limit, remaining = made.plan.shapes[index].limit, verdict.counters[index].remaining
        kind = KINDS[rule.kind]
        in_flight = kind.in_flight or kind.adds_up
        most = _SLOT_SPREAD if in_flight or held else rule.per_s
        each = self.store.replicas * (1.0 / limit if in_flight else most * charge / limit)
        spread = self.crowds.spread(made.plan.keys[index], fits_s, each, most)
        wait = Wait(fits_s, spread, verdict.latest_us / 1e6)
        message = kind.refusal(rule, limit, remaining, charge, wait)
        return Limited(rule, message, made.states, fits_s, spread)

    def _refuse(self, rule: Limit, mode: str) -> None:
        self.decisions.count(rule.name, mode, "refused")

    def _changed(self, up: bool, reason: str) -> None:
        self.decisions.report_alone()
        if up:
            self._renew(list(self._live))
            if self._index.calendars:  # the store has it, or gets it from `_post`
                self._local.forget_sums()
        else:
            # Running requests hold slots, which this process must keep counting.
            held = [one for known in self._live.values() if (one := known()) is not None and one.strict]
            for one in held:
                plan = scaled(one.plan, self.store.replicas)
                if plan.slots:
                    self._local.renew([(one.id, plan)])
                    one.adopted = True
        if self._on_change is not None:
            self._on_change("strict" if up else "degraded", reason)

    def _renew(self, ids: Iterable[str]) -> None:
        """Renews the reservations that still hold slots. A released slot must not be taken again."""
        held = []
        for id in ids:
            known = self._live.get(id)
            one = known() if known is not None else None
            if one is None:
                self._live.pop(id, None)
            else:
                held.append(one)
        self.store.renew([(one.id, one.plan) for one in held])
        if self.store.up:
            for one in held:
                one.adopted = one.adopted or not one.strict
        again = [one for one in held if one.adopted or not one.strict]
        self._local.renew([(one.id, scaled(one.plan, self.store.replicas)) for one in again])

    async def _beat(self) -> None:
        while True:
            with keep_running("heartbeat of limits"):
                await self._one_beat()
            await asyncio.sleep(self._every)

    async def _one_beat(self) -> None:
        ids = list(self._live)
        for first in range(0, len(ids), _RENEWED):
            self._renew(ids[first : first + _RENEWED])
            await asyncio.sleep(_RENEWED_EVERY)
        await self.store.beat()
        await self._local.beat()
        if self.store.up:
            self.decisions.report_alone()
        now = monotonic()
        if now >= self._next_end:
            self._retire(now)


@contextmanager
def _store_is_needed() -> Iterator[None]:
    try:
        yield
    except StoreDown as down:
        raise GatewayError(Kind.OVERLOADED, "the limit store is unavailable", retry_after=_CLOSED_RETRY) from down
