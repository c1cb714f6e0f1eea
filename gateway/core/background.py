"""Background tasks that do the same thing again and again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_log = logging.getLogger("gateway")


@contextmanager
def keep_running(task: str) -> Iterator[None]:
    """One round of a background task. An exception nobody expected ends the round and not the task: a gateway that has
    stopped to look at its workers, or at its keys, looks healthy. It is logged as a library's error is."""
    try:
        yield
    except Exception as error:
        _log.error(f"a round of a background task failed: {task}", exc_info=error)
