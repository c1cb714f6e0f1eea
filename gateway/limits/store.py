"""The interface of a store of counters. Amounts and verdicts are described in `gateway.limits.model`."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.limits.model import Plan, Verdict
from gateway.limits.plan import Layout

Settlement = tuple[int, int, int]
"""(index of the rule in the plan, entry that was charged, delta): delta < 0 gives back, > 0 charges more; for a
concurrency rule the slot is released and delta is ignored."""


class StoreDown(Exception):
    """The store cannot decide now. The operation has no effect, or one that expires by itself."""


class Store(Protocol):
    """A decision is atomic: a request is charged to all counters of its plan or to none.

    layout    where counters lie
    up        whether decisions can be had; False at once after a failure, without asking again
    reason    why not, in words fit for a log; "" while up
    replicas  live processes that share the counters, as last known; at least 1
    changed   called with (up, reason) after each change
    """

    layout: Layout
    up: bool
    reason: str
    replicas: int
    changed: Callable[[bool, str], None] | None

    def admit(self, plan: Plan, costs: Sequence[int], lease: str) -> Verdict | Future[Verdict]:
        """Decides and charges. The future raises `StoreDown`; cancelling it undoes what it charged."""
        ...

    def settle(self, plan: Plan, lease: str, settlements: Sequence[Settlement]) -> None:
        """Takes effect after whatever was asked before; returns at once, never raises."""
        ...

    def renew(self, leases: Sequence[tuple[str, Plan]]) -> None:
        """Extends the concurrency slots of these leases by `ttl`, and retakes those that had expired."""
        ...

    async def look(self, plan: Plan) -> Verdict:
        """The state of each counter, with the amount used in place of the entry. Raises `StoreDown`."""
        ...

    async def reset(self, plan: Plan) -> None:
        """Forgets the counters of `plan`. Raises `StoreDown`."""
        ...

    async def start(self, lease_ttl: float) -> None:
        """Gets ready; lease_ttl is the life of a slot without renewal, in seconds. Never raises for a store that is
        down: it then starts that way and recovers by itself."""
        ...

    async def beat(self) -> None:
        """Says that this process is alive, and learns how many are. Never raises."""
        ...

    async def flush(self) -> None:
        """Returns when everything asked so far has had its effect, or cannot have it while the store is down."""
        ...

    async def close(self) -> None: ...
