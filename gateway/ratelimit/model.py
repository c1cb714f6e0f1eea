"""Limits, the callers they count, and what stores answer, as plain values: no store, no clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from time import time
from typing import Any, get_args

from msgspec import Struct

from gateway.config import Limit
from gateway.config.sharing import Dimension
from gateway.core.errors import GatewayError, Kind
from gateway.ratelimit.kinds import KINDS, BudgetRule, LimitKind
from gateway.ratelimit.window import Counted, Shape

DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)


class Subject(Struct, frozen=True):
    """The caller that a request is counted for. None is unknown: limits whose scope names an unknown dimension do not
    apply.

    key      the key's public id, never its secret
    model    the name after aliases were resolved
    address  an IP address; IPv6 counts by its /64
    end_user  as in the record of a request"""

    key: str | None = None
    team: str | None = None
    model: str | None = None
    address: str | None = None
    end_user: str | None = None


class Verdict(Struct, array_like=True):
    """The answer of a store.

    wait_us   microseconds until the request may fit, 0 when admitted
    latest_us  microseconds until it would fit although no running request and no lease ended, by the same limit
    violated  the index of the refusing limit in the plan; ADMITTED, or LATE: the store saw the request too late
    counters  one for each limit of the plan
    name      under which the request is counted, if not under that which it was asked for; else empty
    """

    violated: int
    wait_us: int
    counters: list[Counted]
    latest_us: int = 0
    name: str = ""


ADMITTED, LATE = -1, -2
UNLIMITED = Verdict(ADMITTED, 0, [])


class Settlement(Struct, array_like=True, gc=False):
    """The correction of one charge. index: of the limit in its plan. entry: that was charged. delta < 0 refunds, > 0
    charges more; a slot is released whatever it is. held: what the request had reserved."""

    index: int
    entry: int
    delta: int
    held: int = 0


class LimitState(Struct):
    """One counter as clients and operators see it: `Counted`, with the limit. used: -1 unless `inspect` asked."""

    rule: Limit
    limit: int
    remaining: int
    reset_s: float
    used: int = -1


class Limited(GatewayError):
    """The error for a request over a limit: LIMITED, or QUOTA if a budget is spent; code is the limit's name.

    violated  the state of the limit with the longest wait; None if the request never fits
    states    of all limits of the request, in configured order
    fits_s    seconds until the request may fit if nothing else came; `retry_after`, which the client gets, is at
              least that much. None if it never fits
    param     the field by which it never does, if there is one
    """

    def __init__(
        self,
        rule: Limit,
        message: str,
        states: tuple[LimitState, ...] = (),
        fits_s: float | None = None,
        spread_s: float = 0.0,
        param: str | None = None,
        kind: Kind = Kind.LIMITED,
    ) -> None:
        wait = None if fits_s is None else fits_s + spread_s
        super().__init__(kind, message, param=param, code=rule.name, retry_after=wait)
        self.violated = next((state for state in states if state.rule is rule), None)
        self.states = states
        self.fits_s = fits_s


class LimitHeaders(Struct):
    """The headers about one limit of a plan. They are kept, because all requests that one call to the store decides
    have the same `reset`.

    index      of the limit in the plan
    limit      the header of the limit
    remaining  the name of that of what remains
    reset      the name of that of the time
    ms         the time that is in `resets`
    resets     the header with the time
    """

    index: int
    limit: tuple[bytes, bytes]
    remaining: bytes
    reset: bytes
    ms: int = -1
    resets: tuple[bytes, bytes] = (b"", b"")


class Plan(Struct, eq=False):
    """The limits of one subject, ready for a store. Made by `gateway.ratelimit.plan`; `rules`, `keys`, `shapes` and
    `costs` are parallel, and all indices are theirs.

    keys      the counter of each limit
    tag       the partition of the store that holds all counters
    slots     those of requests in flight
    measured  those whose charge depends on the tokens of the request: (index, kind, limit, whether it reserves what is
              expected)
    sums      those of money
    before    for each of them the counter whose debt it begins with, if it `owes`, else nothing
    shadows   those that refuse nothing
    expects   some of them reserve what is expected
    costs     what a request is charged; 0 if measured
    releases  the settlements that free all its slots
    local     (replicas, the plan of one replica alone), once it was needed
    headers   a cache for `gateway.ratelimit.http`
    names     the limits' names
    admitted  a limiter's counts of requests with these names
    demand    a cache for `gateway.ratelimit.redis.leases`
    """

    rules: tuple[Limit, ...] = ()
    keys: tuple[bytes, ...] = ()
    shapes: tuple[Shape, ...] = ()
    tag: int = 0
    slots: tuple[int, ...] = ()
    measured: tuple[tuple[int, LimitKind, int, bool], ...] = ()
    sums: tuple[int, ...] = ()
    shadows: tuple[int, ...] = ()
    expects: bool = False
    costs: tuple[int, ...] = ()
    releases: tuple[Settlement, ...] = ()
    local: tuple[int, Plan] | None = None
    headers: Sequence[LimitHeaders] | None = None
    names: tuple[str, ...] = ()
    admitted: list[int] | None = None
    demand: Any = None
    before: tuple[bytes, ...] = ()

    @classmethod
    def of(
        cls,
        rules: Sequence[Limit],
        keys: Sequence[bytes],
        shapes: tuple[Shape, ...],
        tag: int,
        before: Mapping[bytes, bytes] = {},  # never changed
    ) -> Plan:
        """before: counter -> the one whose debt it begins with."""
        kinds = [KINDS[rule.kind] for rule in rules]
        slots = tuple(index for index, kind in enumerate(kinds) if kind.in_flight)
        return cls(
            tuple(rules),
            tuple(keys),
            shapes,
            tag,
            slots,
            tuple(
                (index, kind, shapes[index].limit, rules[index].reserve == "expected")
                for index, kind in enumerate(kinds)
                if kind.measured and not kind.adds_up
            ),
            tuple(index for index, kind in enumerate(kinds) if kind.adds_up),
            tuple(index for index, rule in enumerate(rules) if rule.shadow),
            any(rule.reserve == "expected" and kind.measured for rule, kind in zip(rules, kinds, strict=True)),
            tuple(0 if kind.measured else 1 for kind in kinds),
            tuple(Settlement(index, 0, 0) for index in slots),
            names=tuple(rule.name for rule in rules),
            before=tuple(
                before[key] if shape.owes else b""
                for key, shape in zip(keys, shapes, strict=True)
                if shape.counter == 2
            ),
        )

    def charged(self, costs: Sequence[Any], counters: Sequence[Counted]) -> list[int]:
        """The charge on each limit of a request that asked for `costs`; of budgets that refused it the least."""
        found = list(costs)
        for index in self.sums:
            found[index] = counters[index].charged if counters[index].entry >= 0 else costs[index].least
        return found

    def states(self, verdict: Verdict) -> tuple[LimitState, ...]:
        return tuple(
            LimitState(rule, shape.limit, max(counted.remaining, 0), _resets_s(rule, counted))
            for rule, shape, counted in zip(self.rules, self.shapes, verdict.counters, strict=True)
        )


def _resets_s(rule: Limit, counted: Counted) -> float:
    if not isinstance(rule, BudgetRule):
        return counted.reset_us / 1e6
    now = time()
    ends = rule.calendar.ends(now)
    return 0.0 if ends == inf else ends - now


def tightest(states: Sequence[LimitState], kind: str) -> LimitState | None:
    """The enforced limit of `kind` with the least remaining, for clients' headers, which have room for one."""
    found = [state for state in states if state.rule.kind == kind and not state.rule.shadow]
    return min(found, key=lambda state: state.remaining) if found else None
