"""What a queue's speed is taken to be, and what refused clients are told."""

from __future__ import annotations

import pytest

from gateway.fleet.speed import Speed


def moving(tokens_per_s: float, seconds: int = 60) -> Speed:
    speed = Speed()
    speed.run(0.0)
    for tenth in range(1, seconds * 10 + 1):
        speed.served(int(tokens_per_s / 10), tenth / 10)
    return speed


def test_nothing_is_known_before_anything_moved() -> None:
    speed = Speed()
    assert speed.wait(1000, 5.0) is None
    assert speed.send_back(1000, 100, 5.0) == 1.0


def test_the_wait_is_what_is_ahead_by_the_speed() -> None:
    assert moving(1000).wait(5000, 60.0) == pytest.approx(5.0, rel=0.01)


def test_idle_time_says_nothing_of_the_speed() -> None:
    speed = moving(1000)
    speed.rest(60.0)
    assert speed.wait(5000, 3600.0) == pytest.approx(5.0, rel=0.01)
    speed.run(3600.0)
    assert speed.wait(5000, 3600.0) == pytest.approx(5.0, rel=0.01)


def test_a_queue_that_stands_is_slow() -> None:
    speed = moving(1000)
    assert (speed.wait(5000, 90.0) or 0) > 9.0


def test_what_is_new_counts_most() -> None:
    speed = moving(1000)
    for second in range(61, 151):
        speed.served(100, second)
    assert (speed.wait(1000, 150.0) or 0) > 7.0


def test_the_refused_are_sent_back_one_behind_the_other() -> None:
    speed = moving(1000)
    told = [speed.send_back(4000, 1000, 60.0) for _ in range(100)]
    assert told[:3] == pytest.approx([4.0, 5.0, 6.0], rel=0.01)
    assert max(told) == 60.0
    speed.rest(60.0)
    # Once their places have passed, the next are told no more than the first.
    assert speed.send_back(4000, 1000, 200.0) == pytest.approx(4.0, rel=0.01)


def test_nobody_is_told_less_than_a_second_or_more_than_a_minute() -> None:
    assert moving(1000).send_back(0, 10, 60.0) == 1.0
    assert moving(10).send_back(10**6, 10, 60.0) == 60.0
