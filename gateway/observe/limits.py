"""What the limiter and the accounting stream do, for `/metrics`. It is read when scraped; requests pay nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Limiter(Protocol):
    """What the metrics read of a limiter."""

    @property
    def refused(self) -> Mapping[str, int]: ...
    @property
    def shadowed(self) -> Mapping[str, int]: ...
    @property
    def alone(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def replicas(self) -> int: ...
    @property
    def in_flight(self) -> int: ...


class Stream(Protocol):
    """What the metrics read of the accounting stream."""

    written: int
    lost: int


class LimitMetrics(Collector):
    """limiter and stream are those in use, or None."""

    def __init__(self) -> None:
        self.limiter: Limiter | None = None
        self.stream: Stream | None = None

    def collect(self) -> Iterator[Metric]:
        if self.limiter is not None:
            yield from _limiter(self.limiter)
        if self.stream is not None:
            records = CounterMetricFamily(
                "dragoman_accounting_records", "Usage records by what became of them", labels=["result"]
            )
            records.add_metric(["written"], self.stream.written)
            records.add_metric(["lost"], self.stream.lost)
            yield records


def _limiter(limiter: Limiter) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "dragoman_limits_strict",
        "1 while the limits' store decides, 0 while this process decides alone",
        value=float(limiter.state == "strict"),
    )
    yield GaugeMetricFamily(
        "dragoman_limits_replicas", "Gateways on the same counters, as last known", value=limiter.replicas
    )
    yield GaugeMetricFamily(
        "dragoman_limits_in_flight", "Requests here that hold slots of a limit", value=limiter.in_flight
    )
    yield CounterMetricFamily(
        "dragoman_limits_alone",
        "Requests decided by this process alone, because the limits' store was down or too slow",
        value=limiter.alone,
    )
    for name, text, counts in (
        ("dragoman_limits_refused", "Requests refused by a limit", limiter.refused),
        ("dragoman_limits_shadowed", "Requests that a shadow limit would have refused", limiter.shadowed),
    ):
        family = CounterMetricFamily(name, text, labels=["limit"])
        for limit, count in list(counts.items()):
            family.add_metric([limit], count)
        yield family
