"""Requests that run without an asyncio task, and the work of one turn of the event loop, gathered.

`LoopRound` gathers. A request that is read, answered and written before the next one is read meets caches that the
kernel has just filled with its own code. So first everything is read, then all requests go on, then everything is
written.

`LightTask` runs a request's coroutine. A plain request waits once, for its worker: a task for it, a future for the wait
and the loop's callbacks between them cost more than they bring. A light task goes on when a `OneTimeEvent` is set or an
asyncio future is done. Code that asks asyncio for the current task (`asyncio.timeout` does) needs a real one:
`become_task` goes on as one. A coroutine that runs in a plain task may use all of this, too; then an event is a future,
and `become_task` does nothing.

The figures are in docs/performance.md.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

Value = TypeVar("Value")


class AnyTask(Protocol):
    """A `LightTask` or an asyncio task, whichever runs a coroutine."""

    def cancel(self) -> bool: ...
    def uncancel(self) -> int: ...


class OneTimeEvent:
    """Something that happens once, and cannot fail. One coroutine may wait for it, before or after it happened."""

    __slots__ = ("_future", "_light_task", "happened")

    def __init__(self) -> None:
        self.happened = False
        self._light_task: LightTask | None = None
        self._future: asyncio.Future[None] | None = None

    def set(self) -> None:
        """It has happened. The coroutine that waits is resumed by the loop, not in here. Idempotent."""
        if self.happened:
            return
        self.happened = True
        if self._light_task is not None:
            self._light_task.resume(self)
        elif self._future is not None and not self._future.done():
            self._future.set_result(None)

    def __await__(self) -> Generator[Any, None, Any]:
        if self.happened:
            return
        task = _current.task
        if task is None:
            self._future = asyncio.get_running_loop().create_future()
            yield from self._future
        else:
            self._light_task = task
            yield self


class Promise(OneTimeEvent, Generic[Value]):
    """An event that brings a value or an error. A future would resume a light task one turn of the loop later.

    left  the coroutine that awaited it was cancelled before the value came
    """

    __slots__ = ("_error", "left", "value")

    def __init__(self) -> None:
        # Without super(): one call fewer for each request that a shared store decides.
        self.happened = False
        self._light_task: LightTask | None = None
        self._future: asyncio.Future[None] | None = None
        self.left = False
        self.value: Value | None = None  # None: it has not come, or is an error
        self._error: Exception | None = None

    @property
    def done(self) -> bool:
        """The value came, or no coroutine waits for it any more."""
        return self.happened or self.left

    def bring(self, value: Value) -> None:
        self.value = value
        self.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self.set()

    def __await__(self) -> Generator[Any, None, Value]:
        try:
            yield from OneTimeEvent.__await__(self)  # without super(): a call fewer
        except BaseException:
            self.left = not self.happened
            raise
        if self._error is not None:
            raise self._error
        return cast("Value", self.value)


class _BecomeTask:
    """Awaited, it makes a light task go on as an asyncio task."""

    def __await__(self) -> Generator[Any, None, None]:
        yield self


_BECOME_TASK = _BecomeTask()


class Arrived(Protocol):
    """A connection for which something was read."""

    def take_in(self) -> None:
        """Does what it has to do with it."""


class Written(Protocol):
    """A connection with something to write."""

    def flush(self) -> None: ...


class LoopRound:
    """The work of one event loop, gathered: `LoopRound.for_loop(loop)`.

    In each turn of the loop there is one round, after all that could be read was read. First everything that came is
    taken in, then the light tasks that are due run, then everything that was written is sent, each for all connections.

    in_round  the round is under way: what is written now is sent at its end
    alone     one light task runs in this round: to gather brings it nothing
    outbox    the connections that `send` was called with. Unless it is empty the round is due, and the native relay
              adds to it itself
    """

    _of: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopRound] = WeakKeyDictionary()

    def __init__(self) -> None:
        self.in_round = self.alone = False
        self._arrived: list[Arrived] = []
        self._due: list[LightTask] = []
        self.outbox: list[Written] = []
        self._scheduled = False

    @classmethod
    def for_loop(cls, loop: asyncio.AbstractEventLoop) -> LoopRound:
        found = cls._of.get(loop)
        if found is None:
            found = cls._of[loop] = cls()
        return found

    def arrived(self, connection: Arrived) -> None:
        """Has `connection` take in what was read for it, in the next round. To be called once until then."""
        self._arrived.append(connection)
        if not self._scheduled:
            self._schedule()

    def resume(self, task: LightTask) -> None:
        """Runs `task` in the next round, or in this one while all that came is taken in. It must not be due yet."""
        self._due.append(task)
        if not self._scheduled:
            self._schedule()

    def send(self, connection: Written) -> None:
        """Flushes `connection` at the end of the round. To be called once until then."""
        self.outbox.append(connection)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        self.in_round = True
        try:
            arrived, self._arrived = self._arrived, []
            for reader in arrived:
                try:
                    reader.take_in()
                except Exception as error:
                    _report(error)
            due, self._due = self._due, []
            self.alone = len(due) == 1
            for task in due:
                try:
                    task.step()
                except Exception as error:
                    _report(error)
            self.alone = False
            outbox, self.outbox = self.outbox, []
            for writer in outbox:
                try:
                    writer.flush()
                except Exception as error:
                    _report(error)
        finally:
            self.in_round = self._scheduled = False
            if self._arrived or self._due or self.outbox:
                self._schedule()


class LightTask:
    """Runs `coroutine`, at first in the next round. on_done is called with this light task when it has ended.

    It behaves as an asyncio task: it is cancelled at its wait, and an uncaught exception goes to the loop's exception
    handler.
    """

    __slots__ = ("_cancelled", "_coroutine", "_on_done", "_round", "_task", "_waits_for")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, None],
        loop_round: LoopRound,
        on_done: Callable[[Any], object],
    ) -> None:
        self._coroutine = coroutine
        self._round = loop_round
        self._on_done = on_done
        self._cancelled = False  # raised when it runs next
        # None: it runs, or is due.
        self._waits_for: OneTimeEvent | asyncio.Future[Any] | None = None
        self._task: asyncio.Task[None] | None = None
        loop_round.resume(self)

    def cancel(self, msg: object = None) -> bool:
        """As a task's: CancelledError is raised where the coroutine waits, not before the loop's next round."""
        if self._task is not None:
            return self._task.cancel()
        waits_for = self._waits_for
        if isinstance(waits_for, asyncio.Future) and waits_for.cancel():
            return True  # which resumes this light task
        self._cancelled = True
        if waits_for is not None:
            self.resume(waits_for)
        return True

    def uncancel(self) -> int:
        """As a task's. The coroutine has dealt with its cancellation."""
        return self._task.uncancel() if self._task is not None else 0

    def resume(self, awaited: object) -> None:
        """`awaited` has happened. Ignored if the coroutine no longer waits for it."""
        if self._waits_for is awaited:
            self._waits_for = None
            self._round.resume(self)

    def step(self) -> None:
        """Runs the coroutine until it waits or ends. Called by the loop, never from within a coroutine."""
        _current.task = self
        try:
            if self._cancelled:
                self._cancelled = False
                awaited = self._coroutine.throw(asyncio.CancelledError())
            else:
                awaited = self._coroutine.send(None)
        except (StopIteration, asyncio.CancelledError):
            self._on_done(self)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._on_done(self)
            _report(error)
        else:
            self._wait_for(awaited)
        finally:
            _current.task = None

    def _wait_for(self, awaited: Any) -> None:
        if isinstance(awaited, OneTimeEvent):
            self._waits_for = awaited
        elif awaited is _BECOME_TASK:
            # The coroutine has begun, so a cancellation reaches it where it is.
            self._task = task = asyncio.get_running_loop().create_task(self._coroutine)
            task.add_done_callback(self._task_ended)
        elif awaited is None:  # asyncio.sleep(0)
            self._round.resume(self)
        else:
            self._waits_for = awaited
            awaited.add_done_callback(self.resume)
        if self._cancelled and (self._waits_for is not None or self._task is not None):
            self._cancelled = False
            self.cancel()  # it was asked for while the coroutine ran

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._on_done(self)
        if not task.cancelled() and (error := task.exception()) is not None:
            _report(error)


def _report(error: BaseException) -> None:
    context = {"message": "a request raised an exception", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)


class _Current(threading.local):
    """The light task whose coroutine runs now, in each thread: loops of several threads do not know each other."""

    task: LightTask | None = None


_current = _Current()


def current_task() -> AnyTask | None:
    """The task that runs the caller's coroutine."""
    return _current.task or asyncio.current_task()


async def become_task() -> None:
    """From here on the caller runs in an asyncio task."""
    if _current.task is not None:
        await _BECOME_TASK
