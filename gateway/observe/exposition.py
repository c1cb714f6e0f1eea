"""The answer of `/metrics`: families of the catalogue, and their text in slices that do not stall the event loop.

The text is Prometheus's own form, or OpenMetrics, which has exemplars, where a scraper asks for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from gateway.core.figures import Histogram
from gateway.observe.catalogue import FIGURES

_SAMPLES = 100
"""So many samples are written in one piece: about a millisecond."""
_TURN_S = 0.001
"""After so long the event loop has its turn."""
_OPEN = b"application/openmetrics-text"
_END = b"# EOF\n"


def family(name: str, samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
    """The counter or gauge `name` with `samples`: (the values of its labels, its value). Raises KeyError for a metric
    that is not described."""
    figure = FIGURES[name]
    kind = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
    made = kind(figure.family, figure.text, labels=figure.labels)
    for labels, value in samples:
        made.add_metric(labels, value)
    return made


def histogram(name: str, series: Iterable[tuple[Sequence[str], Histogram]]) -> Metric:
    """As `family`; each series with its exemplars."""
    figure = FIGURES[name]
    made = HistogramMetricFamily(name, figure.text, labels=figure.labels)
    bounds = [*map(str, map(float, figure.bounds)), "+Inf"]
    for labels, numbers in series:
        buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        for index, (bound, count) in enumerate(zip(bounds, accumulate(numbers.counts), strict=True)):
            exemplar = numbers.exemplars.get(index)
            if exemplar is None:
                buckets.append((bound, float(count)))
            else:
                trace, value, at = exemplar
                buckets.append((bound, float(count), Exemplar({"trace_id": trace}, value, at)))
        made.add_metric(labels, buckets, numbers.total)
    return made


def new_histogram(name: str) -> Histogram:
    """Plain numbers for one series of the histogram `name`, in the metric's own unit."""
    return Histogram(FIGURES[name].bounds)


def content_type(accept: bytes) -> bytes:
    """That of the text for a scraper that sends this `Accept` header, b"" for none."""
    return (openmetrics.CONTENT_TYPE_LATEST if _OPEN in accept else CONTENT_TYPE_LATEST).encode()


def slices(registry: Collector | CollectorRegistry, accept: bytes) -> Iterator[bytes]:
    """The text, one small piece after the other. The samples of one metric are of one moment."""
    wants_open = _OPEN in accept
    write = partial(openmetrics.generate_latest, version="1.0.0") if wants_open else generate_latest
    for whole in registry.collect():
        for first in range(0, len(whole.samples), _SAMPLES) or (0,):
            part = copy(whole)
            part.samples = whole.samples[first : first + _SAMPLES]
            text = write(Fixed([part]))
            if wants_open:
                text = text.removesuffix(_END)
            if first:  # HELP and TYPE, which stand once
                text = text.split(b"\n", 2)[2]
            yield text
    if wants_open:
        yield _END


async def in_turns(pieces: Iterator[bytes], clock: Callable[[], float] = time.perf_counter) -> bytes:
    """All of them. Others have their turn in between."""
    text = bytearray()
    began = clock()
    for piece in pieces:
        text += piece
        if clock() - began >= _TURN_S:
            await asyncio.sleep(0)
            began = clock()
    return bytes(text)


class Fixed(Collector):
    """Families in the form that the library's writers take."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
