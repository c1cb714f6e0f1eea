"""Amounts and periods of LiteLLM's budgets in the gateway's terms."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

from gateway.cli.importing.drafts import Draft

_PERIODS = ((1, "day"), (7, "week"), (31, "month"))
_UNITS = {"s": 1 / 86_400, "m": 1 / 1440, "h": 1 / 24, "d": 1.0, "w": 7.0, "mo": 30.0}


def period(duration: str | None) -> tuple[str, bool]:
    """The calendar's period for a duration of LiteLLM's, such as 30d, and whether it is the same. One that the calendar
    lacks gets the next longer one, which is stricter. None is for ever."""
    if duration is None:
        return "total", True
    found = re.match(r"(\d{1,9}) ?(mo|[smhdw])\Z", duration)
    if found is None:
        return "total", False
    days = int(found[1]) * _UNITS[found[2]]
    for most, name in _PERIODS:
        if days <= most:
            return name, days in (1, 7, 30, 31)
    return "total", False


def amount(number: object, times: int = 1) -> str | None:
    """An amount of money with the nine decimals that it may have."""
    if number is None:
        return None
    try:
        return f"{round(Decimal(str(number)) * times, 9).normalize():f}"
    except InvalidOperation:  # beyond what an amount may be, which is a fault of the draft
        return str(number)


def nano(number: object) -> int:
    """An amount of money in billionths, as records have it; 0 for what is none. No amount may be larger."""
    try:
        found = Decimal(str(number))
        return int(min(max(found, Decimal(0)), Decimal(9_000_000)) * 10**9)
    except (InvalidOperation, ValueError):
        return 0


def add_budget(draft: Draft, where: str, entry: dict[str, Any], most: object, duration: str | None) -> None:
    per, same = period(duration)
    if not same:
        draft.left_out(f"{where}.budget_duration", f"has no counterpart: the budget is for a {per}, which is stricter")
    draft.item("budgets", {**entry, "amount": amount(most), "per": per})
