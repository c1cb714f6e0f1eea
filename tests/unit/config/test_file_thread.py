"""Reading beside the event loop: what it returns, and what becomes of a reader that hangs."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from gateway.config import FileThread, TooSlow


async def test_it_returns_and_raises_what_the_step_does() -> None:
    thread = FileThread(30)
    assert await thread(lambda: threading.current_thread().daemon) is True

    def fail() -> None:
        raise TimeoutError("of the file system")

    with pytest.raises(TimeoutError, match="of the file system"):
        await thread(fail)
    assert await asyncio.gather(*(thread(partial(abs, -number)) for number in range(5))) == [0, 1, 2, 3, 4]


async def test_the_loop_goes_on_meanwhile() -> None:
    """The step waits for something that only the loop can do."""
    allowed = threading.Event()
    asyncio.get_running_loop().call_soon(allowed.set)
    assert await FileThread(30)(lambda: allowed.wait(30))


async def test_one_that_hangs_is_given_up_and_no_other_is_started_beside_it() -> None:
    hung, ended, calls = threading.Event(), threading.Event(), []
    thread = FileThread(0.01)

    def step() -> None:
        hung.wait(30)
        ended.set()

    with pytest.raises(TooSlow, match=r"within 0\.01 s"):
        await thread(step)
    with pytest.raises(TooSlow, match="an earlier attempt"):
        await thread(lambda: calls.append(1))
    assert calls == []
    hung.set()
    await asyncio.to_thread(ended.wait, 30)
    while True:  # the thread has still to end
        try:
            await thread(lambda: calls.append(2))
            break
        except TooSlow:
            await asyncio.sleep(0)
    assert calls == [2]
