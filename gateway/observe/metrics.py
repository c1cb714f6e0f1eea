"""Prometheus metrics of the gateway. Label values come from configuration and closed sets only, never from a client.

Per request only plain numbers are added up; prometheus-client turns them into metrics when it is scraped. (Its own
counters and histograms cost some 10 µs a request, a tenth of all that a request may cost.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.core.ports import Record

_BOUNDS_MS = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000)
_BOUNDS = (*(str(bound / 1000) for bound in _BOUNDS_MS), "+Inf")
MOST_TEAMS = 100
"""Teams that have series of their own; the rest together are `other`."""

CONTENT_TYPE = CONTENT_TYPE_LATEST.encode()


class _Timing:
    """A histogram of milliseconds."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS)
        self.total = 0.0

    def add(self, ms: float) -> None:
        self.counts[bisect_left(_BOUNDS_MS, ms)] += 1
        self.total += ms

    def buckets(self) -> list[tuple[str, float]]:
        seen = 0
        found = []
        for bound, count in zip(_BOUNDS, self.counts, strict=True):
            seen += count
            found.append((bound, float(seen)))
        return found


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
        self.retries = Counter("dragoman_retries", "Further tries on another worker", ["model"], registry=registry)
        self._running: dict[str, int] = {}
        self._ended: dict[tuple[str, str, str, int, str], int] = {}
        self._seconds: dict[tuple[str, str], _Timing] = {}
        self._first: dict[tuple[str, str], _Timing] = {}
        self._tokens: dict[tuple[str, str, str], int] = {}
        self._dropped: dict[str, int] = {}
        self._teams: set[str] = set()
        self._by_team: dict[tuple[str, str], int] = {}
        self._team_tokens: dict[tuple[str, str], int] = {}
        registry.register(self)

    def begun(self, dialect: str) -> None:
        self._running[dialect] = self._running.get(dialect, 0) + 1

    def finished(self, record: Record) -> None:
        dialect, model = record.dialect, record.model
        self._running[dialect] -= 1
        ended = (dialect, record.operation, model, record.status, record.outcome)
        self._ended[ended] = self._ended.get(ended, 0) + 1
        _add(self._seconds, (dialect, model), record.ms)
        if record.ttft_ms is not None:
            _add(self._first, (dialect, model), record.ttft_ms)
        usage = record.usage
        team = self._team(record.team)
        served = (team, record.outcome)
        self._by_team[served] = self._by_team.get(served, 0) + 1
        if usage is not None:
            for direction, tokens in (("input", usage.input), ("output", usage.output)):
                if tokens:
                    used = (team, direction)
                    self._team_tokens[used] = self._team_tokens.get(used, 0) + tokens
                    key = (model, direction, usage.source)
                    self._tokens[key] = self._tokens.get(key, 0) + tokens
        if record.dropped:
            self._dropped[dialect] = self._dropped.get(dialect, 0) + len(record.dropped)

    def _team(self, name: str | None) -> str:
        if not name:
            return "none"
        if name not in self._teams:
            if len(self._teams) >= MOST_TEAMS:
                return "other"
            self._teams.add(name)
        return name

    def page(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        running = GaugeMetricFamily("dragoman_requests_running", "Requests under way", labels=["dialect"])
        for dialect, count in self._running.items():
            running.add_metric([dialect], count)
        yield running
        ended = CounterMetricFamily(
            "dragoman_requests",
            "Requests by what became of them",
            labels=["dialect", "operation", "model", "status", "outcome"],
        )
        for labels, count in self._ended.items():
            ended.add_metric([str(label) for label in labels], count)
        yield ended
        for name, text, timings in (
            ("dragoman_request_seconds", "From the request's head to its end", self._seconds),
            (
                "dragoman_first_output_seconds",
                "From the request's head to the first output of a stream",
                self._first,
            ),
        ):
            family = HistogramMetricFamily(name, text, labels=["dialect", "model"])
            for timed, timing in timings.items():
                family.add_metric(list(timed), timing.buckets(), timing.total / 1000)
            yield family
        tokens = CounterMetricFamily(
            "dragoman_tokens", "Tokens by direction and who counted them", labels=["model", "direction", "source"]
        )
        for counted, count in self._tokens.items():
            tokens.add_metric(list(counted), count)
        yield tokens
        by_team = CounterMetricFamily(
            "dragoman_team_requests", "Requests by team and what became of them", labels=["team", "outcome"]
        )
        for served, count in self._by_team.items():
            by_team.add_metric(list(served), count)
        yield by_team
        team_tokens = CounterMetricFamily(
            "dragoman_team_tokens", "Tokens by team and direction", labels=["team", "direction"]
        )
        for used, count in self._team_tokens.items():
            team_tokens.add_metric(list(used), count)
        yield team_tokens
        dropped = CounterMetricFamily(
            "dragoman_dropped_fields", "Request fields dropped by the extras policy", labels=["dialect"]
        )
        for dialect, count in self._dropped.items():
            dropped.add_metric([dialect], count)
        yield dropped


def _add(timings: dict[tuple[str, str], _Timing], key: tuple[str, str], ms: float) -> None:
    timing = timings.get(key)
    if timing is None:
        timing = timings[key] = _Timing()
    timing.add(ms)
