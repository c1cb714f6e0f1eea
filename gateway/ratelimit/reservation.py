"""An admitted request: what it was charged, and what it is charged in the end. Implements core.ports.Charge."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct

from gateway.core.errors import Kind
from gateway.core.estimate import Cost
from gateway.core.ports import RequestRecord
from gateway.core.usage import Usage
from gateway.ratelimit.model import LimitState, Outcome, Plan, Verdict

if TYPE_CHECKING:
    from gateway.ratelimit.limiter import SubjectLimiter

_OUTCOMES: dict[str, Outcome] = {"ok": "finished", "refused": "failed", "failed": "failed", "cancelled": "cancelled"}

_UNSEEN = frozenset(["deadline_exceeded", Kind.TIMEOUT.value, "upstream_too_large"])
"""Failures after which nobody knows how much a worker produced. Clients can provoke them by a long or large reply."""

_FASTEST = 1000
"""Tokens a second of one output, more than engines on GPUs produce."""

_NONE = Usage(0, 0)


class Reservation(Struct, eq=False, weakref=True):
    """An admitted request. Settle it on every exit; only the first settlement counts. One that is dropped unsettled is
    no longer renewed, so its slots expire.

    cost      what it may use; None: it uses no tokens
    charged   what each limit of the plan was charged
    strict    False if this process decided alone
    admitted  at which second
    early     it was admitted before its body was read, and stays counted: reading took the time that the limit bounds
    adopted   its slots are held in both stores
    """

    limiter: SubjectLimiter
    id: str
    plan: Plan
    cost: Cost | None
    charged: Sequence[int]
    verdict: Verdict
    strict: bool
    admitted: float = 0.0
    early: bool = False
    adopted: bool = False
    settled: bool = False

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
        outcome = _OUTCOMES[record.outcome] if record.attempts else "unserved"
        used = _NONE if self.cost is None else _used(record, outcome, self.cost.prompt)
        if used is None:
            assert self.cost is not None
            most = _at_most(self.cost, monotonic() - self.admitted)
            self.limiter.settle(self, Usage(0, most), outcome, at_least=True)
        else:
            self.limiter.settle(self, used, outcome)

    def withdraw(self) -> None:
        """See core.ports.Charge."""
        if not self.early:
            self.limiter.settle(self, None, "unserved")


def _at_most(cost: Cost, seconds: float) -> int:
    """The tokens of a request of which nobody counted any: all that it may use, or what a worker can produce in the
    `seconds` since it was admitted. The worker stops when the request ends. At least the reservation is charged, which
    is less than all that it may use if the limit is."""
    return min(cost.tokens, cost.prompt + cost.choices * ceil(seconds * _FASTEST))


def _used(record: RequestRecord, outcome: Outcome, prompt: int) -> Usage | None:
    """The tokens to charge; None is unknown.

    If the client of a plain reply leaves, or the reply takes too long or is too large, nobody knows what the worker
    produced. Such a request keeps its reservation, and may be charged more; otherwise clients could avoid every limit
    this way. A stream is relayed as it is produced, so one that its client left before the first token is charged its
    prompt. Any other failure without output costs nothing.
    """
    usage = record.usage
    if outcome == "failed" and (usage is None or not usage.output):
        return None if record.code in _UNSEEN else _NONE
    if usage is None or (usage.input is None and usage.output is None):
        return Usage(prompt, 0) if outcome == "cancelled" and record.stream else None
    return usage
