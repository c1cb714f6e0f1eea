"""Work counted in the interpreter's own steps, so that the machine's load says nothing."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal


def steps(work: Callable[[], object], unit: Literal["opcode", "line"] = "opcode", within: str = "") -> int:
    """How many of them `work` takes in files whose path holds `within`; a call of C code is one opcode."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if within not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = unit == "opcode", unit == "line"
        count += event == unit
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def lines(work: Callable[[], object], within: str) -> Counter[tuple[str, int]]:
    """How often `work` runs each line of files whose path holds `within`: (file, line) -> times. A loop in one line
    counts each round."""
    counts: Counter[tuple[str, int]] = Counter()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if within not in frame.f_code.co_filename:
            return None
        if event == "line":
            counts[frame.f_code.co_filename, frame.f_lineno] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return counts
