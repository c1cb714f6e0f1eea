"""Requests that come at a rate, whatever became of the earlier ones.

uvloop's timers count whole milliseconds, in which a busy gateway is sent several requests: they would come in bursts.
So a timer of the kernel (timerfd_create(2)) says when the next one is due.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from bench.peers.load import PATIENCE_S, Caller, Taken
from bench.process import BenchError

_MONOTONIC = 1
_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Timer(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


@contextmanager
def _timer() -> Iterator[int]:
    descriptor: int = _libc.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise BenchError(f"the system gives no timer: {os.strerror(ctypes.get_errno())}")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _set(timer: int, seconds: float) -> None:
    """`timer` becomes readable in so many seconds."""
    nanoseconds = max(int(seconds * 1e9), 1)
    value = _Timer(_Timespec(0, 0), _Timespec(*divmod(nanoseconds, 10**9)))
    _libc.timerfd_settime(timer, 0, ctypes.byref(value), None)


class _Arrivals:
    """The requests of one turn, on connections that are there already. One that finds none free waits for one, and its
    wait counts."""

    def __init__(self, callers: Sequence[Caller], data: bytes, rate: float, seconds: float) -> None:
        self._free, self._waiting = list(callers), deque[float]()
        self._callers, self._data, self._rate = len(callers), data, rate
        # Every turn gets the same times.
        self._random = random.Random(1)
        self._due = time.perf_counter()
        self._end = self._due + seconds
        self.firsts: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def next_s(self) -> float | None:
        """Sends what is due; returns the seconds until the next one, or None after the last."""
        now = time.perf_counter()
        while self._due <= min(now, self._end):
            if self._free:
                self._ask(now)
            else:
                self._waiting.append(now)
            self._due += self._random.expovariate(self._rate)
        if self._due <= self._end:
            return self._due - now
        self._end = 0.0
        self._look()
        return None

    def _ask(self, since: float) -> None:
        caller = self._free.pop()
        caller.ask(self._data, True).add_done_callback(partial(self._answered, caller, since - time.perf_counter()))

    def _answered(self, caller: Caller, earlier: float, answer: asyncio.Future[Taken]) -> None:
        if answer.cancelled() or self.done.done():
            return
        error = answer.exception()
        if error is not None or answer.result().refusal:
            self.done.set_exception(error or BenchError(answer.result().refusal))
            return
        self.firsts.append(answer.result().first_s - earlier)
        self._free.append(caller)
        if self._waiting:
            self._ask(self._waiting.popleft())
        self._look()

    def _look(self) -> None:
        if not self._end and len(self._free) == self._callers and not self.done.done():
            self.done.set_result(None)


async def at_rate(callers: Sequence[Caller], data: bytes, rate: float, seconds: float) -> list[float]:
    """Seconds to the first chunk of each of the streams that begin in `seconds`, `rate` a second, at random times.
    Raises BenchError if one is refused."""
    turn, loop = _Arrivals(callers, data, rate, seconds), asyncio.get_running_loop()

    def arrive(timer: int) -> None:
        os.read(timer, 8)
        following = turn.next_s()
        if following is not None:
            _set(timer, following)

    with _timer() as timer:
        loop.add_reader(timer, arrive, timer)
        try:
            _set(timer, 0)
            await asyncio.wait_for(turn.done, PATIENCE_S)
        finally:
            loop.remove_reader(timer)
    return turn.firsts
