"""What is shown of the process."""

from __future__ import annotations

import io
import platform
from importlib.metadata import version

from gateway.core.figures import Histogram
from gateway.observe.log import Log
from gateway.observe.process import LoopLag, ProcessMetrics
from tests.support.harness import soon


def test_the_build_is_told_and_connections_where_somebody_serves() -> None:
    log = Log("info", True, io.BytesIO())
    process = ProcessMetrics(log, lambda: 2)
    build, lost = process.collect()
    assert lost.samples[0].value == 0
    (sample,) = build.samples
    assert sample.labels == {"version": version("dragoman"), "python": platform.python_version()}
    process.connections = lambda: 7
    log.lost = 3
    _, *others = process.collect()
    assert [one.samples[0].value for one in others] == [3, 7, 2]
    log.close()


async def test_lateness_of_the_loop_is_counted_until_it_is_stopped() -> None:
    figures = Histogram((0.01, 1.0))
    now = 0.0

    async def counted(values: int) -> None:
        await soon(lambda: sum(figures.counts) >= values)

    lag = LoopLag(figures, clock=lambda: now)
    lag.stop()
    lag.start()
    now = 0.6  # by this clock the timer comes half a second late
    await counted(1)
    assert figures.counts == [0, 1, 0]
    assert 0.499 < figures.total < 0.501
    now = 0.65  # and the next one early
    await counted(2)
    assert figures.counts == [1, 1, 0]
    lag.stop()
    lag.stop()
