"""Reports of what was spent: by day, key, team, model and end user, as a table, CSV or JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from typing import Any, get_args

from gateway.core.money import shown
from gateway.observe.ledger import Dimension, Ledger, Sums

DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
FIGURES = ("requests", "input_tokens", "cached_tokens", "output_tokens", "cost")


class Wrong(ValueError):
    """A report that cannot be made. The text says why, and repeats nothing of what was asked."""


class Report:
    """rows: the values of `by` with their sums, the highest cost first, but days in their order."""

    def __init__(self, days: Sequence[date], by: Sequence[Dimension], currency: str, found: Mapping[Any, Sums]) -> None:
        self.days = days
        self.by = by
        self.currency = currency
        order = by.index("day") if "day" in by else None
        self.rows = sorted(
            found.items(), key=lambda row: ("" if order is None else row[0][order], -row[1].cost, row[0])
        )
        self.total = Sums()
        for sums in found.values():
            self.total.add(*sums.figures)

    def json(self) -> dict[str, Any]:
        """Costs are text, in the currency: a JSON number may be read as a float."""
        return {
            "currency": self.currency,
            "from": self.days[0].isoformat(),
            "to": self.days[-1].isoformat(),
            "rows": [{**dict(zip(self.by, row, strict=True)), **named(sums)} for row, sums in self.rows],
            "total": named(self.total),
        }

    def csv(self) -> str:
        """A line of names, then a line for each row; without a total, so that a sheet can add up."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow((*self.by, *FIGURES, "currency"))
        for row, sums in self.rows:
            lines.writerow((*map(_harmless, row), *named(sums).values(), self.currency))
        return text.getvalue()

    def table(self) -> list[tuple[str, ...]]:
        """Rows for a terminal: the names, a row for each, the total."""
        lines: list[tuple[str, ...]] = [(*self.by, *FIGURES)]
        for row, sums in [*self.rows, (("total", *("" for _ in self.by[1:])), self.total)]:
            lines.append((*(value or "-" for value in row), *map(str, named(sums).values())))
        return lines


async def make(ledger: Ledger, by: str, month: str | None, currency: str, zone: tzinfo) -> Report:
    """The report of a month (`2026-11`; None: this one). by: dimensions apart by commas. Raises `Wrong`, and
    `ledger.Unavailable`."""
    dimensions = _dimensions(by)
    days = days_of(month, datetime.now(zone).date())
    return Report(days, dimensions, currency, await ledger.report(days, dimensions))


def days_of(month: str | None, today: date) -> list[date]:
    """The days of `month`, those of this one until `today`. Raises `Wrong`."""
    try:
        first = date.fromisoformat(f"{month}-01") if month is not None else today.replace(day=1)
    except ValueError:
        raise Wrong("the month must be written as 2026-11") from None
    if first > today:
        raise Wrong("the month must not be in the future")
    after = (first + timedelta(days=31)).replace(day=1)
    last = min(after - timedelta(days=1), today)
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]


def _dimensions(by: str) -> list[Dimension]:
    wanted = by.split(",")
    found = [one for one in DIMENSIONS if one in wanted]
    if set(found) != set(wanted) or len(wanted) > len(found):
        raise Wrong(f"must be by some of {', '.join(DIMENSIONS)}, apart by commas")
    return sorted(found, key=wanted.index)


def named(sums: Sums) -> dict[str, Any]:
    """The figures by name, with the cost as text in the currency."""
    return dict(zip(FIGURES, (*sums.figures[:4], shown(sums.cost)), strict=True))


def _harmless(value: str) -> str:
    """A spreadsheet must not take a name for a formula."""
    return f"'{value}" if value[:1] in ("=", "+", "-", "@") else value
