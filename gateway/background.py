"""Background tasks, which do the same thing again and again, and their end; and long work that lets others run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
_log = logging.getLogger("gateway")


@contextmanager
def keep_running(task: str) -> Iterator[None]:
    """One round of a background task. An exception nobody expected ends the round and not the task: a gateway that has
    stopped to look at its workers, or at its keys, looks healthy. It is logged as a library's error is."""
    try:
        yield
    except Exception as error:
        _log.error(f"a round of a background task failed: {task}", exc_info=error)


async def in_turns(items: Iterable[T], every: int) -> AsyncIterator[T]:
    """`items`; after each `every` of them the event loop has its turn, however many there are."""
    for count, one in enumerate(items, 1):
        yield one
        if count % every == 0:
            await asyncio.sleep(0)


async def cancel_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancels tasks, and returns once they have ended, however they end. None is for one that was never begun."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
