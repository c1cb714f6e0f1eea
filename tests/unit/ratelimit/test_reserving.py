"""What reserving the expected output is worth, and what it costs: the claims of docs/limits.md, in simulated time."""

from __future__ import annotations

from statistics import fmean

import pytest

from bench.reserving import AGENTS, CHATS, TURNING, Load, figures
from gateway.ratelimit.expected import KNOWN

MINUTES, SEEDS = 60, (1,)


def test_agents_get_five_times_as_much_on_average() -> None:
    """Each is bounded by what its prompts use: 100,000 tokens are four calls with a prompt of 24,000."""
    ratios = []
    for load in AGENTS:
        hard, soft = (figures(load, reserve, SEEDS, MINUTES) for reserve in ("maximum", "expected"))
        ratios.append(soft.used / hard.used)
        assert soft.used > 0.6, load.name
    assert min(ratios) > 3.5
    assert fmean(ratios) > 5


@pytest.mark.parametrize("load", [*AGENTS, CHATS, TURNING], ids=lambda load: load.name)
def test_ten_windows_use_no_more_than_the_limit_on_average(load: Load) -> None:
    one = figures(load, "expected", SEEDS, MINUTES)
    assert 0.5 < one.used <= one.ten <= 1


def test_the_most_beyond_the_limit_is_within_its_bound() -> None:
    """Twenty clients whose replies were short all take what they may at the same time."""
    one = figures(TURNING, "expected", SEEDS, MINUTES)
    assert 1.5 < one.window <= KNOWN + 1 + 1
