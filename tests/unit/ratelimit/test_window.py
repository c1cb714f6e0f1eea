"""The sliding window against a brute-force log: never above the limit, never refusing without need."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ratelimit.window import CYCLE, MAX_GUARD, SLICES, Shape, Slots, Window
from tests.support.steps import steps as steps_of
from tests.unit.ratelimit.oracle import Log, may_refuse

SECOND = 1_000_000
ONE = Window.shape(10, 12.0, 0, False)  # slices of 0.1 s

limits = st.integers(1, 40)
steps = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 200), st.integers(0, 150_000), st.integers(0, 2 * SECOND)),  # microseconds later
        st.integers(0, 15),  # cost
        st.one_of(st.none(), st.integers(0, 20)),  # what the oldest unsettled one really used
    ),
    max_size=120,
)


def fits(window: Window, now: int, cost: int, numbers: Shape) -> bool:
    window.slide(now, numbers)
    return window.delay(now, cost, numbers) == 0


@given(limits, st.floats(0.1, 3.0), steps)
def test_never_above_the_limit_and_never_refused_without_need(
    limit: int, per: float, moves: list[tuple[int, int, int | None]]
) -> None:
    numbers = Window.shape(limit, per, 0, False)
    length = round(per * SECOND)
    window, log, now = Window(), Log(), 1_700_000_000 * SECOND
    pending: list[tuple[int, int, int]] = []
    for later, cost, used in moves:
        now += later
        cost = min(cost, limit)
        if fits(window, now, cost, numbers):
            entry = window.charge(now, cost, numbers)
            assert not cost or window.expires >= now + window.state(now, numbers)[1], "it is kept while it counts"
            pending.append((log.add(now, cost), entry, cost))
            assert log.within(now - length, now) <= limit
        else:
            assert may_refuse(log, now, cost, numbers)
        if used is not None and pending:
            at, entry, reserved = pending.pop(0)
            delta = min(used, reserved) - reserved
            window.settle(now, entry, delta, numbers, "", 0)
            log.amounts[at] += delta
    assert log.most(length) <= limit
    assert window.used == sum(window.slices.values())
    assert len(window.slices) <= SLICES + 2


@given(limits, st.floats(0.1, 3.0), steps, st.integers(0, 15))
def test_the_wait_is_exact(limit: int, per: float, moves: list[tuple[int, int, int | None]], cost: int) -> None:
    numbers = Window.shape(limit, per, 0, False)
    window, now, cost = Window(), 1_700_000_000 * SECOND, min(cost, limit)
    for later, one, _ in moves:
        now += later
        if fits(window, now, min(one, limit), numbers):
            window.charge(now, min(one, limit), numbers)
    window.slide(now, numbers)
    wait = window.delay(now, cost, numbers)
    if wait:
        assert not fits(window, now + wait - 1, cost, numbers)
    assert fits(window, now + wait, cost, numbers)
    assert window.state(now + wait, numbers)[0] >= 0


@pytest.mark.parametrize(
    ("limit", "per"), [(600, 60.0), (100_000, 60.0), (7, 60.0), (50, 1.0), (1000, 0.1), (60, 3600.0)]
)
@pytest.mark.parametrize("every", [1, 7])
def test_saturated_it_admits_nearly_the_limit_in_every_window(limit: int, per: float, every: int) -> None:
    numbers = Window.shape(limit, per, 0, False)
    length = round(per * SECOND)
    window, admitted, cost = Window(), [], max(limit // 500, 1)
    start = now = 1_700_000_000 * SECOND + 12_345
    while now < start + 4 * length:
        while fits(window, now, cost, numbers):
            window.charge(now, cost, numbers)
            admitted.append(now)
        now += every * max(length // 2000, 1)
    for number in range(4):
        low = start + number * length
        count = cost * sum(low <= at < low + length for at in admitted)
        assert count <= limit
        # A cost that does not divide the limit wastes less than one cost; a coarse poll comes a little late.
        assert count >= 0.98 * limit - cost
    assert len(window.slices) <= SLICES + 2


def test_the_share_lost_to_slices_is_below_two_percent() -> None:
    for per in (0.1, 0.5, 1.0, 60.0, 86_400.0):
        numbers = Window.shape(1, per, 0, False)
        assert per * SECOND / (numbers.span + numbers.width) > 0.982


def test_no_double_rate_at_an_edge() -> None:
    window, edge = Window(), 12 * SECOND * 1000
    for _ in range(10):
        assert fits(window, edge - 1, 1, ONE)
        window.charge(edge - 1, 1, ONE)
    for now in (edge, edge + 1, edge + SECOND, edge + 12 * SECOND - 2):
        assert not fits(window, now, 1, ONE)


def test_a_log_that_is_written_late_stays_within_the_limit() -> None:
    assert ONE.guard == 100_000 == MAX_GUARD
    window, now = Window(), 5 * SECOND
    for _ in range(10):
        window.slide(now, ONE)
        window.charge(now, 1, ONE)
    window.slide(now, ONE)
    assert window.delay(now, 1, ONE) >= 12 * SECOND + MAX_GUARD


def test_a_refund_goes_to_where_it_was_charged() -> None:
    window, now = Window(), 1000 * SECOND
    first = window.charge(now, 6, ONE)
    window.charge(now + 5 * SECOND, 4, ONE)
    window.settle(now + 6 * SECOND, first, -5, ONE, "", 0)
    assert window.used == 5
    window.slide(now + 13 * SECOND, ONE)  # the first slid out with what was left of it
    assert window.used == 4


def test_a_refund_after_the_window_slid_changes_nothing() -> None:
    window, now = Window(), 1000 * SECOND
    first = window.charge(now, 6, ONE)
    window.charge(now + 10 * SECOND, 3, ONE)
    window.settle(now + 13 * SECOND, first, -6, ONE, "", 0)
    assert window.used == 3


def test_more_than_reserved_counts_from_when_it_is_known() -> None:
    window, now = Window(), 1000 * SECOND
    first = window.charge(now, 6, ONE)
    window.settle(now + 13 * SECOND, first, 9, ONE, "", 0)
    assert window.used == 9
    assert window.state(now + 13 * SECOND, ONE)[0] == 1
    window.settle(now + 13 * SECOND, first, 9, ONE, "", 0)
    assert window.state(now + 13 * SECOND, ONE)[0] == 0  # never negative
    assert not fits(window, now + 20 * SECOND, 1, ONE)
    assert fits(window, now + 26 * SECOND, 1, ONE)


def test_no_more_comes_back_than_was_charged() -> None:
    window, now = Window(), 1000 * SECOND
    entry = window.charge(now, 3, ONE)
    window.settle(now, entry, -5, ONE, "", 0)
    window.settle(now, entry, -5, ONE, "", 0)
    assert window.used == 0


def test_after_a_reset_earlier_charges_have_nothing_to_take_back() -> None:
    window, now = Window(), 1000 * SECOND
    before = window.charge(now, 8, ONE)
    window.reset(now, ONE)
    after = window.charge(now, 8, ONE)
    window.settle(now, before, -8, ONE, "", 0)
    assert (window.used, after) == (8, before + 1)


@pytest.mark.parametrize("burst", [None, 5])
def test_what_is_used_beyond_the_limit_is_paid_by_later_windows(burst: int | None) -> None:
    numbers = Window.shape(10, 12.0, burst or 0, False)
    window, now = Window(), 1000 * SECOND
    entry = window.charge(now, 5, numbers)
    window.settle(now, entry, 500, numbers, "", 0)
    assert (window.used, window.debt) == (505, 495)
    wait = window.delay(now, 1, numbers)
    assert 50 * 12 * SECOND <= wait <= 50 * 12.2 * SECOND
    assert wait <= window.state(now, numbers)[1], "what is told to come back is not more"
    assert not fits(window, now + wait - 1, 1, numbers)
    assert fits(window, now + wait, 1, numbers)
    assert window.debt == 0


def test_a_question_fits_whatever_is_owed_and_costs_nothing() -> None:
    window, now = Window(), 1000 * SECOND
    window.settle(now, window.charge(now, 5, ONE), 50, ONE, "", 0)
    before = (window.used, window.debt, dict(window.slices))
    assert fits(window, now, 0, ONE)
    counted = window.take(now, 0, ONE, "", 0)
    assert (counted.remaining, counted.entry >= 0) == (0, True)
    assert (window.used, window.debt, window.slices) == before


def test_a_refund_pays_debt_first() -> None:
    window, now = Window(), 1000 * SECOND
    first, second = window.charge(now, 5, ONE), window.charge(now, 5, ONE)
    window.settle(now, first, 30, ONE, "", 0)
    window.settle(now, second, -4, ONE, "", 0)
    assert (window.used, window.debt) == (36, 26)


def test_a_raised_limit_pays_more_of_the_debt_at_once() -> None:
    window, now = Window(), 1000 * SECOND
    window.settle(now, window.charge(now, 5, ONE), 30, ONE, "", 0)
    raised = Window.shape(34, 12.0, 0, False)
    wait = window.delay(now, 10, raised)
    assert (window.used, window.debt) == (35, 1)
    assert not fits(window, now + wait - 1, 10, raised)
    assert fits(window, now + wait, 10, raised)


# (microseconds later, what a request reserves, what it will have used)
overruns = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 200), st.integers(0, 150_000), st.integers(0, 9 * SECOND)),
        st.integers(1, 15),
        st.integers(0, 300),
        st.integers(0, 3),  # requests in flight when it is settled, at most
    ),
    max_size=60,
)


@given(limits, st.floats(0.1, 3.0), st.one_of(st.none(), st.integers(1, 5)), overruns)
def test_later_windows_pay_whatever_was_used(
    limit: int, per: float, burst: int | None, moves: list[tuple[int, int, int, int]]
) -> None:
    """From any moment to any later one, with s slices in it, at most limit x ceil(s / 121) tokens are used, what was
    reserved in flight at the first moment, and what requests in flight used beyond their reservations: the debt at the
    last. A request is said to use all of its tokens when it is settled."""
    numbers = Window.shape(limit, per, (burst and min(burst, limit)) or 0, False)
    window, now = Window(), 1_700_000_000 * SECOND
    flying: list[tuple[int, int, int]] = []
    known: list[tuple[int, int, int, int]] = [(now // numbers.width, 0, 0, 0)]  # slice, used so far, in flight, debt
    for later, cost, uses, most in moves:
        now += later
        cost = min(cost, limit)
        wait = window.delay(now, cost, numbers)
        if wait == 0:
            assert window.debt == 0, "nothing is admitted before the debt is paid"
            flying.append((window.charge(now, cost, numbers), cost, uses))
        elif burst is None:
            assert deepcopy(window).delay(now + wait - 1, cost, numbers) > 0
            assert deepcopy(window).delay(now + wait, cost, numbers) == 0
        used = known[-1][1]
        while len(flying) > most:
            entry, reserved, uses = flying.pop(0)
            window.settle(now, entry, uses - reserved, numbers, "", 0)
            used += uses
        known.append((now // numbers.width, used, sum(reserved for _, reserved, _ in flying), window.debt))
        assert window.used == sum(window.slices.values()) + window.debt
        assert window.used - window.debt <= limit
        assert list(window.slices) == sorted(window.slices)
        assert len(window.slices) <= SLICES + 2
    for index, (first, before, reserved, _) in enumerate(known):
        for last, used, _, debt in known[index:]:
            assert used - before <= limit * -(-(last - first + 1) // CYCLE) + reserved + debt


@given(limits, st.integers(1, 10**6), st.integers(0, 10**9))
def test_a_debt_of_many_windows_is_paid_in_a_few_steps(limit: int, windows: int, later: int) -> None:
    numbers = Window.shape(limit, 12.0, 0, False)
    window, now = Window(), 1000 * SECOND
    window.settle(now, window.charge(now, limit, numbers), limit * windows, numbers, "", 0)
    assert window.debt == limit * windows
    assert window.expires >= now + windows * 12 * SECOND
    passed = later % (windows * 12)
    left = steps_of(lambda: window.delay(now + passed * SECOND, limit, numbers))
    assert left < 600
    assert window.debt <= limit * (windows - passed // 12.2)
    assert window.used > 0


def test_a_burst_paces_what_the_window_allows() -> None:
    numbers = Window.shape(600, 60.0, 10, False)
    window, now, admitted = Window(), 1000 * SECOND, []
    while now < 1125 * SECOND:
        if fits(window, now, 1, numbers):
            window.charge(now, 1, numbers)
            admitted.append(now)
        now += 20_000
    assert sum(at < 1000 * SECOND + 20_000 for at in admitted) == 1
    for low in range(1000, 1120):  # ten at once, then ten a second
        assert sum(low * SECOND <= at < (low + 1) * SECOND for at in admitted) <= 21
    for low in (1000, 1060):
        assert 588 <= sum(low * SECOND <= at < (low + 60) * SECOND for at in admitted) <= 600


def test_a_cost_above_the_burst_waits_for_a_full_one_and_pays_after() -> None:
    numbers = Window.shape(120, 12.0, 10, False)
    window, now = Window(), 1000 * SECOND
    assert fits(window, now, 50, numbers)
    window.charge(now, 50, numbers)
    window.slide(now, numbers)
    assert window.delay(now, 1, numbers) == pytest.approx(4.1 * SECOND, abs=2)


def test_slots_expire_and_come_back() -> None:
    slots = Slots()
    slots.hold(0, "a", 10)
    slots.hold(5, "b", 10)
    slots.hold(6, "a", 10)
    slots.slide(15, ONE)
    assert list(slots.held) == ["a"]
