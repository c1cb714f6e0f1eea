"""Long steps of a large request, done while others are served.

A thread alone would not do: what is long here is a few calls that hold the interpreter's lock for milliseconds (msgspec
over 20 MB), and the loop asks for that lock again for each connection that has something to say, so that it would wait
for all of them. This thread lets the loop go round between any two of its calls.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

LARGE = 1 << 20
"""A body of more bytes takes milliseconds to read and to write, some of them 2 a MiB."""

_AT_ONCE_S = 0.002
# A loop that has ended goes round no more.
_LONGEST_S = 1.0
# One, so that bodies wait for each other instead of sharing memory and time.
_thread = ThreadPoolExecutor(1, "large-bodies")


async def offload(step: Callable[..., T], *given: Any) -> T:
    """What `step` returns or raises. It must not touch what belongs to the loop."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread, partial(_politely, loop, step, given))


def _politely(loop: asyncio.AbstractEventLoop, step: Callable[..., T], given: tuple[Any, ...]) -> T:
    gone_round = threading.Event()
    since = time.monotonic()

    def breathe(*_: object) -> None:
        nonlocal since
        if time.monotonic() - since > _AT_ONCE_S:
            gone_round.clear()
            loop.call_soon_threadsafe(gone_round.set)  # runs after all that is ready now
            gone_round.wait(_LONGEST_S)
            since = time.monotonic()

    # Tells of every call and return in this thread, and in no other.
    sys.setprofile(breathe)
    try:
        return step(*given)
    finally:
        sys.setprofile(None)
