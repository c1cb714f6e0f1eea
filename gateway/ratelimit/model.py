"""Limits, the callers they count, and decisions, as plain values: no store, no clock, no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from gateway.core.errors import GatewayError, Kind

LimitKind = Literal["requests", "tokens", "concurrency"]
Dimension = Literal["key", "team", "model", "address"]
OnFailure = Literal["local", "open", "closed"]

Outcome = Literal["finished", "failed", "cancelled", "unserved"]
"""How an admitted request ended. "unserved": no worker ever saw it, so everything is returned."""

DIMENSIONS: tuple[Dimension, ...] = ("key", "team", "model", "address")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SHORTEST, _LONGEST = 0.1, 31 * 86_400.0
_MOST = 10**12


class Subject(Struct, frozen=True):
    """The caller that a request is counted for. None is unknown: rules whose scope names an unknown dimension do not
    apply.

    key      the key's public id, never its secret
    model    the name after aliases were resolved
    address  an IP address; IPv6 counts by its /64"""

    key: str | None = None
    team: str | None = None
    model: str | None = None
    address: str | None = None


class Rule(Struct, frozen=True, kw_only=True):
    """One limit. Raises ValueError for values out of range.

    name              shown to clients and part of the counter's name: letters, digits, `_ . -`, at most 64
    kind              requests and tokens are counted per window, concurrency is what is in flight
    limit             requests, tokens (input + output), or requests in flight; at least 1
    per               the window in seconds, 0.1 s to 31 days; ignored by concurrency
    burst             the most that may be admitted at once, 1..limit; more is admitted at the rate limit/per. None:
                      limit. Ignored by concurrency
    scope             the dimensions of the subject that have counters of their own; () is one counter for all
    match             dimension -> values that the rule applies to. Of rules with the same name only the first that
                      matches a subject applies, so an exception stands before its default
    shadow            counts what it would refuse, and refuses nothing
    on_redis_failure  local: limit / live replicas, counted in this process; open: admitted; closed: refused with 503
    """

    name: str
    kind: LimitKind
    limit: int
    per: float = 60.0
    burst: int | None = None
    scope: tuple[Dimension, ...] = ("key",)
    match: Mapping[Dimension, Sequence[str]] = {}
    shadow: bool = False
    on_redis_failure: OnFailure = "local"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"limit name {self.name!r} must be 1 to 64 letters, digits, '_', '.' or '-'")
        if not 1 <= self.limit <= _MOST:
            raise ValueError(f"limit '{self.name}': limit must be 1 to {_MOST}")
        if not _SHORTEST <= self.per <= _LONGEST:
            raise ValueError(f"limit '{self.name}': per must be {_SHORTEST} to {_LONGEST:.0f} seconds")
        if self.burst is not None and not 1 <= self.burst <= self.limit:
            raise ValueError(f"limit '{self.name}': burst must be 1 to the limit")
        if len(set(self.scope)) != len(self.scope) or not set(self.scope) <= set(DIMENSIONS):
            raise ValueError(f"limit '{self.name}': scope must be some of {', '.join(DIMENSIONS)}, each once")
        if not set(self.match) <= set(DIMENSIONS):
            raise ValueError(f"limit '{self.name}': match must name some of {', '.join(DIMENSIONS)}")

    def applies(self, subject: Subject) -> bool:
        if any(getattr(subject, one) is None for one in self.scope):
            return False
        return all(getattr(subject, one) in values for one, values in self.match.items())


class RuleState(Struct):
    """One counter as a client may see it.

    remaining  what would be admitted now, never negative; with a burst often less than what the window has left
    reset_s    seconds until all of the limit is free if nothing more is admitted; 0 for concurrency
    used       what the window or the slots hold; -1 unless `Limiter.inspect` asked"""

    rule: Rule
    limit: int
    remaining: int
    reset_s: float
    used: int = -1


class Decision(Struct):
    """A decision, and the state of every applicable rule after it.

    rule           the violated rule with the longest wait, or None
    retry_after_s  seconds until the same request would fit if nothing else came; None if it never fits
    states         rules in configured order; rules that fail open while the store is down are absent
    shadowed       names of the shadow rules that would have refused the request
    strict         False if this process decided alone because the store was down
    """

    admitted: bool
    rule: Rule | None
    retry_after_s: float | None
    states: tuple[RuleState, ...]
    shadowed: tuple[str, ...] = ()
    strict: bool = True

    def tightest(self, kind: LimitKind) -> RuleState | None:
        """The enforced rule of `kind` with the least remaining, for clients' headers, which have room for one."""
        states = [state for state in self.states if state.rule.kind == kind and not state.rule.shadow]
        return min(states, key=lambda state: state.remaining) if states else None

    @property
    def violated(self) -> RuleState | None:
        return next((state for state in self.states if state.rule is self.rule), None)


class Limited(GatewayError):
    """The error for a request over a limit: LIMITED; code is the rule's name. `decision` is for the headers. wait is
    the time that the client is told, in seconds, at least `decision.retry_after_s`; None if the request never fits.
    param is the field by which it never does, if there is one."""

    def __init__(self, decision: Decision, message: str, wait: float | None, param: str | None = None) -> None:
        rule = decision.rule
        assert rule is not None
        super().__init__(Kind.LIMITED, message, param=param, code=rule.name, retry_after=wait)
        self.decision = decision


class Plan(Struct, eq=False):
    """The rules of one subject, ready for a store; parallel tuples. Made by `gateway.ratelimit.plan`.

    keys      the counter of each rule
    shapes    the numbers of each rule, see `gateway.ratelimit.window.Shape`
    tag       the partition of the store that holds all counters
    slots     the indices of the rules of kind concurrency
    shadows   the indices of the shadow rules
    tokens    (index, index of its entry in a verdict, limit) of each rule of kind tokens
    costs     what a request is charged, apart from tokens
    releases  the settlements that free all its slots
    local     (replicas, the plan of one replica alone), once it was needed
    told      a cache for the code that writes headers for clients, see `gateway.ratelimit.gate`
    names     the rules' names
    """

    rules: tuple[Rule, ...]
    keys: tuple[bytes, ...]
    shapes: tuple[tuple[int, ...], ...]
    tag: int = 0
    slots: tuple[int, ...] = ()
    tokens: tuple[tuple[int, int, int], ...] = ()
    shadows: tuple[int, ...] = ()
    costs: tuple[int, ...] = ()
    releases: tuple[tuple[int, int, int], ...] = ()
    local: tuple[int, Plan] | None = None
    told: Sequence[Any] = ()
    names: tuple[str, ...] = ()


Verdict = Sequence[int]
"""What a store answers: [violated, wait] and then, for each rule of the plan, [remaining, reset, entry].

violated  the index of the refusing rule, -1 when admitted, -2 when the store saw the request too late to decide
wait      microseconds until it would fit, 0 when admitted
reset     microseconds, see `RuleState`
entry     the slice that was charged; -1 if none was (refused, or a shadow rule would have refused)
"""


class Lease(Struct, eq=False, weakref=True):
    """An admitted request. Pass it to `Limiter.settle` exactly once, on every exit.

    A lease that is dropped unsettled is no longer renewed, so its slots expire.

    charged  what each rule of the plan was charged
    raw      the store's verdict
    strict   False if this process decided alone
    adopted  its slots are held in both stores
    """

    id: str
    plan: Plan
    charged: Sequence[int]
    raw: Sequence[int]
    strict: bool
    adopted: bool = False
    settled: bool = False

    @property
    def decision(self) -> Decision:
        """The decision. It is computed on demand, because most requests need only a part of it."""
        return decide(self.plan, self.raw, self.strict)

    def tightest(self, kind: LimitKind) -> RuleState | None:
        """As `Decision.tightest`, at a fraction of its cost, for the headers of a success."""
        plan, raw, best = self.plan, self.raw, -1
        for index, rule in enumerate(plan.rules):
            if rule.kind == kind and not rule.shadow and (best < 0 or raw[2 + 3 * index] < raw[2 + 3 * best]):
                best = index
        if best < 0:
            return None
        return RuleState(plan.rules[best], plan.shapes[best][1], raw[2 + 3 * best], raw[3 + 3 * best] / 1e6)


def decide(plan: Plan, raw: Verdict, strict: bool) -> Decision:
    violated = raw[0]
    states = []
    shadowed = []
    for index, rule in enumerate(plan.rules):
        at = 2 + 3 * index
        states.append(RuleState(rule, plan.shapes[index][1], raw[at], raw[at + 1] / 1e6))
        if violated < 0 and raw[at + 2] < 0:
            shadowed.append(rule.name)
    if violated < 0:
        return Decision(True, None, 0.0, tuple(states), tuple(shadowed), strict)
    return Decision(False, plan.rules[violated], raw[1] / 1e6, tuple(states), (), strict)
