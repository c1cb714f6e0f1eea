"""A budget's counter and its calendar."""

from __future__ import annotations

from datetime import datetime
from math import inf
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.money import Period
from gateway.ratelimit.calendar import Calendar
from gateway.ratelimit.spent import ABANDONED, FOREVER, Asked, Spent
from gateway.ratelimit.window import RETRY_SLOT

BERLIN = ZoneInfo("Europe/Berlin")
SHAPE = Spent.shape(100, 31, (50, 80), shadow=False)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


@pytest.mark.parametrize(
    ("per", "now", "label", "ends"),
    [
        ("day", "2026-10-25T00:00", "2026-10-25", "2026-10-26T00:00"),  # of 25 hours
        ("day", "2026-03-29T23:59", "2026-03-29", "2026-03-30T00:00"),  # of 23 hours
        ("week", "2027-01-03T12:00", "2026-W53", "2027-01-04T00:00"),
        ("week", "2027-01-04T00:00", "2027-W01", "2027-01-11T00:00"),
        ("month", "2026-12-31T23:59", "2026-12", "2027-01-01T00:00"),
        ("month", "2026-01-31T00:00", "2026-01", "2026-02-01T00:00"),
        ("month", "2024-02-01T00:00", "2024-02", "2024-03-01T00:00"),
    ],
)
def test_a_period_ends_at_midnight_of_its_zone(per: Period, now: str, label: str, ends: str) -> None:
    calendar = Calendar(per, BERLIN)
    assert calendar.label(at(now)) == label
    assert calendar.ends(at(now)) == at(ends)
    assert calendar.label(at(ends) - 0.001) == label
    assert calendar.label(at(ends)) != label
    assert calendar.label_before(at(ends)) == label
    assert calendar.label_before(at(now)) not in (label, None)


def test_a_total_never_ends() -> None:
    assert Calendar("total", BERLIN).ends(at("2026-11-26")) == inf
    assert Calendar("total", BERLIN).label_before(at("2026-11-26")) is None
    assert Calendar("total", BERLIN).label(1.0) == Calendar("total", BERLIN).label(1e9)


def taken(counter: Spent, cost: int, now: int = 5_000) -> int:
    """The entry of an admitted request."""
    assert counter.delay(now, Asked(cost, cost), SHAPE) == 0
    return counter.take(now, Asked(cost, cost), SHAPE, "", 0).entry


def test_what_running_requests_reserve_is_refused_for_a_while_and_what_is_spent_for_good() -> None:
    counter = Spent()
    entry = taken(counter, 60)
    assert counter.delay(6_000, Asked(41, 41), SHAPE) == RETRY_SLOT
    counter.settle(7_000, entry, 0, SHAPE, "", 60)
    assert counter.delay(8_000, Asked(41, 41), SHAPE) == FOREVER
    assert counter.delay(8_000, Asked(40, 40), SHAPE) == 0


def test_what_requests_reserved_that_never_end_is_spent() -> None:
    counter = Spent()
    lost, entry = 5_000_000, taken(counter, 60, now=4_000_000)
    taken(counter, 40, now=lost)
    assert counter.delay(lost + ABANDONED * 1000, Asked(1, 1), SHAPE) == RETRY_SLOT
    assert counter.delay(lost + ABANDONED * 1000 + 1000, Asked(1, 1), SHAPE) == FOREVER
    assert counter.state(0, SHAPE) == (0, 3), "it is reported"
    counter.settle(lost + ABANDONED * 1000 + 2000, entry, -50, SHAPE, "", 60)  # one of them runs on
    assert (counter.used, counter.held) == (50, 0)
    taken(counter, 50, now=lost + ABANDONED * 1000 + 3000)
    assert counter.delay(lost + ABANDONED * 1000 + 4000, Asked(1, 1), SHAPE) == RETRY_SLOT


def test_a_request_reserves_what_is_left_where_less_is_left_than_expected() -> None:
    counter = Spent()
    taken(counter, 60)
    assert counter.delay(6_000, Asked(90, 41), SHAPE) == RETRY_SLOT
    assert counter.delay(6_000, Asked(90, 40), SHAPE) == 0
    assert counter.take(6_000, Asked(90, 3), SHAPE, "", 0).charged == 40
    counter.used = counter.held = 100 + 20
    assert counter.take(6_000, Asked(0, 0), SHAPE, "", 0).charged == 0


calls = st.lists(st.tuples(st.integers(0, 150), st.integers(0, 15), st.integers(0, 300), st.booleans()), max_size=40)


@given(calls)
def test_a_reservation_is_never_above_what_is_left_nor_below_its_least(asked: list[tuple[int, int, int, bool]]) -> None:
    """So a spent budget is exceeded by no more than its running requests use beyond their reservations."""
    counter, running = Spent(), []
    for expected, sixteenths, money, ends in asked:
        cost = Asked(expected, -(-expected * (1 + sixteenths) // 16))
        used = counter.used
        if not counter.delay(5_000, cost, SHAPE):
            got = counter.take(5_000, cost, SHAPE, "", 0)
            assert cost.least <= got.charged <= cost.expected
            assert not got.charged or used + got.charged <= SHAPE.limit
            assert got.charged == cost.expected or counter.used == SHAPE.limit
            running.append((got, money))
        elif not running:
            assert used + cost.least > SHAPE.limit, "nothing is refused that can be paid"
        if ends and running:
            got, money = running.pop(0)
            counter.settle(5_000, got.entry, money - got.charged, SHAPE, "", got.charged)
    assert counter.held == sum(got.charged for got, _ in running)


def test_a_free_request_passes_a_spent_budget() -> None:
    counter = Spent()
    counter.settle(6_000, taken(counter, 10), 500, SHAPE, "", 10)
    assert counter.delay(8_000, Asked(0, 0), SHAPE) == 0
    assert counter.delay(8_000, Asked(1, 1), SHAPE) == FOREVER


def test_each_mark_is_passed_once_and_by_what_is_spent() -> None:
    counter = Spent()
    marks = []
    for cost, uses in ((60, 10), (50, 45), (20, 20), (10, 5), (30, 0), (30, 0)):
        wait = counter.delay(5_000, Asked(cost, cost), SHAPE)
        entry = -1 if wait else counter.take(5_000, Asked(cost, cost), SHAPE, "", 0).entry
        marks.append(counter.state(5_000, SHAPE)[1] if wait else 0)
        if not wait:
            counter.settle(5_000, entry, uses - cost, SHAPE, "", cost)
    assert counter.used == 80
    assert marks == [0, 0, 0, 0, 3, 0]  # the refusal, once
    assert counter.level == 3


def test_a_reset_counter_takes_no_older_refund() -> None:
    counter = Spent()
    entry = taken(counter, 30)
    counter.reset(9_000_000, SHAPE)
    counter.slide(9_000_000, SHAPE)
    assert counter.used == 0
    taken(counter, 7, now=9_000_000)
    counter.settle(9_000_000, entry, -30, SHAPE, "", 30)
    assert counter.used == 7
