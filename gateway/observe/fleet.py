"""Workers, the connections to them, their caches, the queues before them and the retry budget, for `/metrics`.

The figures are read when they are scraped; a request costs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.observe.exposition import family

_BREAKER_STATES = ("closed", "open", "half_open")
_CACHE_STATES = ("whole", "part", "silent")


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


class CacheFigures(Struct, frozen=True):
    """One worker of one model whose engine publishes what its cache holds. batches are counts by result."""

    model: str
    address: str
    connected: bool
    state: str
    batches: Mapping[str, int]
    blocks: int
    bytes: int


class FleetMetrics(Collector):
    """The arguments return the figures of now: connections and waiting (requests in queues) by model, budget as retries
    that may be made, picks by model and by what decided."""

    def __init__(
        self,
        workers: Callable[[], Iterable[WorkerFigures]],
        connections: Callable[[], Mapping[str, ConnectionFigures]],
        budget: Callable[[], float],
        waiting: Callable[[], Mapping[str, int]],
        caches: Callable[[], Sequence[CacheFigures]],
        picks: Callable[[], Mapping[str, Mapping[str, int]]],
    ) -> None:
        self._workers = workers
        self._connections = connections
        self._budget = budget
        self._waiting = waiting
        self._caches = caches
        self._picks = picks

    def collect(self) -> Iterator[Metric]:
        workers = [((one.model, one.address), one) for one in self._workers()]
        yield family("dragoman_queue_length", (((model,), count) for model, count in self._waiting().items()))
        yield family("dragoman_worker_in_flight", ((labels, one.in_flight) for labels, one in workers))
        bounded = ((labels, one.most) for labels, one in workers if one.most is not None)
        yield family("dragoman_worker_capacity", bounded)
        breakers = (((*labels, state), one.breaker == state) for labels, one in workers for state in _BREAKER_STATES)
        yield family("dragoman_worker_breaker", breakers)
        connections = self._connections().items()
        counts = (((model, state), getattr(one, state)) for model, one in connections for state in ("busy", "idle"))
        yield family("dragoman_upstream_connections", counts)
        yield family("dragoman_retry_budget", [((), self._budget())])
        caches = [((one.model, one.address), one) for one in self._caches()]
        yield family("dragoman_cache_connected", ((labels, one.connected) for labels, one in caches))
        known = (((*labels, state), one.state == state) for labels, one in caches for state in _CACHE_STATES)
        yield family("dragoman_cache_known", known)
        batches = (((*labels, result), n) for labels, one in caches for result, n in one.batches.items())
        yield family("dragoman_cache_batches_total", batches)
        yield family("dragoman_cache_blocks", ((labels, one.blocks) for labels, one in caches))
        yield family("dragoman_cache_bytes", ((labels, one.bytes) for labels, one in caches))
        picks = (((model, by), n) for model, counts in self._picks().items() for by, n in counts.items())
        yield family("dragoman_cache_picks_total", picks)
