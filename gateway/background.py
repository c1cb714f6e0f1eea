"""Background tasks, which do the same thing again and again, and their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_log = logging.getLogger("gateway")


@contextmanager
def keep_running(task: str) -> Iterator[None]:
    """One round of a background task. An exception nobody expected ends the round and not the task: a gateway that has
    stopped to look at its workers, or at its keys, looks healthy. It is logged as a library's error is."""
    try:
        yield
    except Exception as error:
        _log.error(f"a round of a background task failed: {task}", exc_info=error)


async def cancel_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancels tasks, and returns once they have ended, however they end. None is for one that was never begun."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
