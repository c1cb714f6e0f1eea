"""What every row of the scoreboard shares: its table, its verdict, and whether it runs at full length."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import Struct, field

FULL = os.environ.get("FULL", "") not in ("", "0")
"""The scoreboard's own lengths; otherwise what fits into a minute."""

SEED = int(os.environ.get("SEED", "1"))


class Check(Struct):
    """One criterion: what it says, what was measured over how many, and whether it holds. timed: it is about a time,
    which other work on the machine makes longer."""

    what: str
    measured: str
    n: int
    holds: bool
    timed: bool = False

    def __str__(self) -> str:
        return f"  {'ok   ' if self.holds else 'SHORT'} {self.what}: {self.measured} (n={self.n})"


class Findings(Struct):
    """What a row found."""

    checks: list[Check] = field(default_factory=list)

    def check(self, what: str, measured: object, n: int, holds: bool, *, timed: bool = False) -> None:
        """Enters a criterion. It does not hold if nothing was measured."""
        self.checks.append(Check(what, str(measured), n, holds and n > 0, timed))

    def none(self, what: str, found: Sequence[object] | Counter[Any] | int, n: int) -> None:
        """Of `n` there are none. A few of those that were found are shown."""
        self.check(what, (found[:3] if isinstance(found, Sequence) else found) or 0, n, not found)

    def at_most(self, what: str, value: float, most: float, n: int, form: str = ".1f", *, timed: bool = False) -> None:
        """`what` names the bound."""
        self.check(what, f"{value:{form}}", n, value <= most, timed=timed)

    def at_least(self, what: str, value: float, least: float, n: int, form: str = ".1f") -> None:
        """`what` names the bound."""
        self.check(what, f"{value:{form}}", n, value >= least)

    @property
    def holds(self) -> bool:
        return bool(self.checks) and all(check.holds for check in self.checks)


Row = Callable[[Findings], Coroutine[Any, Any, None]]
ROWS: dict[str, tuple[str, Row]] = {}
PARTS = {"B8": "B7", "F12": "F11", "S4": "S2", "S10": "S5", "S11": "S5", "S12": "C1"}
"""Rows of the scoreboard that another one holds."""


def row(name: str, title: str) -> Callable[[Row], Row]:
    """Enters a row in the table. Raises ValueError when the name is taken."""

    def enter(function: Row) -> Row:
        if name in ROWS:
            raise ValueError(f"two rows are called {name}")
        ROWS[name] = (title, function)
        return function

    return enter


@cache
def every_row() -> dict[str, tuple[str, Row]]:
    """The table, once all modules beside this one that enter rows are imported."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if "\n@row(" in path.read_text():
            import_module(f"tests.chaos.{path.stem}")
    return ROWS


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of `values` do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))] if ordered else 0.0
