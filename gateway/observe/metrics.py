"""Prometheus metrics of the gateway. Label values come from configuration and closed sets only, never from a client.

Children are looked up once per combination and kept: a lookup by labels costs more than the increment.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.core.errors import GatewayError
from gateway.core.ports import Record

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
CONTENT_TYPE = CONTENT_TYPE_LATEST.encode()


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "dragoman_requests",
            "Requests by what became of them",
            ["dialect", "operation", "model", "status", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "dragoman_request_seconds",
            "From the request's head to its end",
            ["dialect", "model"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._ttft = Histogram(
            "dragoman_first_output_seconds",
            "From the request's head to the first output of a stream",
            ["dialect", "model"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._tokens = Counter(
            "dragoman_tokens",
            "Tokens by direction and who counted them",
            ["model", "direction", "source"],
            registry=registry,
        )
        self._retries = Counter("dragoman_retries", "Further tries on another worker", ["model"], registry=registry)
        self._dropped = Counter(
            "dragoman_dropped_fields", "Request fields dropped by the extras policy", ["dialect"], registry=registry
        )
        self._bugs = Counter("dragoman_bugs", "Requests that failed by a bug of the gateway", registry=registry)
        self.running = Gauge("dragoman_requests_running", "Requests under way", ["dialect"], registry=registry)
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
        self._ended: dict[tuple[str, str, str, int, str], Counter] = {}
        self._timed: dict[tuple[str, str], tuple[Histogram, Histogram]] = {}
        self._counted: dict[tuple[str, str], tuple[Counter, Counter]] = {}
        self._running: dict[str, Gauge] = {}

    def begun(self, dialect: str) -> None:
        gauge = self._running.get(dialect)
        if gauge is None:
            gauge = self._running[dialect] = self.running.labels(dialect)
        gauge.inc()

    def finished(self, record: Record) -> None:
        self._running[record.dialect].dec()
        ended = (record.dialect, record.operation, record.model, record.status, record.outcome)
        counter = self._ended.get(ended)
        if counter is None:
            counter = self._ended[ended] = self._requests.labels(*map(str, ended))
        counter.inc()
        timed = (record.dialect, record.model)
        histograms = self._timed.get(timed)
        if histograms is None:
            histograms = self._timed[timed] = (self._seconds.labels(*timed), self._ttft.labels(*timed))
        histograms[0].observe(record.seconds)
        if record.ttft is not None:
            histograms[1].observe(record.ttft)
        if record.usage is not None:
            self._count(record)
        if record.dropped:
            self._dropped.labels(record.dialect).inc(len(record.dropped))

    def retried(self, model: str, worker: str, error: GatewayError) -> None:
        self._retries.labels(model).inc()

    def bug(self) -> None:
        self._bugs.inc()

    def page(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)

    def _count(self, record: Record) -> None:
        usage = record.usage
        assert usage is not None
        key = (record.model, usage.source)
        counters = self._counted.get(key)
        if counters is None:
            counters = self._counted[key] = (
                self._tokens.labels(record.model, "input", usage.source),
                self._tokens.labels(record.model, "output", usage.source),
            )
        if usage.input:
            counters[0].inc(usage.input)
        if usage.output:
            counters[1].inc(usage.output)
