"""How many requests wait for a worker, for `/metrics`. Read when scraped; costs a request nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.observe import exposition


class QueueMetrics(Collector):
    """waiting tells how many requests wait, by model; a model without any is there with 0."""

    def __init__(self, waiting: Callable[[], Mapping[str, int]]) -> None:
        self._waiting = waiting

    def collect(self) -> Iterator[Metric]:
        length = exposition.gauge("dragoman_queue_length")
        for model, count in self._waiting().items():
            length.add_metric([model], count)
        yield length
