"""The sums of budgets in their present periods, by request records: for a Redis that has lost its counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from time import time

from msgspec import UNSET

from gateway.config import Config
from gateway.core.ports import RequestRecord
from gateway.ratelimit.kinds import BudgetRule
from gateway.ratelimit.model import Plan, Subject
from gateway.ratelimit.plan import Plans
from gateway.ratelimit.report import failure, patient_store
from gateway.ratelimit.rules import Limits
from gateway.ratelimit.store import StoreDown


class RebuiltBudgets:
    """The sums of the budgets of `config`. stored: the keys of the store, each with its limits; teams: its teams. A
    record has no address, so budgets by address are left out."""

    def __init__(
        self, config: Config, stored: Iterable[tuple[str, object]] = (), teams: Iterable[tuple[str, object]] = ()
    ) -> None:
        self._config = config
        self._store = patient_store(config)
        self._plans = Plans(Limits(config, stored, teams=teams).index, self._store.layout)
        self._now = time()
        self._sums: Counter[bytes] = Counter()
        self._found: dict[bytes, Plan] = {}

    def add(self, record: RequestRecord) -> None:
        """Counts a request, whose record is complete."""
        if record.cost is UNSET or not record.cost:
            return
        end_user = None if record.end_user is UNSET else record.end_user
        plan = self._plans.of(Subject(record.key, record.team, record.model, None, end_user))
        for index in plan.sums:
            key, rule = plan.keys[index], plan.rules[index]
            assert isinstance(rule, BudgetRule)
            if rule.calendar.label(record.time) == rule.calendar.label(self._now):
                self._sums[key] += record.cost
                self._found[key] = plan

    async def send(self) -> None:
        """Raises the counters in Redis to the sums: what gateways charge meanwhile stays, and a second time changes
        nothing. Raises `StoreDown`, which names the server."""
        await self._store.start(0.0)
        try:
            for plan in dict.fromkeys(self._found.values()):
                await self._store.raise_budgets(plan, [self._sums[plan.keys[index]] for index in plan.sums])
        except StoreDown as down:
            raise StoreDown(failure(self._config, down)) from None
        finally:
            await self._store.close()
