"""What is known of engines' prefix caches, for `/metrics`. Read when scraped; costs a request nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.observe import exposition

_STATES = ("whole", "part", "silent")


class CacheFigures(Struct, frozen=True):
    """One worker of one model whose engine is to tell what it has. batches are counts by result."""

    model: str
    address: str
    connected: bool
    state: str
    batches: Mapping[str, int]
    blocks: int
    bytes: int


class CacheMetrics(Collector):
    """caches tells how things stand; picks what decided, by model."""

    def __init__(
        self, caches: Callable[[], Iterable[CacheFigures]], picks: Callable[[], Mapping[str, Mapping[str, int]]]
    ) -> None:
        self._caches = caches
        self._picks = picks

    def collect(self) -> Iterator[Metric]:
        connected = exposition.gauge("dragoman_cache_connected")
        known = exposition.gauge("dragoman_cache_known")
        batches = exposition.counter("dragoman_cache_batches_total")
        blocks = exposition.gauge("dragoman_cache_blocks")
        held = exposition.gauge("dragoman_cache_bytes")
        for cache in self._caches():
            labels = [cache.model, cache.address]
            connected.add_metric(labels, float(cache.connected))
            for state in _STATES:
                known.add_metric([*labels, state], float(cache.state == state))
            for result, count in cache.batches.items():
                batches.add_metric([*labels, result], count)
            blocks.add_metric(labels, cache.blocks)
            held.add_metric(labels, cache.bytes)
        yield from (connected, known, batches, blocks, held)
        picks = exposition.counter("dragoman_cache_picks_total")
        for model, counts in self._picks().items():
            for by, count in counts.items():
                picks.add_metric([model, by], count)
        yield picks
