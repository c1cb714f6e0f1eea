"""The process itself, for `/metrics`: its build, its client connections, and how late its event loop is."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.core.figures import Histogram
from gateway.observe.exposition import family
from gateway.observe.log import Log

_EVERY_S = 0.1


class ProcessMetrics(Collector):
    """connections returns the number of open client connections; None before the server has started. sockets returns
    how many of them are web sockets."""

    def __init__(self, log: Log, sockets: Callable[[], int]) -> None:
        self._log = log
        self._sockets = sockets
        self.connections: Callable[[], int] | None = None
        self._build = (version("dragoman"), platform.python_version())

    def collect(self) -> Iterator[Metric]:
        yield family("dragoman_build_info", [(self._build, 1)])
        yield family("dragoman_log_lines_lost_total", [((), self._log.lost)])
        if self.connections is not None:
            yield family("dragoman_connections", [((), self.connections())])
            yield family("dragoman_sockets", [((), self._sockets())])


class LoopLag:
    """Adds to `figures` how many seconds late the event loop comes to a timer, ten times a second, and calls `late`."""

    def __init__(
        self,
        figures: Histogram,
        clock: Callable[[], float] = time.monotonic,
        late: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._figures = figures
        self._late = late
        self._clock = clock
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._due = self._clock() + _EVERY_S
        self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self._look)

    def _look(self) -> None:
        # A timer of uvloop may come up to a millisecond early.
        seconds = max(0.0, self._clock() - self._due)
        self.start()  # first: whatever is raised below, the readings go on
        self._figures.add(seconds)
        self._late(seconds)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
