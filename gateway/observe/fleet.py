"""Workers, the connections to them and the retry budget, for `/metrics`. Read when scraped; costs a request nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.observe import exposition

_STATES = ("closed", "open", "half_open")


class WorkerFigures(Struct, frozen=True):
    """One worker of one model; most is the bound on `in_flight`, breaker the state of its breaker."""

    model: str
    address: str
    in_flight: int
    most: int | None
    breaker: str


class ConnectionFigures(Struct, frozen=True):
    """Connections to the workers of one model that are open now."""

    busy: int
    idle: int


class FleetMetrics(Collector):
    """workers, connections (by model) and budget (retries that may be made now) tell how things stand."""

    def __init__(
        self,
        workers: Callable[[], Iterable[WorkerFigures]],
        connections: Callable[[], Mapping[str, ConnectionFigures]],
        budget: Callable[[], float],
    ) -> None:
        self._workers = workers
        self._connections = connections
        self._budget = budget

    def collect(self) -> Iterator[Metric]:
        in_flight = exposition.gauge("dragoman_worker_in_flight")
        most = exposition.gauge("dragoman_worker_capacity")
        breaker = exposition.gauge("dragoman_worker_breaker")
        for worker in self._workers():
            in_flight.add_metric([worker.model, worker.address], worker.in_flight)
            if worker.most is not None:
                most.add_metric([worker.model, worker.address], worker.most)
            for state in _STATES:
                breaker.add_metric([worker.model, worker.address, state], float(worker.breaker == state))
        yield from (in_flight, most, breaker)
        connections = exposition.gauge("dragoman_upstream_connections")
        for model, found in self._connections().items():
            connections.add_metric([model, "busy"], found.busy)
            connections.add_metric([model, "idle"], found.idle)
        yield connections
        budget = exposition.gauge("dragoman_retry_budget")
        budget.add_metric([], self._budget())
        yield budget
