"""The interface of a store of counters. `gateway.ratelimit.model` describes its values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gateway.light_task import Promise
from gateway.ratelimit.model import Plan, Settlement, Verdict
from gateway.ratelimit.plan import Layout


class StoreDown(Exception):
    """The store cannot decide now. The operation has no effect, or its effect expires by itself."""


class Store(Protocol):
    """A decision is atomic: a request is charged to all counters of its plan or to none.

    layout    where counters are kept
    up        whether it can decide; False at once after a failure
    reason    why it is down, safe to log; "" while up
    replicas  live processes that share the counters, as last known; at least 1
    changed   called with (up, reason) after each change
    """

    layout: Layout
    up: bool
    reason: str
    replicas: int
    changed: Callable[[bool, str], None] | None

    def admit(self, plan: Plan, costs: Sequence[Any], holder: str) -> Verdict | Promise[Verdict]:
        """Decides and charges. costs: of each limit of the plan, `spent.Asked` of a budget. The answer may raise
        `StoreDown`; if its waiter is cancelled, the charge is undone."""

    def settle(
        self, plan: Plan, holder: str, settlements: Sequence[Settlement], admitted: Verdict | None = None
    ) -> None:
        """Settles, after all operations before it, and before all after it. Returns at once; never raises. admitted:
        the store's decision; if it left so much that nobody waits for what is given back, a shared store may learn of
        it later."""

    def renew(self, holders: Sequence[tuple[str, Plan]]) -> None:
        """Extends the concurrency slots of these holders by `ttl`, and takes expired ones again."""

    async def look(self, plan: Plan) -> Verdict:
        """The state of each counter, with the amount used in place of the entry. Raises `StoreDown`."""

    async def reset(self, plan: Plan) -> None:
        """Forgets the counters of `plan`. Raises `StoreDown`."""

    async def start(self, slot_ttl: float) -> None:
        """Connects. slot_ttl is the life of a slot without renewal, in seconds. A store that is down does not raise:
        it starts down and recovers by itself."""

    async def beat(self) -> None:
        """Sends a heartbeat, and learns the number of live processes. Never raises."""

    async def flush(self) -> None:
        """Returns when every operation so far has taken effect, or cannot because the store is down."""

    async def close(self) -> None: ...
