"""Reading files beside the event loop, for as long as it may take and no longer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class TooSlow(Exception):
    """The files did not answer in time."""


class FileThread:
    """Calls functions in a thread, one at a time; `await thread(step)` returns or raises what `step` does.

    A thread that waits for a file (a network mount that does not answer) cannot be stopped. Thus there is one at most,
    and it is a daemon: asyncio's own threads would keep the process from ending.

    limit_s  seconds that a call may take; then `TooSlow` is raised, and by every call until that thread has ended
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._turn = asyncio.Lock()
        self._running: Future[Any] | None = None

    async def __call__(self, step: Callable[[], T]) -> T:
        async with self._turn:
            if self._running is not None and not self._running.done():
                raise TooSlow("an earlier attempt to read the files has not ended")
            done: Future[T] = Future()
            done.set_running_or_notify_cancel()
            threading.Thread(target=_work, args=(step, done), name="configuration", daemon=True).start()
            self._running = done
            answer = asyncio.wrap_future(done)
            try:
                await asyncio.wait([answer], timeout=self._limit_s)
            finally:
                answer.cancel()  # the loop is not called by a thread that ends too late
            if not done.done():
                raise TooSlow(f"the files could not be read within {self._limit_s:g} s")
            return done.result()


def _work(step: Callable[[], T], done: Future[T]) -> None:
    try:
        done.set_result(step())
    except BaseException as error:  # any exception goes to the caller
        done.set_exception(error)
