"""Ejection, return and warming up of one worker, under a clock of our own."""

from __future__ import annotations

import pytest

from gateway.config import Breaker as BreakerOptions
from gateway.fleet.breaker import Breaker

POLICY = BreakerOptions(failures=3, eject_s=10, slowstart_s=20)


def fail(breaker: Breaker, now: float = 0.0, *, may_eject: bool = True) -> bool:
    """A request that began just now fails."""
    return breaker.fail(now, breaker.generation, may_eject=may_eject)


def succeed(breaker: Breaker, now: float = 0.0) -> bool:
    return breaker.succeed(now, breaker.generation)


def ejected(now: float = 0.0) -> Breaker:
    breaker = Breaker(POLICY)
    for _ in range(3):
        fail(breaker, now)
    assert breaker.ejected
    return breaker


def test_only_failures_in_a_row_eject() -> None:
    breaker = Breaker(POLICY)
    told = []
    for failed in (True, True, False, True, True):
        told.append(fail(breaker) if failed else succeed(breaker))
        assert breaker.allows(0)
    assert not any(told)
    assert fail(breaker)
    assert breaker.ejected
    assert not breaker.allows(9.9)
    assert breaker.allows(10)


def test_a_worker_that_cannot_be_spared_stays() -> None:
    breaker = Breaker(POLICY)
    assert not any(fail(breaker, may_eject=False) for _ in range(10))
    assert breaker.allows(0)
    assert fail(breaker)  # until it can


def test_what_failed_along_with_it_does_not_lengthen_the_ejection() -> None:
    """A worker dies under a hundred streams: they all fail, for the one reason."""
    breaker = Breaker(POLICY)
    generations = [breaker.generation for _ in range(103)]
    told = [breaker.fail(0.1, generation, may_eject=True) for generation in generations]
    assert [number for number, one in enumerate(told) if one] == [2]
    assert (breaker.ejections, breaker.open_until) == (1, 10.1)


def test_after_the_ejection_one_request_tries() -> None:
    breaker = ejected()
    assert breaker.allows(10)
    breaker.begin(10)
    assert not breaker.allows(10)
    breaker.abandon(breaker.generation)
    assert breaker.allows(10)
    breaker.begin(10)
    assert succeed(breaker, 11)
    assert breaker.allows(11)
    assert not breaker.ejected


def test_a_trial_that_tells_nothing_keeps_no_worker_out() -> None:
    breaker = ejected()
    breaker.begin(12)
    assert not breaker.allows(21.9)
    assert breaker.allows(22)
    breaker.begin(22)
    assert not breaker.allows(31.9)
    assert succeed(breaker, 25)  # whichever of the two it was


@pytest.mark.parametrize("what", ["succeed", "answer", "abandon", "fail"])
def test_what_began_before_the_ejection_says_nothing_during_the_trial(what: str) -> None:
    breaker = Breaker(POLICY)
    before = breaker.generation
    for _ in range(3):
        fail(breaker)
    breaker.begin(10)
    if what == "succeed":
        assert not breaker.succeed(10, before)
    elif what == "answer":
        assert not breaker.answer(10, before)
    elif what == "abandon":
        breaker.abandon(before)
    else:
        assert not breaker.fail(10, before, may_eject=True)
    assert (breaker.open_until, breaker.ejections) == (10, 1)
    assert not breaker.allows(10), "the trial goes on"
    assert succeed(breaker, 11)


def test_a_reply_that_begins_ends_the_trial() -> None:
    breaker = ejected()
    breaker.begin(10)
    assert breaker.answer(11, breaker.generation)
    assert breaker.allows(11)
    assert breaker.share(11) == 0.01
    assert not breaker.answer(12, breaker.generation), "the next one's is no news"
    assert not succeed(breaker, 600)


def test_a_reply_that_begins_and_breaks_ejects_again_and_longer() -> None:
    breaker = ejected()
    breaker.begin(10)
    breaker.answer(11, breaker.generation)
    assert fail(breaker, 12)
    assert breaker.open_until == 12 + 20
    breaker.begin(32)
    breaker.answer(33, breaker.generation)
    succeed(breaker, 40)
    assert [fail(breaker, 41) for _ in range(3)] == [False, False, True], "a whole reply ends the probation"
    assert breaker.open_until == 41 + 10


def test_every_failed_trial_makes_the_ejection_longer_up_to_a_limit() -> None:
    breaker = ejected()
    lengths = []
    for _ in range(12):
        now = breaker.open_until
        breaker.begin(now)
        assert fail(breaker, now, may_eject=False)  # it is out already: nobody has to spare it
        lengths.append(breaker.open_until - now)
    assert lengths == [20, 30, 40, 50, 60, 70, 80, 90, 100, 100, 100, 100]
    breaker.begin(breaker.open_until)
    succeed(breaker, breaker.open_until)
    assert breaker.ejections == 0


def test_the_share_grows_after_the_return() -> None:
    breaker = ejected()
    breaker.begin(10)
    assert breaker.share(10) == 1.0
    succeed(breaker, 10)
    assert [breaker.share(10 + seconds) for seconds in (0, 1, 5, 10, 19)] == [0.01, 0.05, 0.25, 0.5, 0.95]
    assert breaker.share(30) == 1.0
    assert breaker.share(11) == 1.0, "once grown it stays"


def test_a_trial_does_not_wait_for_the_share_to_grow() -> None:
    """Its health came back before the ejection was over."""
    breaker = ejected()
    breaker.come_back(5)
    assert breaker.share(10) == 1.0
    breaker.begin(10)
    succeed(breaker, 10)
    assert breaker.share(12) == 0.1


def test_without_slowstart_the_share_is_whole() -> None:
    breaker = Breaker(BreakerOptions(failures=1, eject_s=1, slowstart_s=0))
    breaker.come_back(5)
    assert breaker.share(5) == pytest.approx(1.0)


def test_its_state_is_told() -> None:
    assert Breaker(POLICY).state(0) == "closed"
    breaker = ejected()
    assert breaker.state(9.9) == "open"
    assert breaker.state(10) == "half_open"
    breaker.begin(10)
    assert breaker.state(11) == "half_open"
    succeed(breaker, 11)
    assert breaker.state(11) == "closed"
