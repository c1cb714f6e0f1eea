"""Long steps of heavy requests (`wire.bulk.is_heavy`), run in one thread while others are served.

One step runs at a time, in the order in which they came. A step ends by itself: the bounds on values hold its time in
proportion to the body's size (`wire.bulk`), and its client may have left meanwhile. The requests and large replies of
one owner are read and written one after the other, so that an owner waits for one step of each other owner at most. A
request whose steps took more CPU than its size allows is refused.

The event loop asks for the interpreter's lock again for every connection that is ready, and waits for it each time for
as long as the interpreter lets the thread go on. `make bench-large` measures how long the loop stands still.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from gateway.core.errors import GatewayError, Kind

T = TypeVar("T")

AT_ONCE = 1 << 18
"""Bytes of a body that one look takes on the event loop: to hash them takes about 0.3 ms. More go to the thread."""
MOST_CPU_S, MOST_CPU_S_PER_MIB = 1.0, 0.1
"""CPU seconds that the steps of one request may take. The worst body that the bounds on values allow took 0.4 s a MiB
before the whole request was written, and text 0.01 s a MiB (`make chaos ROWS=L9`)."""
_SWITCH_S = 0.0005
"""The interpreter's switch interval from the first such step on: the time after which the thread lets go of the lock
that the event loop asks for again and again. The default is 5 ms. `make chaos ROWS=L6` measures small streams beside
large bodies."""
_thread = ThreadPoolExecutor(1, "large-bodies", sys.setswitchinterval, (_SWITCH_S,))


class Share:
    """The part of the thread's time that one request may take, and its turn among the requests of its owner.

    left_s  seconds of CPU
    """

    __slots__ = ("_has_turn", "_turn", "left_s")

    def __init__(self, owner: Hashable, size: int) -> None:
        """owner: whose request it is; equal owners share one turn. size: bytes of the request's body, and of what it
        refers to."""
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
    """Returns or raises what `step(*given)` does. The step must not touch what belongs to the loop. Raises
    GatewayError(TOO_LARGE) if the share is used up.

    Cancelling drops the step: one that is queued never begins, and nobody gets what a running one returns.
    """
    return await asyncio.get_running_loop().run_in_executor(_thread, _run, step, given, share)


async def offload_in_turn(owner: Hashable, step: Callable[..., T], *given: Any, share: Share | None = None) -> T:
    """As `offload`, once the owner's earlier requests and replies have been read and written."""
    async with _owners.setdefault(owner, asyncio.Lock()):
        return await offload(step, *given, share=share)


async def run_step(share: Share | None, step: Callable[..., T], *given: Any) -> T:
    """As `offload`, but here and now for a request without a share."""
    return step(*given) if share is None else await offload(step, *given, share=share)


def _run(step: Callable[..., T], given: tuple[Any, ...], share: Share | None) -> T:
    if share is None:
        return step(*given)
    began = time.thread_time()
    try:
        returned = step(*given)
    finally:
        share.left_s -= time.thread_time() - began
    if share.left_s < 0:
        message = "the request takes too long to read: send fewer or smaller objects and lists"
        raise GatewayError(Kind.TOO_LARGE, message, code="body_too_costly")
    return returned
