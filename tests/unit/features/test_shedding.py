"""What is refused while the event loop is late, as the readings of its lateness come."""

from __future__ import annotations

import contextlib

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.features.shedding import Shedding


class Watched:
    """A guard of three priorities, and what it told."""

    def __init__(self) -> None:
        self.changes: list[bool] = []
        self.refused = 0
        self.shedding = Shedding(self.changes.append, self._count)
        self.shedding.configure(0.1, [5, -1, 0])

    def _count(self) -> None:
        self.refused += 1

    def late(self, seconds: float, readings: int) -> None:
        for _ in range(readings):
            self.shedding.late(seconds)

    def shares(self) -> dict[int, float]:
        """Priority -> the share of a thousand requests that is refused."""
        found = {}
        for priority in (-1, 0, 5):
            before = self.refused
            for _ in range(1000):
                with contextlib.suppress(GatewayError):
                    self.shedding.check(priority)
            found[priority] = (self.refused - before) / 1000
        return found


def test_one_long_pause_refuses_nobody() -> None:
    watched = Watched()
    for _ in range(20):
        watched.late(3.0, 4)
        watched.late(0.0, 1)
    assert watched.shedding.pressure == 0
    assert watched.changes == []
    assert watched.shares() == {-1: 0, 0: 0, 5: 0}


def test_the_lowest_priority_goes_first_and_the_highest_never_wholly() -> None:
    watched = Watched()
    watched.late(0.2, 4 + 3)
    assert watched.shares() == {-1: pytest.approx(0.3, abs=0.01), 0: 0, 5: 0}
    watched.late(0.2, 12)
    assert watched.shares() == {-1: 1, 0: pytest.approx(0.5, abs=0.01), 5: 0}
    watched.late(0.2, 100)
    assert watched.shares() == {-1: 1, 0: 1, 5: pytest.approx(0.9, abs=0.01)}
    assert watched.changes == [True]


def test_it_ends_when_the_loop_is_in_time_and_holds_in_between() -> None:
    watched = Watched()
    watched.late(0.2, 14)
    held = watched.shedding.pressure
    watched.late(0.07, 50)
    assert watched.shedding.pressure == held == pytest.approx(1.0)
    watched.late(0.01, 19)
    assert 0 < watched.shedding.pressure < 0.1
    watched.late(0.01, 2)
    assert watched.shedding.pressure == 0
    assert watched.changes == [True, False]
    assert watched.shares() == {-1: 0, 0: 0, 5: 0}


def test_the_refused_are_told_when_their_priority_is_let_in_again() -> None:
    watched = Watched()
    watched.late(0.2, 4 + 25)
    for priority, wait in ((-1, 5.0), (0, 3.0)):
        with pytest.raises(GatewayError) as caught:
            watched.shedding.check(priority)
        assert caught.value.retry_after == pytest.approx(wait)
        assert (caught.value.kind, caught.value.code) == (Kind.OVERLOADED, "gateway_overloaded")


def test_a_new_configuration_keeps_the_pressure_within_its_priorities_or_ends_it() -> None:
    watched = Watched()
    watched.late(0.2, 30)
    watched.shedding.configure(0.1, [0])
    assert watched.shedding.pressure == 0.9
    watched.shedding.configure(0.0, [0])
    assert watched.changes == [True, False]
    watched.late(9.0, 30)
    assert watched.shedding.pressure == 0


def test_a_priority_between_those_that_are_known_counts_as_the_next_higher_one() -> None:
    watched = Watched()
    watched.late(0.2, 4 + 20)
    watched.shedding.check(3)
    watched.shedding.check(100)
    with pytest.raises(GatewayError):
        watched.shedding.check(-50)
