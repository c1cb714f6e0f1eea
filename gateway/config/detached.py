"""Reading files beside the event loop, for as long as it may take and no longer.

A thread that waits for a file (a network mount that does not answer) cannot be stopped. So each reader has one thread
at most: while that one hangs, further calls fail at once. The threads are daemons and never keep the process alive,
which those of asyncio's executor would.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T")


class TooSlow(Exception):
    """The files did not answer in time."""


class Detached:
    """Calls functions in a thread, one at a time; `await detached(step)` returns or raises what `step` does.

    limit_s  seconds that a call may take; then `TooSlow` is raised, and by every call until that thread has ended
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._turn = asyncio.Lock()
        self._hanging: threading.Thread | None = None

    async def __call__(self, step: Callable[[], T]) -> T:
        async with self._turn:
            if self._hanging is not None and self._hanging.is_alive():
                raise TooSlow("an earlier attempt to read the files has not ended")
            loop = asyncio.get_running_loop()
            done: asyncio.Future[T] = loop.create_future()
            thread = threading.Thread(target=_work, args=(step, loop, done), name="configuration", daemon=True)
            thread.start()
            await asyncio.wait([done], timeout=self._limit_s)
            if not done.done():
                self._hanging = thread
                done.cancel()
                raise TooSlow(f"the files could not be read within {self._limit_s:g} s")
            return done.result()


def _work(step: Callable[[], T], loop: asyncio.AbstractEventLoop, done: asyncio.Future[T]) -> None:
    """In the thread: calls `step` and hands its result to the loop, if the caller still waits for it."""
    result: T | None = None
    error: BaseException | None = None
    try:
        result = step()
    except BaseException as raised:  # any exception goes to the caller
        error = raised

    def hand_over() -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast(T, result))

    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(hand_over)
