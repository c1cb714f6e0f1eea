"""The limiter: reserve before a request, settle after it. The store counts; this module chooses the store.

While the shared store is down, each rule obeys its `on_redis_failure`. Requests decided here are counted in a memory
store. It is kept after the outage, so that a server that fails repeatedly does not give a fresh window each time.
"""

from __future__ import annotations

import asyncio
import secrets
from asyncio import Task
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from math import ceil, inf
from random import random
from time import monotonic
from typing import Any
from weakref import ref

from gateway.core.background import keep_running
from gateway.core.errors import GatewayError, Kind
from gateway.core.estimate import Cost
from gateway.light_task import Promise
from gateway.ratelimit.memory import MemoryStore
from gateway.ratelimit.model import Decision, Lease, Limited, Outcome, Plan, Rule, Subject, Verdict, decide
from gateway.ratelimit.plan import Plans, Replaced, RuleIndex, scaled
from gateway.ratelimit.store import Settlement, Store, StoreDown

FREE = Cost()
_RENEWED, _RENEWED_EVERY = 200, 0.01
"""Leases renewed at once, and the pause after them in seconds, so that admissions do not queue behind thousands."""
_MODES = {True: "strict", False: "local"}
_CLOSED_RETRY = 5.0
"""Seconds that a closed rule tells clients to wait. The store is probed again within it."""
_REPLACED_SLOTS = 600.0
"""The longest time in seconds that slots of a replaced rule count. Most requests that hold them have ended by then."""
_GENERATIONS = 8
"""The number of reloads whose replaced rules are remembered."""
_CROWDS = 10_000
_PLENTY = 16
_SLOT_SPREAD = 5.0
"""The most by which the waits for a slot are spread, in seconds."""


class Limiter:
    """Enforces `rules` by counters in a store. Raises ValueError if the rules do not fit the store's layout.

    lease_ttl   seconds that a slot lives without renewal; it is renewed three times in it or more often
    heartbeat   seconds between two heartbeats
    on_change   called with ("strict" | "degraded", reason) after each change, for one log line and a gauge
    on_alone    called with (requests, seconds): the number of requests that this process decided alone in that time; at
                most once a heartbeat while the store is up, and when it has come back
    refused     rule name -> requests that it refused
    shadowed    rule name -> requests that a shadow rule would have refused
    alone       requests that this process decided alone, because the store was down or did not answer in time
    """

    def __init__(
        self,
        rules: Sequence[Rule] | RuleIndex,
        store: Store,
        *,
        lease_ttl: float = 30.0,
        heartbeat: float = 5.0,
        on_change: Callable[[str, str], None] | None = None,
        on_alone: Callable[[int, float], None] | None = None,
        local: MemoryStore | None = None,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self.shadowed: Counter[str] = Counter()
        self.alone = 0
        # By the names of all rules that were asked, and whether the store decided.
        self._admitted: Counter[tuple[tuple[str, ...], bool]] = Counter()
        self._others: Counter[tuple[str, str, str]] = Counter()
        self._store = store
        self._local = local or MemoryStore()
        self._index = RuleIndex.of(rules)
        self._replaced: list[Replaced] = []
        self._next_end = inf  # when replaced rules are to be forgotten
        self._plans = Plans(self._index, store.layout)
        self._crowds: dict[bytes, tuple[int, float]] = {}  # counter -> refusals, until when their clients were told
        self._alone_told = (0, monotonic())  # the count as last told, and when
        self._lease_ttl = lease_ttl
        self._every = min(heartbeat, lease_ttl / 3)
        self._on_change = on_change
        self._on_alone = on_alone
        self._prefix = secrets.token_hex(6)
        self._count = 0
        self._live: dict[str, ref[Lease]] = {}  # with slots; a lease that its holder dropped must not be renewed
        self._beating: Task[None] | None = None
        store.changed = self._changed

    @property
    def state(self) -> str:
        """ "strict": the store decides. "degraded": it is down."""
        return "strict" if self._store.up else "degraded"

    @property
    def reason(self) -> str:
        """Why the store is down, or ""."""
        return self._store.reason

    @property
    def replicas(self) -> int:
        """Live processes on the same counters, as last known."""
        return self._store.replicas

    @property
    def in_flight(self) -> int:
        """Leases of this process that hold slots."""
        return len(self._live)

    @property
    def decisions(self) -> Mapping[tuple[str, str, str], int]:
        """Decisions by (rule, mode, decision). A mode is "strict" (the store decided), "local" (this process alone) or
        "closed" (refused because the store is down); a decision is "admitted", "refused" or "shadowed"."""
        found = Counter(self._others)
        for (names, strict), count in self._admitted.items():
            for name in names:
                found[name, _MODES[strict], "admitted"] += count
        for (name, mode, decision), count in self._others.items():
            if decision == "shadowed":
                found[name, mode, "admitted"] -= count
        return +found

    def use(self, rules: Sequence[Rule] | RuleIndex) -> None:
        """Replaces the rules. A rule with the same kind, window, name and scope as before keeps its counters. Any other
        rule begins with empty counters, so the rule that it replaces is enforced beside it for one more window (the
        shorter of the two): a reload admits nobody twice. Raises ValueError."""
        index = RuleIndex.of(rules)
        if index is self._index:
            return
        self._plans = Plans(index, self._store.layout)
        now = monotonic()
        old, self._index = self._index, index
        self._replaced = [*self._replaced, Replaced(old, index, now, _REPLACED_SLOTS)][-_GENERATIONS:]
        self._retire(now)

    def _retire(self, now: float) -> None:
        """Forgets replaced rules whose time is over."""
        self._replaced = [one for one in self._replaced if one.ends and one.ends[-1] > now]
        self._next_end = min((end for one in self._replaced for end in one.ends if end > now), default=inf)
        self._plans = Plans(self._index, self._store.layout, self._replaced, now)

    async def start(self) -> None:
        """Connects, and sends heartbeats. Does not raise if the store is down: it starts degraded and recovers by
        itself."""
        await self._local.start(self._lease_ttl)
        await self._store.start(self._lease_ttl)
        self._beating = asyncio.create_task(self._beat())

    async def connect(self) -> None:
        """As `start`, without heartbeats, for a caller that only reads: it is soon not counted as a replica."""
        await self._store.start(self._lease_ttl)

    async def close(self) -> None:
        """Sends the remaining settlements and signs off, so that the other replicas' shares grow at once."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
        await self._store.close()

    def reserve(self, subject: Subject, cost: Cost = FREE, early: Lease | None = None) -> Coroutine[Any, Any, Lease]:
        """Charges the request on all of its limits but those of `early`, or raises and charges none.

        Raises `Limited` (LIMITED, with the decision), or GatewayError(OVERLOADED) if the store is down and a rule fails
        closed. A cancelled call returns what it may have been granted.
        """
        return self._reserve(self._plans.of(subject, () if early is None else early.plan.keys), cost)

    def reserve_early(self, subject: Subject) -> Coroutine[Any, Any, Lease]:
        """As `reserve`, on the limits that count a request whatever it holds and whatever model it names. subject has
        no model."""
        return self._reserve(self._plans.early(subject), FREE)

    async def _reserve(self, plan: Plan, cost: Cost) -> Lease:
        self._count = count = self._count + 1
        lease_id = f"{self._prefix}{count}"
        if not plan.rules:
            return Lease(lease_id, plan, (), (-1, 0), self._store.up)
        costs = self._costs(plan, cost) if plan.tokens else plan.costs
        if not self._store.up:
            return self._reserve_alone(plan, cost, lease_id)
        store = self._store
        try:
            answer = store.admit(plan, costs, lease_id)
            raw: Verdict = await answer if isinstance(answer, Promise) else answer
        except StoreDown:
            return self._reserve_alone(plan, cost, lease_id)
        except asyncio.CancelledError:
            # The store undoes what it grants to a waiter that has left. This one left between the answer and its own
            # resumption.
            assert isinstance(answer, Promise)
            if answer.value is not None and answer.value[0] == -1:
                self.settle(Lease(lease_id, plan, costs, answer.value, True), None, "unserved")
            raise
        return self._verdict(plan, costs, raw, lease_id, True)

    def settle(
        self, lease: Lease, tokens: int | None, outcome: Outcome = "finished", *, at_least: bool = False
    ) -> None:
        """Ends a lease: frees its slots and corrects its tokens to what was used. Returns at once and cannot be
        interrupted, so it is safe in `finally`. A second call does nothing.

        tokens is what the request used, input and output; None is unknown and keeps the reservation, and with at_least
        nothing of it is given back. Outcome "unserved" returns everything, the request itself too.
        """
        if lease.settled:
            return
        lease.settled = True
        plan, raw, charged = lease.plan, lease.raw, lease.charged
        settlements: list[Settlement] = list(plan.releases)
        if settlements:
            self._live.pop(lease.id, None)
            if plan.shadows:  # which may have charged nothing
                settlements = [one for one in settlements if raw[4 + 3 * one[0]] >= 0]
        if outcome == "unserved":
            for index, cost in enumerate(charged):
                if index not in plan.slots and raw[4 + 3 * index] >= 0:
                    settlements.append((index, raw[4 + 3 * index], -cost))
        elif tokens is not None:
            for index, place, _ in plan.tokens:
                entry, delta = raw[place], tokens - charged[index]
                if delta and entry >= 0 and not (at_least and delta < 0):
                    settlements.append((index, entry, delta))
        if not settlements:
            return
        if lease.strict:
            self._store.settle(plan, lease.id, settlements, _scarce(plan, raw, settlements))
            if lease.adopted:
                self._local.settle(plan, lease.id, [one for one in settlements if one[0] in plan.slots])
        else:
            self._local.settle(plan, lease.id, settlements)
            if lease.adopted:
                self._store.settle(plan, lease.id, [one for one in settlements if one[0] in plan.slots])

    async def inspect(self, subject: Subject) -> Decision:
        """The state of every rule of `subject`; charges nothing. Raises GatewayError(OVERLOADED) if the store is
        down."""
        plan = self._plans.of(subject)
        try:
            raw = await self._store.look(plan) if plan.rules else (-1, 0)
        except StoreDown as down:
            raise GatewayError(Kind.OVERLOADED, "the limit store is unavailable", retry_after=_CLOSED_RETRY) from down
        decision = decide(plan, raw, True)
        for index, state in enumerate(decision.states):
            state.used = raw[4 + 3 * index]
        return decision

    async def reset(self, subject: Subject) -> None:
        """Forgets what `subject` used. Requests in flight keep running uncounted. Raises as `inspect`."""
        plan = self._plans.of(subject)
        try:
            if plan.rules:
                await self._store.reset(plan)
        except StoreDown as down:
            raise GatewayError(Kind.OVERLOADED, "the limit store is unavailable", retry_after=_CLOSED_RETRY) from down

    async def flush(self) -> None:
        """Returns when all settlements so far have taken effect; for shutdown and tests."""
        await self._store.flush()

    def _reserve_alone(self, plan: Plan, cost: Cost, lease_id: str) -> Lease:
        self.alone += 1
        for rule in plan.rules:
            if rule.on_redis_failure == "closed" and not rule.shadow:
                self._refuse(rule, "closed")
                raise GatewayError(
                    Kind.OVERLOADED,
                    "the limits of this request cannot be checked right now",
                    code="limits_unavailable",
                    retry_after=_CLOSED_RETRY,
                )
        plan = scaled(plan, self._store.replicas)
        if not plan.rules:
            return Lease(lease_id, plan, (), (-1, 0), False)
        costs = self._costs(plan, cost) if plan.tokens else plan.costs
        return self._verdict(plan, costs, self._local.admit(plan, costs, lease_id), lease_id, False)

    def _costs(self, plan: Plan, cost: Cost) -> Sequence[int]:
        """What each rule is charged. A reservation is bounded by the limit: a request that may use more than all of it
        is admitted while nothing of it is used, and what it uses beyond its reservation becomes a debt. A request is
        refused for good if it surely uses more than the limit, or if its choices may have more tokens together."""
        costs = list(plan.costs)
        tokens, least = cost.tokens, cost.least
        if least > tokens:
            tokens = least
        for index, _, limit in plan.tokens:
            if least > limit and least > (rule := plan.rules[index]).limit and not rule.shadow:
                self._refuse(rule, _MODES[self._store.up])
                raise Limited(
                    Decision(False, rule, None, ()),
                    f"this request needs at least {least} tokens, above the limit '{rule.name}' of {rule.limit} "
                    f"{_per(rule)}",
                    None,
                )
            if cost.field and cost.choices * cost.each > (rule := plan.rules[index]).limit and not rule.shadow:
                self._refuse(rule, _MODES[self._store.up])
                raise Limited(Decision(False, rule, None, ()), _too_many(cost, rule), None, cost.field)
            costs[index] = tokens if tokens < limit else limit
        return costs

    def _verdict(self, plan: Plan, costs: Sequence[int], raw: Verdict, lease_id: str, strict: bool) -> Lease:
        if raw[0] >= 0:
            decision = decide(plan, raw, strict)
            self._refuse(plan.rules[raw[0]], _MODES[strict])
            wait = decision.retry_after_s
            if wait is not None:
                wait += self._spread(plan, raw[0], costs[raw[0]], wait)
            raise Limited(decision, _say(decision, costs[raw[0]], wait or 0.0), wait)
        if plan.shadows:
            for index in plan.shadows:
                if raw[4 + 3 * index] < 0:
                    self.shadowed[plan.rules[index].name] += 1
                    self._others[plan.rules[index].name, _MODES[strict], "shadowed"] += 1
        self._admitted[plan.names, strict] += 1
        lease = Lease(lease_id, plan, costs, raw, strict)
        if plan.slots:
            self._live[lease_id] = ref(lease)
        return lease

    def _refuse(self, rule: Rule, mode: str) -> None:
        self.refused[rule.name] += 1
        self._others[rule.name, mode, "refused"] += 1

    def _spread(self, plan: Plan, index: int, cost: int, wait: float) -> float:
        """Seconds to add to a wait, so that clients refused by one counter do not all return at the moment when there
        is room for one. Each gets a random moment within the time that the clients refused before it need, at most one
        window. A client that waits alone gets the exact moment."""
        key, shape = plan.keys[index], plan.shapes[index]
        now = monotonic()
        count, until = self._crowds.get(key, (0, 0.0))
        if now >= until:
            count = 0
        if plan.rules[index].kind == "concurrency":
            each, most = 1.0 / shape[1], _SLOT_SPREAD
        else:
            most = plan.rules[index].per
            each = most * cost / shape[1]
        more = random() * min(count * each * self._store.replicas, most)
        if len(self._crowds) >= _CROWDS and key not in self._crowds:
            for old in list(self._crowds)[: _CROWDS // 2]:
                del self._crowds[old]
        self._crowds[key] = (count + 1, max(until, now + wait + more))
        return more

    def _tell_alone(self) -> None:
        count, since = self._alone_told
        now = monotonic()
        self._alone_told = (self.alone, now)
        if self.alone > count and self._on_alone is not None:
            self._on_alone(self.alone - count, now - since)

    def _changed(self, up: bool, reason: str) -> None:
        self._tell_alone()
        if up:
            self._renew(list(self._live))
        else:
            # Running requests hold slots, which this process must keep counting.
            held = [lease for one in self._live.values() if (lease := one()) is not None and lease.strict]
            for lease in held:
                plan = scaled(lease.plan, self._store.replicas)
                if plan.slots:
                    self._local.renew([(lease.id, plan)])
                    lease.adopted = True
        if self._on_change is not None:
            self._on_change("strict" if up else "degraded", reason)

    def _renew(self, ids: Iterable[str]) -> None:
        """Renews the leases that still hold slots. A released slot must not be taken again."""
        leases = []
        for id in ids:
            one = self._live.get(id)
            lease = one() if one is not None else None
            if lease is None:
                self._live.pop(id, None)
            else:
                leases.append(lease)
        self._store.renew([(lease.id, lease.plan) for lease in leases])
        if self._store.up:
            for lease in leases:
                lease.adopted = lease.adopted or not lease.strict
        again = [lease for lease in leases if lease.adopted or not lease.strict]
        self._local.renew([(lease.id, scaled(lease.plan, self._store.replicas)) for lease in again])

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
        await self._store.beat()
        await self._local.beat()
        if self._store.up:
            self._tell_alone()
        now = monotonic()
        if now >= self._next_end:
            self._retire(now)


def _scarce(plan: Plan, raw: Verdict, settlements: Sequence[Settlement]) -> bool:
    """Whether somebody may soon need what is given back. Nobody does if, when the request was admitted, each of the
    counters had half of its limit left and room for `_PLENTY` more."""
    for index, _, _ in settlements:
        left = raw[2 + 3 * index]
        if left < _PLENTY or left * 2 < plan.shapes[index][1]:
            return True
    return False


def _too_many(cost: Cost, rule: Rule) -> str:
    return (
        f"'{cost.field}' asks for {cost.choices} outputs of up to {cost.each} tokens each, together more than the "
        f"limit '{rule.name}' of {rule.limit} tokens {_per(rule)}; ask for fewer, or send a smaller cap on the output "
        "(such as max_tokens)"
    )


def _per(rule: Rule) -> str:
    return {60.0: "a minute", 3600.0: "an hour", 86_400.0: "a day"}.get(rule.per, f"in {rule.per:g} s")


def _say(decision: Decision, charge: int, wait: float) -> str:
    """charge is what the limit would have been charged. wait is in seconds, as the client is told."""
    rule, state = decision.rule, decision.violated
    assert rule is not None
    assert state is not None
    if rule.kind == "concurrency":
        return f"limit '{rule.name}' reached: {state.limit} requests in flight; try again when one has ended"
    reserved = f" and this request reserves {charge}" if rule.kind == "tokens" else ""
    return (
        f"limit '{rule.name}' reached: {state.limit} {rule.kind} {_per(rule)}, {state.remaining} left{reserved}; "
        f"try again in {ceil(wait)} s"  # as Retry-After, which says nothing finer
    )
