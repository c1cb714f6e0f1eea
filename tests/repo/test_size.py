"""How many lines each room has, and how many of its sentences are hard to read: both grow by decision only.

A change that needs more lines raises the bound of its room in `LINES`, in the same commit, which says what for.
Sentences that open with Of, What, Who, Whoever, Else or Where are counted against `OPENERS`; a change lowers these
numbers and never raises them.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.repo.tree import ROOT, tracked

LINES = {
    "gateway": 560,
    "gateway/app": 2340,
    "gateway/auth": 1060,
    "gateway/backends": 3480,
    "gateway/cli": 1300,
    "gateway/config": 3700,
    "gateway/console": 1220,
    "gateway/core": 2660,
    "gateway/dialects": 8400,
    "gateway/fleet": 3540,
    "gateway/limiting": 540,
    "gateway/limits": 2520,
    "gateway/observe": 2320,
    "gateway/pipeline": 4000,
    "gateway/redis": 520,
    "gateway/server": 1500,
    "gateway/transport": 1100,
    "gateway/wire": 3840,
    "workers": 340,
    "workers/embedded": 460,
    "workers/simulated": 3940,
    "workers/vllm": 560,
}
"""Room -> the most lines of Python that it may have, blank lines and docstrings counted."""
OPENERS = {
    "docs": 94,
    "gateway": 6,
    "gateway/app": 32,
    "gateway/auth": 12,
    "gateway/backends": 8,
    "gateway/cli": 5,
    "gateway/config": 44,
    "gateway/console": 16,
    "gateway/core": 16,
    "gateway/dialects": 27,
    "gateway/fleet": 49,
    "gateway/limiting": 1,
    "gateway/limits": 7,
    "gateway/observe": 19,
    "gateway/pipeline": 29,
    "gateway/redis": 7,
    "gateway/server": 6,
    "gateway/transport": 5,
    "gateway/wire": 6,
    "workers": 1,
    "workers/embedded": 1,
    "workers/simulated": 9,
    "workers/vllm": 1,
}
"""Room -> the most sentences with such an opener, in comments and docstrings; for `docs` in pages."""

_OPENER = re.compile(r"(?:^|[.:;] )(?:Of|What|Who|Whoever|Else|Where)\b[ ,][^?]*?(?:[.:]|$)", re.MULTILINE)


def room_of(path: Path) -> str:
    """`gateway/core` for what lies below it, `gateway` for its own modules, and the top folder for all else."""
    first, *more = path.relative_to(ROOT).parts
    return f"{first}/{more[0]}" if first in ("gateway", "workers") and len(more) > 1 else first


def texts(source: str) -> Iterator[str]:
    """Docstrings and comments of a module. Comments in consecutive lines are one text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield re.sub(r"\s+", " ", node.value.value)
    lines: list[str] = []
    at = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if lines and token.start[0] != at + 1:
                yield " ".join(lines)
                lines = []
            at = token.start[0]
            lines.append(token.string.lstrip("# "))
    yield " ".join(lines)


def counted() -> tuple[Counter[str], Counter[str]]:
    """(lines, openers) by room."""
    lines: Counter[str] = Counter()
    openers: Counter[str] = Counter()
    for path in tracked("gateway/*.py", "workers/*.py", "docs/*.md", "README.md", "CONTRIBUTING.md"):
        text, room = path.read_text(), room_of(path)
        if path.suffix == ".py":
            lines[room] += text.count("\n")
            openers[room] += sum(len(_OPENER.findall(one)) for one in texts(text))
        else:
            openers["docs"] += len(_OPENER.findall(text))
    return lines, openers


def test_no_room_grows_without_a_decision() -> None:
    lines, _ = counted()
    assert lines.keys() == LINES.keys()
    assert {room: count for room, count in lines.items() if count > LINES[room]} == {}


def test_no_bound_is_far_above_its_room() -> None:
    """A bound that nothing reaches bounds nothing: who takes lines out lowers it."""
    lines, _ = counted()
    assert {room: lines[room] for room, most in LINES.items() if most > lines[room] + 100} == {}


def test_no_room_gets_more_sentences_that_are_hard_to_read() -> None:
    _, openers = counted()
    assert {room: count for room, count in openers.items() if count > OPENERS.get(room, 0)} == {}


def test_openers_are_found() -> None:
    source = '"""Of those one is left. A worker, where it stands, is fine."""\nx = 1  # What it says\n# goes on here.\n'
    assert sum(len(_OPENER.findall(text)) for text in texts(source)) == 2
