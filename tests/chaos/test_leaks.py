"""The figures of L4 and F10 that are computed here."""

from __future__ import annotations

import pytest

from tests.chaos.connections import at_once
from tests.chaos.leaks import slope


def test_a_slope_is_what_is_added_from_one_to_the_next() -> None:
    assert slope([5.0, 7.0, 9.0, 11.0]) == pytest.approx(2.0)
    assert slope([3.0, 3.0, 3.0]) == 0
    assert slope([0.0, 1.0, 0.0, 1.0, 0.0]) == pytest.approx(0.0), "noise is no growth"


def test_what_ends_as_another_begins_was_not_there_at_once() -> None:
    def entry(started: float, ended: float) -> dict[str, float]:
        return {"started": started, "ended": ended}

    assert at_once([]) == 0
    assert at_once([entry(0, 2), entry(1, 3), entry(2, 4)]) == 2
    assert at_once([entry(0, 9), entry(1, 3), entry(2, 4)]) == 3
