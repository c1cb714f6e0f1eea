"""Long steps of heavy requests (`wire.bulk.is_heavy`), run in threads while others are served.

A thread alone is not enough. The long steps are a few calls that hold the interpreter's lock for milliseconds each
(msgspec over 20 MB), and the event loop asks for that lock again for every connection that is ready. So
one step runs at a time, and waits between two of its calls until the loop has gone round once.

The wait is made by a profile hook, which is not free: reading 600 KB of 15,000 messages takes 85 ms with it and 51 ms
without; 400 KB of text take 1 ms in both. In return a loop of 50 connections goes round twice as often beside such
bodies: 4,497 times in 3 s with the hook, at worst in 162 ms, and without it 2,123 times, at worst in 325 ms (`make
bench-large`, on two cores that others used too). A plain thread also cannot be ended when its client leaves or its body
takes too long.

The requests of one owner are read and written one after the other. The steps of several owners take turns of 2 ms, so
that nobody waits for all that others sent. A request whose steps take more CPU than its size allows is refused.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from gateway.core.errors import GatewayError, Kind

T = TypeVar("T")

SLICE_S = 0.002
"""How long a step may run before it lets the loop go round, and the next owner's step run."""
MOST_CPU_S, MOST_CPU_S_PER_MIB = 1.0, 0.1
"""CPU seconds that the steps of one request may take. The worst body that the bounds on values allow took 0.4 s a MiB
before the whole request was written, and text 0.01 s a MiB (`make chaos ROWS=L9`)."""
# Owners whose steps have begun. The next owner's step begins when one of them ends.
_THREADS = 16
# How long a step waits for the loop: a loop that has ended never goes round.
_LONGEST_WAIT_S = 1.0


class Abandoned(BaseException):
    """Nobody waits for this step any more, or it took too long. This class is not an Exception, so that no step takes
    it for one of its own."""


class Share:
    """The part of the threads' time that one request may take, and its turn among the requests of its owner.

    owner   whose request it is: equal owners share one turn
    left_s  seconds of CPU
    """

    __slots__ = ("_has_turn", "_turn", "left_s", "owner")

    def __init__(self, owner: Hashable, size: int) -> None:
        """size: bytes of the request's body, and of what it refers to."""
        self.owner = owner
        self.left_s = MOST_CPU_S + MOST_CPU_S_PER_MIB * size / (1 << 20)
        self._turn = _owners.setdefault(owner, asyncio.Lock())
        self._has_turn = False

    def grow(self, size: int) -> None:
        """The request has `size` more bytes than was known."""
        self.left_s += MOST_CPU_S_PER_MIB * size / (1 << 20)

    async def wait_turn(self) -> None:
        """Returns when every earlier request of the owner has called `end_turn`.

        A request is several times its size in memory between its reading and the worker's request: with turns, one
        owner has that once (`make chaos ROWS=B10`).
        """
        await self._turn.acquire()
        self._has_turn = True

    def end_turn(self) -> None:
        """Lets the owner's next request go on. Further calls change nothing."""
        if self._has_turn:
            self._has_turn = False
            self._turn.release()


_owners: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
"""Owner of large requests -> their turn, which they hold one after the other."""


async def offload(step: Callable[..., T], *given: Any, share: Share | None = None) -> T:
    """Returns or raises what `step(*given)` does. The step must not touch what belongs to the loop. Without a `share`
    it has turns of its own. Raises GatewayError(TOO_LARGE) if the share is used up.

    Cancelling drops the step: one that is queued never begins, one that is running ends at its next call.
    """
    work = _Work(asyncio.get_running_loop(), step, given, share)
    _turns.add(work)
    try:
        return await asyncio.wrap_future(work.future)
    except asyncio.CancelledError:
        work.abandoned = True
        raise


async def run_step(share: Share | None, step: Callable[..., T], *given: Any) -> T:
    """As `offload`, but here and now for a request without a share."""
    return step(*given) if share is None else await offload(step, *given, share=share)


class _Work:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        step: Callable[..., Any],
        given: tuple[Any, ...],
        share: Share | None,
    ) -> None:
        self.abandoned = False
        self.owner: Hashable = self if share is None else share.owner
        self.future: Future[Any] = Future()
        self.turn = threading.Event()
        self._loop = loop
        self._step = step
        self._given = given
        self._share = share
        self._gone_round = threading.Event()
        self._since = self._used_s = 0.0

    def run(self) -> None:
        self.turn.wait()
        if self.future.set_running_or_notify_cancel():
            try:
                self.future.set_result(self._run())
            except BaseException as error:
                # Without the two frames here, which hold this step and so the error itself.
                trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
                self.future.set_exception(error.with_traceback(trace.tb_next if trace is not None else None))
        _turns.end(self)

    def _run(self) -> Any:
        self._since, self._used_s = time.monotonic(), time.thread_time()
        before = sys.getprofile()
        # Called at every call and return in this thread, and in no other.
        sys.setprofile(self._between_calls)
        try:
            return self._step(*self._given)
        except Abandoned:
            if self.abandoned:
                raise
        finally:
            sys.setprofile(before)
            self._spend()
        message = "the request takes too long to read: send fewer or smaller objects and lists"
        raise GatewayError(Kind.TOO_LARGE, message, code="body_too_costly")

    def _spend(self) -> None:
        used_s = time.thread_time()
        if self._share is not None:
            self._share.left_s -= used_s - self._used_s
        self._used_s = used_s

    def _between_calls(self, *_: object) -> None:
        if time.monotonic() - self._since > SLICE_S:
            self._spend()
            if self.abandoned or (self._share is not None and self._share.left_s < 0):
                raise Abandoned
            self._gone_round.clear()
            self._loop.call_soon_threadsafe(self._gone_round.set)  # runs after all that is ready now
            self._gone_round.wait(_LONGEST_WAIT_S)
            _turns.pass_on(self)
            self._since = time.monotonic()


class _Turns:
    """Which step runs. Called by loops and threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, "large-bodies")
        # One for each owner; the first has the turn.
        self._begun: deque[_Work] = deque()
        self._queued: list[_Work] = []

    def add(self, work: _Work) -> None:
        with self._lock:
            self._queued.append(work)
            self._begin()

    def pass_on(self, work: _Work) -> None:
        """The slice of `work` is over. Returns when it has the turn again."""
        with self._lock:
            if len(self._begun) == 1:
                return
            work.turn.clear()
            self._begun.rotate(-1)
            self._begun[0].turn.set()
        work.turn.wait()

    def end(self, work: _Work) -> None:
        with self._lock:
            self._begun.remove(work)
            self._begin()
            if self._begun:
                self._begun[0].turn.set()

    def _begin(self) -> None:
        """Begins the next steps of owners that have none begun, while there are threads."""
        busy = {work.owner for work in self._begun}
        while len(self._begun) < _THREADS:
            work = next((one for one in self._queued if one.owner not in busy), None)
            if work is None:
                return
            self._queued.remove(work)
            busy.add(work.owner)
            self._begun.append(work)
            if len(self._begun) == 1:
                work.turn.set()
            self._threads.submit(work.run)


_turns = _Turns()
