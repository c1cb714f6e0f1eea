"""What the limiter and the accounting stream do, for `/metrics`. It is read when scraped; requests pay nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.observe import exposition


class Limiter(Protocol):
    """What the metrics read of a limiter."""

    @property
    def refused(self) -> Mapping[str, int]: ...
    @property
    def shadowed(self) -> Mapping[str, int]: ...
    @property
    def decisions(self) -> Mapping[tuple[str, str, str], int]: ...
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
            records = exposition.counter("dragoman_accounting_records_total")
            records.add_metric(["written"], self.stream.written)
            records.add_metric(["lost"], self.stream.lost)
            yield records


def _limiter(limiter: Limiter) -> Iterator[Metric]:
    for name, value in (
        ("dragoman_limits_strict", float(limiter.state == "strict")),
        ("dragoman_limits_replicas", limiter.replicas),
        ("dragoman_limits_in_flight", limiter.in_flight),
    ):
        gauge = exposition.gauge(name)
        gauge.add_metric([], value)
        yield gauge
    alone = exposition.counter("dragoman_limits_alone_total")
    alone.add_metric([], limiter.alone)
    yield alone
    decisions = exposition.counter("dragoman_limit_decisions_total")
    for labels, count in limiter.decisions.items():
        decisions.add_metric(labels, count)
    yield decisions
    for name, counts in (
        ("dragoman_limits_refused_total", limiter.refused),
        ("dragoman_limits_shadowed_total", limiter.shadowed),
    ):
        family = exposition.counter(name)
        for limit, count in list(counts.items()):
            family.add_metric([limit], count)
        yield family
