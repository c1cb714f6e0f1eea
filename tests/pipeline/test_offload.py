"""Long steps aside: the loop goes round between any two calls of one."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest

from gateway.pipeline.offload import offload


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def test_the_loop_goes_round_between_long_calls() -> None:
    turns = 0
    seen: list[int] = []

    async def turning() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def step(times: int) -> str:
        # All that keeps it from having the interpreter to itself for minutes is what is tested here.
        before = sys.getswitchinterval()
        sys.setswitchinterval(60)
        try:
            for _ in range(times):
                spin(0.003)
                seen.append(turns)
        finally:
            sys.setswitchinterval(before)
        return threading.current_thread().name

    task = asyncio.ensure_future(turning())
    name = await offload(step, 5)
    task.cancel()
    assert name != threading.current_thread().name
    assert len(set(seen)) == 5, "the loop stood still between two of them"


async def test_what_a_step_raises_is_raised_and_the_next_one_is_none_the_worse() -> None:
    def step() -> None:
        raise LookupError("this one")

    with pytest.raises(LookupError, match="this one"):
        await offload(step)
    assert await offload(sys.getprofile) is not None
    assert sys.getprofile() is None
