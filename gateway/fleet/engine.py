"""The load that engines report: gauges of their /metrics, read beside the requests.

A worker's figures count until they are stale: when two readings in a row have failed. From then on the gateway's own
counts alone stand for that worker's load.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

from msgspec.structs import replace

from gateway.background import cancel_tasks, keep_running
from gateway.core.http import Headers, header_value
from gateway.core.ports import Gauges
from gateway.fleet.capacity import forget, learn
from gateway.fleet.worker import OUTPUT_COSTS, EngineLoad, Worker

_WAITING = re.compile(rb"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_MOST = 1e18
"""Bound of every figure: one that is larger, or below 0, is not a count."""
_NUMBER = re.compile(rb"(?:\{[^}\n]*\})?[ \t]+([0-9.eE+-]+)")
_RANK = re.compile(rb'\{[^}\n]*\bengine="([^"\n]*)"')


def read_load(text: bytes, gauges: Gauges, in_flight: int) -> EngineLoad | None:
    """The load in a Prometheus exposition, summed over an engine's ranks; None if the gauges are missing.

    in_flight: our requests that run there at this time.
    """
    running, waiting = _sum(text, gauges.running), _sum(text, gauges.waiting)
    if running is None or waiting is None:
        return None
    counted = [None if name is None else _sum(text, name) for name in (gauges.prompt, gauges.cached, gauges.output)]
    prompt, cached, output = counted
    ranks = _ranks(text, gauges.running)
    moving = [_sum(text, name) for name in gauges.progress]
    progress = tuple(figure for figure in moving if figure is not None)
    if prompt is None or cached is None or output is None:
        return EngineLoad(running, waiting, in_flight, ranks=ranks, progress=progress)
    computed = max(0.0, prompt - cached) + OUTPUT_COSTS * output
    return EngineLoad(running, waiting, in_flight, computed, prompt + output, ranks, progress)


def _ranks(text: bytes, name: str) -> int:
    """Data parallel ranks behind one address: vLLM has a series of each, by its label `engine`."""
    found = [_RANK.match(text, end) for end in _series(text, name)]
    return max(1, len({one[1] for one in found if one is not None}))


def _sum(text: bytes, name: str) -> float | None:
    total, known = 0.0, False
    for end in _series(text, name):
        if (found := _NUMBER.match(text, end)) is not None:
            try:
                total += float(found[1])
            except ValueError:
                return None
            known = True
    return total if known and 0 <= total < _MOST else None


def _series(text: bytes, name: str) -> Iterator[int]:
    """The positions behind `name` at the beginnings of lines. An exposition has 100 KB, over which a regular expression
    takes some 90 times as long (1.8 ms)."""
    wanted = b"\n" + name.encode()
    if text.startswith(wanted[1:]):
        yield len(wanted) - 1
    at = text.find(wanted)
    while at >= 0:
        at += len(wanted)
        yield at
        at = text.find(wanted, at)


ASK = (b"endpoint-load-metrics-format", b"TEXT")
"""The header by which a request asks an engine for its load in the head of the reply."""
_REPORTED = b"endpoint-load-metrics"
_LONGEST = 4_096


def update_load(name: str, worker: Worker, headers: Headers) -> None:
    """Takes the requests that wait in the engine of `worker` from the head of a reply, in which they are called `name`.
    A head without them changes nothing, and so does one of a worker whose metrics could not be read lately.

    Source: ORCA's text form, as vLLM 0.33 writes it (`entrypoints/serve/utils/orca_metrics.py`):
    `TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=3.0`.
    """
    before = worker.reported
    current = header_value(headers, _REPORTED)
    if before is None or current is None or len(current) > _LONGEST or not current.startswith(b"TEXT "):
        return
    wanted = b"named_metrics." + name.encode()
    for pair in current[5:].split(b","):
        key, _, value = pair.strip().partition(b"=")
        if key == wanted and _WAITING.fullmatch(value):
            # Others' running requests are taken to be as many as before.
            running = before.running + worker.in_flight - before.in_flight
            worker.hold(replace(before, running=max(0.0, running), waiting=float(value), in_flight=worker.in_flight))


_SELDOM = 4
"""Intervals between two readings of an engine that does nothing, or reports nothing; twice as many after `_LONG`."""
_LONG = 8
"""Readings. A request of ours ends the pause of an engine that did nothing."""
_BESIDE_S = 0.5
"""The longest pause while the engine has requests that nobody waits for: they leave it soon if others wait."""


class Scraper:
    """Reads the metrics of workers every `interval_s`, each in a task of its own, until closed; less often while
    nothing changes.

    fetch   (model, worker) -> the exposition; raises OSError if it cannot be fetched, and must end in time
    report  called with (model, worker, whether its figures count) whenever that changed
    """

    def __init__(
        self,
        interval_s: float,
        fetch: Callable[[str, Worker], Awaitable[bytes]],
        report: Callable[[str, Worker, bool], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        # When a worker's metrics were read last.
        self._read_at: dict[Worker, float] = {}
        self._interval_s = interval_s
        self._fetch = fetch
        self._report = report
        self._tasks: dict[tuple[str, Worker], asyncio.Task[None]] = {}

    def follow(self, model: str, workers: Sequence[Worker], gauges: Gauges) -> None:
        """These are the workers of `model` from now on."""
        for key in [key for key in self._tasks if key[0] == model and key[1] not in workers]:
            self._tasks.pop(key).cancel()
            self._read_at.pop(key[1], None)
        for worker in workers:
            if (model, worker) not in self._tasks:
                self._tasks[model, worker] = asyncio.create_task(self._watch(model, worker, gauges))

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, {}
        await cancel_tasks(*tasks.values())

    async def _watch(self, model: str, worker: Worker, gauges: Gauges) -> None:
        failures = idle = 0
        part = random.random()  # of the first pause: those of many workers end one after the other
        while True:
            failures, before = failures + 1, worker.reported
            with keep_running("a worker's load"):
                if await self.look(model, worker, gauges):
                    failures = 0
            if failures >= 2 and worker.reported is not None:
                with keep_running("a worker's load"):
                    self._lose(model, worker)
            unchanged = failures > 2 or (not failures and worker.reported == before and worker.idle)
            idle = idle + 1 if unchanged else 0
            for _ in range(1 if idle < 2 else _SELDOM if idle < _LONG else 2 * _SELDOM):
                pause = self._interval_s
                await asyncio.sleep(part * (min(pause, _BESIDE_S) if worker.background else pause))
                part = 1.0
                if worker.in_flight and not failures:
                    break

    def _lose(self, model: str, worker: Worker) -> None:
        """Forgets the load that the worker's engine reported: it is stale."""
        worker.forget_load()
        forget(worker)
        self._read_at.pop(worker, None)
        self._report(model, worker, False)

    async def look(self, model: str, worker: Worker, gauges: Gauges) -> bool:
        """Reads one worker's metrics now; whether they could be read."""
        try:
            load = read_load(await self._fetch(model, worker), gauges, worker.in_flight)
        except OSError:  # an engine without metrics, one that is away: our own counts will do
            return False
        if load is None:
            return False
        fresh = worker.reported is None
        now = self._clock()
        worker.report_load(load, now - self._read_at.get(worker, now))
        worker.progress.read(load.progress, now)
        self._read_at[worker] = now
        learn(worker, load)
        if fresh:
            self._report(model, worker, True)
        return True
