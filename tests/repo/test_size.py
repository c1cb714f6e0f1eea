"""Each room of the product has a bound on its lines: rooms grow by decision only.

A change that needs more lines raises the bound of its room in `LINES`, in the same commit, which says what for.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.repo.tree import ROOT, tracked

LINES = {
    "gateway": 575,
    "gateway/app": 2_416,
    "gateway/auth": 2_529,
    "gateway/backends": 1890,
    "gateway/cli": 5_126,
    "gateway/config": 5_035,
    "gateway/core": 4_111,
    "gateway/dialects": 10_630,
    "gateway/features": 13_523,
    "gateway/fleet": 6_447,
    "gateway/kernel": 3_522,
    "gateway/native": 514,
    "gateway/observe": 2_130,
    "gateway/ratelimit": 4_299,
    "gateway/redis": 472,
    "gateway/server": 1_844,
    "gateway/tools": 534,
    "gateway/translation": 1_913,
    "gateway/transport": 1_741,
    "gateway/wire": 8_242,
    "workers": 490,
    "workers/embedded": 370,
    "workers/simulated": 1125,
    "workers/vllm": 540,
}
"""Room -> the most lines of Python or Cython that it may have, blank lines and docstrings counted."""


def room_of(path: Path) -> str:
    """`gateway/core` for what lies below it, `gateway` for its own modules, and the top folder for all else."""
    first, *more = path.relative_to(ROOT).parts
    return f"{first}/{more[0]}" if first in ("gateway", "workers") and len(more) > 1 else first


def counted() -> Counter[str]:
    """The lines of each room."""
    lines: Counter[str] = Counter()
    for path in tracked("gateway/*.py", "gateway/*.pyx", "workers/*.py"):
        lines[room_of(path)] += path.read_text().count("\n")
    return lines


def test_no_room_grows_without_a_decision() -> None:
    lines = counted()
    assert lines.keys() == LINES.keys()
    assert {room: count for room, count in lines.items() if count > LINES[room]} == {}


def test_no_bound_is_far_above_its_room() -> None:
    """A bound that nothing reaches bounds nothing: a change that takes lines out lowers it."""
    lines = counted()
    assert {room: lines[room] for room, most in LINES.items() if most > lines[room] + 100} == {}
