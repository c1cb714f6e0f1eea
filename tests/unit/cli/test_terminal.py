"""What `dragoman status` prints of two states."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.cli.terminal import duration, quantile, view
from gateway.features.console.state import Histogram, LimitsState, ModelState, State, TeamState, WorkerState

WORKER = WorkerState("http://gpu-1:8000", "ready", 3, 8)
MODEL = ModelState("llama", ("gpt",), "vllm", 2, (WORKER,), {"ok": 10, "failed": 1}, 100, 200, None)
TEAM = TeamState("blue", 11, 100, 200)
STATE = State("1.2.3", 1000.0, 50.0, True, False, {"openai": 3}, (MODEL,), (TEAM,), None)


def later(seconds: float = 10.0, **changes: Any) -> State:
    model = replace(MODEL, requests={"ok": 30, "failed": 6}, input_tokens=600, output_tokens=1200)
    team = replace(TEAM, input_tokens=600, output_tokens=1200)
    moved = replace(STATE, time=STATE.time + seconds, uptime_s=STATE.uptime_s + seconds, models=(model,), teams=(team,))
    return replace(moved, **changes)


def row(lines: list[str], first: str) -> list[str]:
    return next(line.split() for line in lines if line.startswith(first))


def test_rates_are_what_happened_in_between() -> None:
    lines = view(STATE, later())
    assert row(lines, "llama") == ["llama", "1/1", "3", "2", "2.5", "0.5", "100.0", "50.0", "-"]
    assert row(lines, "blue") == ["blue", "11", "1800", "150.0"]
    assert lines[0] == "dragoman 1.2.3: ready, up 1m0s, 3 under way, no limits"


@pytest.mark.parametrize("before", [None, later(100.0), STATE], ids=["none", "started anew", "the same moment"])
def test_without_a_state_before_there_are_no_rates(before: State | None) -> None:
    assert row(view(before, STATE), "llama") == ["llama", "1/1", "3", "2", "-", "-", "-", "-", "-"]


def test_a_model_that_is_new_has_no_rates_yet() -> None:
    assert row(view(replace(STATE, models=()), later()), "llama")[4:8] == ["-"] * 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"draining": True}, ": draining, "),
        ({"ready": False}, ": no worker is ready, "),
        (
            {"ready": False, "starting": True, "unread": ("registry", "dns a:1")},
            ": starting (not read yet: registry, dns a:1), ",
        ),
        ({"unread": ("keys of the store",)}, ": ready (not read yet: keys of the store), "),
        ({"limits": LimitsState("degraded", 3, 0, {"few": 7}, {})}, "limits degraded on 3 gateway(s)"),
    ],
)
def test_the_headline(changes: dict[str, Any], words: str) -> None:
    assert words in view(None, replace(STATE, **changes))[0]


def test_what_became_of_requests_that_lost_their_worker() -> None:
    model = replace(MODEL, lost_worker={"moved": {}, "continued": {"died": 2}, "not_continued": {"tool_call": 1}})
    lines = view(None, replace(STATE, models=(model,)))
    assert [line.split() for line in lines if line.startswith("llama ")][2:] == [
        ["llama", "continued", "died", "2"],
        ["llama", "not", "continued", "tool_call", "1"],
    ]


def test_what_limits_refused() -> None:
    assert row(view(None, replace(STATE, limits=LimitsState("strict", 1, 0, {"few": 7}, {}))), "few") == ["few", "7"]


def test_names_move_no_cursor() -> None:
    lines = view(None, replace(STATE, teams=(replace(TEAM, name="x\x1b[2J\r\ny"),)))
    assert all(line.isprintable() for line in lines)


def test_large_fleets_are_cut() -> None:
    model = replace(MODEL, workers=(WORKER,) * 1000)
    lines = view(None, replace(STATE, models=(model,)))
    assert len(lines) < 100
    assert "and 960 more" in lines


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ((0, 0, 0), 0.5, None),
        ((4, 0, 0), 0.5, 0.5),
        ((0, 4, 0), 0.5, 1.5),
        ((1, 2, 1), 0.5, 1.5),
        ((1, 0, 1), 0.25, 0.5),
        ((0, 0, 3), 0.5, 2.0),
    ],
)
def test_quantiles_are_straight_within_a_bucket(counts: tuple[int, ...], share: float, expected: float | None) -> None:
    assert quantile(None, Histogram((1.0, 2.0), counts), share) == expected
    old = Histogram((1.0, 2.0), (100, 50, 10))
    summed = Histogram((1.0, 2.0), tuple(a + b for a, b in zip(old.counts, counts, strict=True)))
    assert quantile(old, summed, share) == expected


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (9, "9s"), (428, "7m8s"), (18360, "5h6m"), (273600, "3d4h"), (3600, "1h0m")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
