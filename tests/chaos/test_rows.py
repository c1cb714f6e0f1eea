"""The rows that are quick run with every test run; all of them by `make chaos`."""

from __future__ import annotations

import pytest

from tests.chaos.__main__ import main
from tests.chaos.limits import Admit, fullest
from tests.chaos.row import ROWS, Findings, percentile
from tests.repo.tree import ROOT

QUICK = ("S1", "S6")


@pytest.mark.parametrize("name", QUICK)
async def test_row(name: str) -> None:
    findings = Findings()
    await ROWS[name][1](findings)
    # Times are for `make chaos`, on a machine that does nothing else.
    short = [
        check for check in findings.checks if not check.holds and "ms " not in check.what and "time" not in check.what
    ]
    assert not short, "\n".join(map(str, short))


def test_a_row_that_measured_nothing_is_short() -> None:
    findings = Findings()
    assert not findings.holds
    findings.check("nothing", 0, 0, True)
    assert not findings.holds


def test_every_row_is_on_the_page_and_an_unknown_one_is_refused() -> None:
    page = (ROOT / "docs" / "chaos.md").read_text()
    assert [name for name in ROWS if f"| {name}" not in page] == []
    assert main(["nothing"]) == 2


def test_the_checker_sees_what_is_too_much() -> None:
    """It counts those that were certainly decided within one window."""

    def admit(earliest: float, latest: float, tokens: int = 1) -> Admit:
        record = {"time": earliest, "ms": 0}
        return Admit(record, {"started": latest, "prompt_tokens": tokens, "tokens": 0}, 0.0)

    assert fullest([admit(0, 0.1), admit(0.5, 0.6, 5), admit(0.95, 1.05), admit(1.5, 1.6)], 1.0) == (2, 6)
    assert fullest([], 1.0) == (0, 0)
    assert percentile([1.0, 2.0, 3.0], 0.99) == 3.0
    assert percentile([float(one) for one in range(1, 101)], 0.99) == 99.0
