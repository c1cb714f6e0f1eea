"""The page of spending: a month by team, key, model and day, what moved, and who is near a budget."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from heapq import nlargest
from typing import Any

from gateway.auth import Admin
from gateway.config.kinds import zone_of
from gateway.config.money import Spend
from gateway.core.errors import GatewayError
from gateway.core.money import shown
from gateway.observe.ledger import Dimension, Ledger, Sums
from gateway.observe.spending import days_of, named
from gateway.ratelimit import BudgetRule, Subject, SubjectLimiter

_TABLES: tuple[Dimension, ...] = ("key", "team", "model")
_MOST_ROWS, _MOST_MOVERS = 100, 10
_WEEK = 7
_REMEMBERED, _MOST_CALLERS = 10_000, 500
"""Callers whose sums are kept while days are read, and those whose budgets are looked up: those that spent most."""
_MOST_NEAR, _NEAR = 50, 0.5
"""Budgets that are shown, and the share of a budget from which on it is."""


class Overview:
    """One month. Its days are read one after the other, so that the rows of one are in memory at once."""

    def __init__(self, month: str | None, spend: Spend, admin: Admin) -> None:
        """month: as 2026-11; None: this one. admin: sees it. Raises `spending.Wrong`."""
        self._admin = admin
        self._days = days_of(month, datetime.now(zone_of(spend.time_zone)).date())
        self._currency = spend.currency or ""
        self._total = Sums()
        self._by: dict[Dimension, dict[str, Sums]] = {one: {} for one in ("team", "key", "model", "day")}
        self._moved: dict[tuple[Dimension, str], list[int]] = {}  # nano of the last week, and of the one before
        self._callers: dict[tuple[str, ...], int] = {}

    async def read(self, ledger: Ledger, limiter: SubjectLimiter | None) -> dict[str, Any]:
        """The page's JSON; costs are text, as in reports. Raises `ledger.Unavailable`."""
        weeks = [self._days[-1] - timedelta(days=number) for number in range(2 * _WEEK)]
        by_user = limiter is not None and limiter.counts_end_users
        for day in sorted({*self._days, *weeks}):
            rows = self._visible(await ledger.report([day], _TABLES))
            if day in weeks:
                self._move(weeks.index(day) // _WEEK, rows.items())
            if day in self._days:
                self._add(day.isoformat(), rows.items())
                users = self._visible(await ledger.report([day], (*_TABLES, "end_user"))) if by_user else rows
                self._call(users.items())
        return {
            "currency": self._currency,
            "from": self._days[0].isoformat(),
            "to": self._days[-1].isoformat(),
            "total": named(self._total),
            "by": {name: _table(name, found) for name, found in self._by.items()},
            "movers": self._movers(),
            "budgets": [] if limiter is None else await self._near(limiter),
        }

    async def _near(self, limiter: SubjectLimiter) -> list[dict[str, Any]] | None:
        """Budgets of which much is spent, the most first. None while the store cannot be read."""
        found: dict[tuple[str, ...], dict[str, Any]] = {}
        for key, team, model, *user in _most(self._callers, _MOST_CALLERS):
            subject = Subject(key, team or None, model, None, (user[0] or None) if user else None)
            try:
                rows = await budgets(limiter, subject, self._admin)
            except GatewayError:
                return None
            found |= {(row["budget"], *row["of"].values()): row for row in rows if row["share"] >= _NEAR}
        return nlargest(_MOST_NEAR, found.values(), key=lambda row: row["share"])

    def _visible(self, rows: dict[tuple[str, ...], Sums]) -> dict[tuple[str, ...], Sums]:
        team = _TABLES.index("team")
        return {names: sums for names, sums in rows.items() if self._admin.may(names[team] or None)}

    def _add(self, day: str, rows: Iterable[tuple[tuple[str, ...], Sums]]) -> None:
        for names, sums in rows:
            self._total.add(*sums.figures)
            for dimension, name in (*zip(_TABLES, names, strict=True), ("day", day)):
                self._by[dimension].setdefault(name, Sums()).add(*sums.figures)

    def _move(self, week: int, rows: Iterable[tuple[tuple[str, ...], Sums]]) -> None:
        for names, sums in rows:
            for dimension, name in zip(_TABLES, names, strict=True):
                self._moved.setdefault((dimension, name), [0, 0])[week] += sums.cost

    def _call(self, rows: Iterable[tuple[tuple[str, ...], Sums]]) -> None:
        for names, sums in rows:
            self._callers[names] = self._callers.get(names, 0) + sums.cost
        if len(self._callers) > 2 * _REMEMBERED:
            self._callers = {name: self._callers[name] for name in _most(self._callers, _REMEMBERED)}

    def _movers(self) -> list[dict[str, Any]]:
        """The largest changes of one week's costs to the next."""
        found = nlargest(_MOST_MOVERS, self._moved.items(), key=lambda one: abs(one[1][0] - one[1][1]))
        return [
            {"dimension": dimension, "name": name, "before": shown(before), "now": shown(now)}
            for (dimension, name), (now, before) in found
            if now != before
        ]


def _most(callers: dict[tuple[str, ...], int], count: int) -> list[tuple[str, ...]]:
    return nlargest(count, callers, key=lambda one: callers[one])


def _table(dimension: Dimension, found: dict[str, Sums]) -> dict[str, Any]:
    """The rows with the highest costs, but days in their order; others: how many there are besides."""
    names = sorted(found) if dimension == "day" else sorted(found, key=lambda name: (-found[name].cost, name))
    rows = [{"name": name, **named(found[name])} for name in names[:_MOST_ROWS]]
    return {"rows": rows, "others": len(names) - len(rows)}


async def budgets(limiter: SubjectLimiter, subject: Subject, admin: Admin) -> list[dict[str, Any]]:
    """The budgets that count `subject`, with what is spent of them and left; amounts are text. Those that other teams
    spend, too, are for an admin of all teams. Raises GatewayError if the store cannot be read."""
    return [
        {
            "budget": rule.name,
            "of": {one: getattr(subject, one) for one in rule.scope},
            "used": shown(state.used),
            "left": shown(max(0, state.limit - state.used)),
            "amount": shown(state.limit),
            "share": round(state.used / state.limit, 4) if state.limit else 1.0,
            "per": rule.calendar.per,
        }
        for state in await limiter.inspect(subject)
        if isinstance(rule := state.rule, BudgetRule) and (admin.teams is None or {"key", "team"} & {*rule.scope})
    ]
