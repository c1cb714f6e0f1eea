"""Days, weeks and months of the calendar in a time zone."""

from __future__ import annotations

from datetime import date, datetime, timedelta, tzinfo
from math import inf

from msgspec import Struct

from gateway.config.money import Period

_DAYS: dict[Period, int] = {"day": 1, "week": 7, "month": 31, "total": 3650}


class Calendar(Struct, frozen=True):
    """Periods that follow each other without a gap. Weeks are those of ISO 8601; `total` is one that never ends."""

    per: Period
    zone: tzinfo

    @property
    def days(self) -> int:
        """The most days of a period."""
        return _DAYS[self.per]

    def label(self, now: float) -> str:
        """The period of a Unix second: 2026-11-26, 2026-W48, 2026-11, or nothing."""
        return self._label(datetime.fromtimestamp(now, self.zone).date())

    def label_before(self, now: float) -> str | None:
        """The period before that one; None if there is none."""
        day = datetime.fromtimestamp(now, self.zone).date()
        if self.per == "total":
            return None
        return self._label(day - timedelta(days=day.day if self.per == "month" else self.days))

    def _label(self, day: date) -> str:
        if self.per == "week":
            year, week, _ = day.isocalendar()
            return f"{year}-W{week:02}"
        return {"day": f"{day:%Y-%m-%d}", "month": f"{day:%Y-%m}"}.get(self.per, "")

    def ends(self, now: float) -> float:
        """The Unix second at which that period ends."""
        if self.per == "total":
            return inf
        day = datetime.fromtimestamp(now, self.zone).date()
        if self.per == "month":
            day = (day.replace(day=1) + timedelta(days=31)).replace(day=1)
        else:
            day += timedelta(days=7 - day.weekday() if self.per == "week" else 1)
        return datetime(day.year, day.month, day.day, tzinfo=self.zone).timestamp()
