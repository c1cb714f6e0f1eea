"""Figures of the limiter and of the accounting stream, for `/metrics`, read when they are scraped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.observe.exposition import family

if TYPE_CHECKING:
    from gateway.observe.accounting import AccountingStream
    from gateway.ratelimit import SubjectLimiter


class LimitMetrics(Collector):
    """limiter and stream are those in use, or None."""

    def __init__(self) -> None:
        self.limiter: SubjectLimiter | None = None
        self.stream: AccountingStream | None = None

    def collect(self) -> Iterator[Metric]:
        if (limiter := self.limiter) is not None:
            yield family("dragoman_limits_strict", [((), limiter.state == "strict")])
            yield family("dragoman_limits_replicas", [((), limiter.replicas)])
            yield family("dragoman_limits_in_flight", [((), limiter.in_flight)])
            yield family("dragoman_limits_alone_total", [((), limiter.alone)])
            yield family("dragoman_limit_decisions_total", limiter.decisions.items())
            yield family("dragoman_limits_refused_total", (((name,), n) for name, n in limiter.refused.items()))
            yield family("dragoman_limits_shadowed_total", (((name,), n) for name, n in limiter.shadowed.items()))
        if self.stream is not None:
            counts = [(("written",), self.stream.written), (("lost",), self.stream.lost)]
            yield family("dragoman_accounting_records_total", counts)
