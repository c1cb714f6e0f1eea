"""Ejection, return and warming up of one worker, under a clock of our own."""

from __future__ import annotations

import pytest

from gateway.fleet.breaker import Breaker, BreakerPolicy

POLICY = BreakerPolicy(failures=3, eject_s=10, slowstart_s=20)


def ejected(now: float = 0.0) -> Breaker:
    breaker = Breaker(POLICY)
    for _ in range(3):
        breaker.fail(now, may_eject=True)
    assert breaker.ejected
    return breaker


def test_only_failures_in_a_row_eject() -> None:
    breaker = Breaker(POLICY)
    told = []
    for failed in (True, True, False, True, True):
        if failed:
            told.append(breaker.fail(0, may_eject=True))
        else:
            breaker.succeed(0)
        assert breaker.allows(0)
    assert not any(told)
    assert breaker.fail(0, may_eject=True)
    assert breaker.ejected
    assert not breaker.allows(9.9)
    assert breaker.allows(10)


def test_a_worker_that_cannot_be_spared_stays() -> None:
    breaker = Breaker(POLICY)
    assert not any(breaker.fail(0, may_eject=False) for _ in range(10))
    assert breaker.allows(0)
    assert breaker.fail(0, may_eject=True)  # until it can


def test_what_failed_along_with_it_does_not_lengthen_the_ejection() -> None:
    """A worker dies under a hundred streams: they all fail, for the one reason."""
    breaker = ejected()
    assert not any(breaker.fail(0.1, may_eject=True) for _ in range(100))
    assert (breaker.ejections, breaker.open_until) == (1, 10)


def test_after_the_ejection_one_request_tries() -> None:
    breaker = ejected()
    assert breaker.allows(10)
    breaker.begin()
    assert not breaker.allows(10)
    breaker.abandon()
    assert breaker.allows(10)
    breaker.begin()
    breaker.succeed(11)
    assert breaker.allows(11)
    assert not breaker.ejected


def test_every_failed_trial_makes_the_ejection_longer_up_to_a_limit() -> None:
    breaker = ejected()
    lengths = []
    for _ in range(12):
        now = breaker.open_until
        breaker.begin()
        assert breaker.fail(now, may_eject=False)  # it is out already: nobody has to spare it
        lengths.append(breaker.open_until - now)
    assert lengths == [20, 30, 40, 50, 60, 70, 80, 90, 100, 100, 100, 100]
    breaker.begin()
    breaker.succeed(breaker.open_until)
    assert breaker.ejections == 0


def test_the_share_grows_after_the_return() -> None:
    breaker = ejected()
    breaker.begin()
    assert breaker.share(10) == 1.0
    breaker.succeed(10)
    assert [breaker.share(10 + seconds) for seconds in (0, 1, 5, 10, 19)] == [0.1, 0.1, 0.25, 0.5, 0.95]
    assert breaker.share(30) == 1.0
    assert breaker.share(11) == 1.0, "once grown it stays"


def test_without_slowstart_the_share_is_whole() -> None:
    breaker = Breaker(BreakerPolicy(failures=1, eject_s=1, slowstart_s=0))
    breaker.come_back(5)
    assert breaker.share(5) == pytest.approx(1.0)
