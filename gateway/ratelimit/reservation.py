"""An admitted request: what it was charged, and what it is charged in the end. Implements core.ports.Charge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET, Struct

from gateway.core.charged import NOTHING, outcome_of, produced_at_most, used
from gateway.core.estimate import Cost
from gateway.core.ports import RequestRecord
from gateway.core.usage import Usage
from gateway.ratelimit.model import LimitState, Plan, Verdict

if TYPE_CHECKING:
    from gateway.ratelimit.limiter import SubjectLimiter


class Reservation(Struct, eq=False, weakref=True):
    """An admitted request. Settle it on every exit; only the first settlement counts. One that is dropped unsettled is
    no longer renewed, so its slots expire.

    cost      what it may use; None: it uses no tokens
    charged   what each limit of the plan was charged; until that is decided, what it is asked for
    strict    False if this process decided alone
    early     it was admitted before its body was read, and stays counted: reading took the time that the limit bounds
    adopted   its slots are held in both stores
    shared    the plan of the shared store, if this process decided alone and there are budgets
    """

    limiter: SubjectLimiter
    id: str
    plan: Plan
    cost: Cost | None
    charged: Sequence[int]
    verdict: Verdict
    strict: bool
    early: bool = False
    adopted: bool = False
    settled: bool = False
    shared: Plan | None = None

    @property
    def states(self) -> tuple[LimitState, ...]:
        """In configured order. Limits that fail open while the store is down are absent."""
        return self.plan.states(self.verdict)

    def settle(self, record: RequestRecord) -> None:
        """See core.ports.Charge."""
        if self.settled:
            return
        if self.early:
            self.limiter.settle(self, None)
            return
        outcome, money = outcome_of(record), 0 if record.cost is UNSET else record.cost
        found = NOTHING if self.cost is None else used(record, self.cost.prompt)
        # No output is that of a cache: no worker was asked.
        if self.plan.expects and outcome == "finished" and self.cost is not None and found and found.output:
            self.limiter.expectations.learn(self.cost, record.key, record.model, found.output)
        if found is None:
            assert self.cost is not None
            most = _at_most(self.cost, record.upstream_ms / 1000)
            self.limiter.settle(self, Usage(0, most), outcome, at_least=True, money=money)
        else:
            self.limiter.settle(self, found, outcome, money=money)

    def withdraw(self) -> None:
        """See core.ports.Charge."""
        if not self.early:
            self.limiter.settle(self, None, "unserved")


def _at_most(cost: Cost, seconds: float) -> int:
    """The tokens of a request of which nobody counted any: all that it may use, or what a worker can produce in the
    `seconds` that workers had it. At least the reservation is charged, which is less than all that it may use if the
    limit is."""
    return min(cost.tokens, cost.prompt + produced_at_most(cost.choices, seconds))
