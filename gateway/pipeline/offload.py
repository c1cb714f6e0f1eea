"""Long steps of heavy requests (`wire.bulk.is_heavy`), run in a thread while others are served.

A thread alone is not enough. The long steps are a few calls that hold the interpreter's lock for milliseconds each
(msgspec over 20 MB), and the event loop asks for that lock again for every connection that has something to say. So
this thread waits, between two of its calls, until the loop has gone round once.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

# How long the thread may run before it lets the loop go round.
_SLICE_S = 0.002
# How long it waits for that: a loop that has ended never goes round.
_LONGEST_WAIT_S = 1.0
# One thread, so that large bodies wait for each other instead of sharing memory and time.
_thread = ThreadPoolExecutor(1, "large-bodies")


class Abandoned(BaseException):
    """Nobody waits for this step any more. No Exception, so that no step mistakes it for one of its own."""


async def offload(step: Callable[..., T], *given: Any) -> T:
    """What `step(*given)` returns or raises. The step must not touch what belongs to the loop.

    Cancelling drops the step: one that is queued never begins, one that is running ends at its next call.
    """
    loop = asyncio.get_running_loop()
    work = _Work(loop, step, given)
    try:
        return await loop.run_in_executor(_thread, work.run)
    except asyncio.CancelledError:
        work.abandoned = True
        raise


class _Work:
    """One step on the thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, step: Callable[..., Any], given: tuple[Any, ...]) -> None:
        self.abandoned = False
        self._loop = loop
        self._step = step
        self._given = given
        self._gone_round = threading.Event()
        self._since = 0.0

    def run(self) -> Any:
        self._since = time.monotonic()
        before = sys.getprofile()
        # Called at every call and return in this thread, and in no other.
        sys.setprofile(self._between_calls)
        try:
            return self._step(*self._given)
        finally:
            sys.setprofile(before)

    def _between_calls(self, *_: object) -> None:
        if time.monotonic() - self._since > _SLICE_S:
            if self.abandoned:
                raise Abandoned
            self._gone_round.clear()
            self._loop.call_soon_threadsafe(self._gone_round.set)  # runs after all that is ready now
            self._gone_round.wait(_LONGEST_WAIT_S)
            self._since = time.monotonic()
