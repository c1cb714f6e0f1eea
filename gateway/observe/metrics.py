"""Prometheus metrics of the gateway. Label values come from configuration and closed sets only, never from a client.

Per request only plain numbers are added up; prometheus-client turns them into metrics when it is scraped. (Its own
counters and histograms cost some 10 µs a request, a tenth of all that a request may cost.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.core.ports import RequestRecord

_BOUNDS_MS = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000)
_BOUNDS = (*(str(bound / 1000) for bound in _BOUNDS_MS), "+Inf")
_TOGETHER = 256
MOST_TEAMS = 100
"""Teams that have series of their own; the rest together are `other`."""

CONTENT_TYPE = CONTENT_TYPE_LATEST.encode()

# Without this the library adds a gauge `..._created` beside each of its own counters.
disable_created_metrics()  # type: ignore[no-untyped-call]


class _Series:
    """The sums of all requests with the same labels. A request costs one look-up and a few additions."""

    __slots__ = ("count", "dropped", "first", "first_ms", "input", "key", "output", "seconds", "total_ms")

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.count = 0
        self.input = 0
        self.output = 0
        self.dropped = 0
        self.seconds = [0] * len(_BOUNDS)
        self.total_ms = 0.0
        self.first = [0] * len(_BOUNDS)
        self.first_ms = 0.0


class _Key(NamedTuple):
    dialect: str
    operation: str
    model: str
    status: int
    outcome: str
    team: str | None
    source: str | None


class Metrics:
    """registry is what `/metrics` shows; other rooms may add collectors of their own to it."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.ready = Gauge(
            "dragoman_worker_ready",
            "1 while the worker's health probe succeeds",
            ["model", "worker"],
            registry=registry,
        )
        self.ejected = Counter(
            "dragoman_worker_ejections", "Times the breaker left the worker out", ["model", "worker"], registry=registry
        )
        self.draining = Gauge("dragoman_draining", "1 while shutting down", registry=registry)
        self.reloads = Counter("dragoman_reloads", "Configuration reloads by result", ["result"], registry=registry)
        self.bugs = Counter("dragoman_bugs", "Requests that failed by a bug of the gateway", registry=registry)
        self.refused = Counter(
            "dragoman_refused_connections",
            "Connections ended with a refusal before a dialect saw a whole request",
            ["status"],
            registry=registry,
        )
        self.retries = Counter("dragoman_retries", "Further tries on another worker", ["model"], registry=registry)
        self._running: dict[str, int] = {}
        self._pending: list[RequestRecord] = []
        self._series: dict[tuple[Any, ...], _Series] = {}
        self._teams: set[str] = set()
        registry.register(self)

    def begun(self, dialect: str) -> None:
        self._running[dialect] = self._running.get(dialect, 0) + 1

    def finished(self, record: RequestRecord) -> None:
        self._running[record.dialect] -= 1
        self._pending.append(record)
        if len(self._pending) >= _TOGETHER:
            self._count()

    def _count(self) -> None:
        """Adds up waiting records, many together: at half the CPU that each would take during its request."""
        pending, self._pending = self._pending, []
        for record in pending:
            self._add(record)

    def _add(self, record: RequestRecord) -> None:
        usage = record.usage
        key = (
            record.dialect,
            record.operation,
            record.model,
            record.status,
            record.outcome,
            record.team,
            usage.source if usage is not None else None,
        )
        series = self._series.get(key)
        if series is None:
            series = self._new(_Key(*key))
        series.count += 1
        series.seconds[bisect_left(_BOUNDS_MS, record.ms)] += 1
        series.total_ms += record.ms
        if record.ttft_ms is not None:
            series.first[bisect_left(_BOUNDS_MS, record.ttft_ms)] += 1
            series.first_ms += record.ttft_ms
        if usage is not None:
            series.input += usage.input or 0
            series.output += usage.output or 0
        if record.dropped:
            series.dropped += len(record.dropped)

    def _new(self, key: _Key) -> _Series:
        """The series of labels that are new. Teams beyond MOST_TEAMS share the series of `other`."""
        team = key.team or "none"
        if team != "none" and team not in self._teams:
            if len(self._teams) < MOST_TEAMS:
                self._teams.add(team)
            else:
                team = "other"
        named = key._replace(team=team)
        index = key if team != "other" else named
        return self._series.setdefault(index, _Series(named))

    def page(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        self._count()
        running = GaugeMetricFamily("dragoman_requests_running", "Requests under way", labels=["dialect"])
        for dialect, count in self._running.items():
            running.add_metric([dialect], count)
        yield running
        yield self._counter(
            "dragoman_requests",
            "Requests by what became of them",
            {
                "dialect": lambda key: key.dialect,
                "operation": lambda key: key.operation,
                "model": lambda key: key.model,
                "status": lambda key: str(key.status),
                "outcome": lambda key: key.outcome,
            },
            lambda one: one.count,
        )
        yield self._histogram(
            "dragoman_request_seconds",
            "From the request's head to its end",
            lambda one: (one.seconds, one.total_ms),
        )
        yield self._histogram(
            "dragoman_first_output_seconds",
            "From the request's head to the first output of a stream",
            lambda one: (one.first, one.first_ms),
        )
        tokens = CounterMetricFamily(
            "dragoman_tokens", "Tokens by direction and who counted them", labels=["model", "direction", "source"]
        )
        team_tokens = CounterMetricFamily(
            "dragoman_team_tokens", "Tokens by team and direction", labels=["team", "direction"]
        )
        for direction, amount in _DIRECTIONS.items():
            for (model, source), total in self._sum(lambda key: (key.model, key.source), amount).items():
                if total:
                    tokens.add_metric([model, direction, source], total)
            for (team,), total in self._sum(lambda key: (key.team,), amount).items():
                if total:
                    team_tokens.add_metric([team, direction], total)
        yield tokens
        yield self._counter(
            "dragoman_team_requests",
            "Requests by team and what became of them",
            {"team": lambda key: key.team or "", "outcome": lambda key: key.outcome},
            lambda one: one.count,
        )
        yield team_tokens
        dropped = CounterMetricFamily(
            "dragoman_dropped_fields", "Request fields dropped and named to the client", labels=["dialect"]
        )
        for (dialect,), total in self._sum(lambda key: (key.dialect,), lambda one: one.dropped).items():
            if total:
                dropped.add_metric([dialect], total)
        yield dropped

    def _counter(
        self, name: str, text: str, labels: dict[str, Callable[[_Key], str]], amount: Callable[[_Series], int]
    ) -> Metric:
        family = CounterMetricFamily(name, text, labels=list(labels))
        pick = labels.values()
        for values, total in self._sum(lambda key: tuple(one(key) for one in pick), amount).items():
            family.add_metric(list(values), total)
        return family

    def _histogram(
        self, name: str, text: str, part: Callable[[_Series], tuple[list[int], float]]
    ) -> HistogramMetricFamily:
        family = HistogramMetricFamily(name, text, labels=["dialect", "model"])
        sums: dict[tuple[str, str], tuple[list[int], float]] = {}
        for series in self._series.values():
            counts, total = part(series)
            labels = (series.key.dialect, series.key.model)
            before, before_total = sums.get(labels, ([0] * len(_BOUNDS), 0.0))
            sums[labels] = ([a + b for a, b in zip(before, counts, strict=True)], before_total + total)
        for labels, (counts, total) in sums.items():
            if any(counts):
                buckets = list(zip(_BOUNDS, map(float, accumulate(counts)), strict=True))
                family.add_metric(list(labels), buckets, total / 1000)
        return family

    def _sum(
        self, labels: Callable[[_Key], tuple[Any, ...]], amount: Callable[[_Series], int]
    ) -> dict[tuple[Any, ...], int]:
        sums: dict[tuple[Any, ...], int] = {}
        for series in self._series.values():
            values = labels(series.key)
            sums[values] = sums.get(values, 0) + amount(series)
        return sums


_DIRECTIONS: dict[str, Callable[[_Series], int]] = {"input": lambda one: one.input, "output": lambda one: one.output}
