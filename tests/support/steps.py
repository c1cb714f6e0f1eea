"""Work counted in the interpreter's own steps, so that the machine's load says nothing."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal

Unit = Literal["opcode", "line"]


def lines(work: Callable[[], object], within: str, unit: Unit = "line") -> Counter[tuple[str, int]]:
    """How often `work` runs each line of files whose path holds `within`: (file, line) -> times. A loop in one line
    counts each round. unit: what is counted; a call of C code is one opcode."""
    counts: Counter[tuple[str, int]] = Counter()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if within not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = unit == "opcode", unit == "line"
        if event == unit:
            counts[frame.f_code.co_filename, frame.f_lineno] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return counts


def steps(work: Callable[[], object], unit: Unit = "opcode", within: str = "") -> int:
    """How many of them `work` takes in files whose path holds `within`."""
    return lines(work, within, unit).total()


def peak(work: Callable[[], object]) -> int:
    """The most bytes that `work` has allocated at one time: C code that copies is seen, which takes one opcode."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@contextmanager
def rounds() -> Iterator[list[int]]:
    """One number: how often the running loop has gone round since the block began."""
    found = [0]

    async def go_round() -> None:
        while True:
            found[0] += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(go_round())
    try:
        yield found
    finally:
        task.cancel()
