"""The spans of requests, by OpenTelemetry's SDK and its semantic conventions for generative AI.

Conventions: https://opentelemetry.io/docs/specs/semconv/gen-ai/ and, for the request itself,
https://opentelemetry.io/docs/specs/semconv/http/http-spans/. The span of a request never holds text of a prompt
or a reply; those that the log of prompts sends are spans of their own.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from gateway.config import Tracing
from gateway.core.errors import GatewayError
from gateway.core.http import Headers
from gateway.core.ports import RequestRecord
from gateway.observe.genai import OPERATIONS, PROVIDER

_TIMEOUT_S = 3.0
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"))
"""Those of the conventions. A client may send any other word, which must not become a value."""
_PROPAGATOR = TraceContextTextMapPropagator()
_INSTANCE = str(uuid.uuid4())
"""This process, whatever its configuration becomes. The parent of several processes never imports this module."""


def exporter(settings: Tracing) -> SpanExporter:
    return OTLPSpanExporter(settings.endpoint, headers=settings.headers, timeout=_TIMEOUT_S)


def batches(target: SpanExporter) -> SpanProcessor:
    """Hands spans to `target` in a thread of its own, many at a time. Spans beyond its bounded queue are dropped."""
    return BatchSpanProcessor(
        target,
        max_queue_size=4096,
        schedule_delay_millis=1000,
        max_export_batch_size=512,
        export_timeout_millis=_TIMEOUT_S * 1000,
    )


class Spans:
    """Makes the spans of requests. Implements core.ports.Tracer.

    Sampling is the client's choice where it names a trace, and else a share of requests.
    """

    def __init__(self, target: SpanExporter, settings: Tracing, processor: SpanProcessor | None = None) -> None:
        self.settings = settings
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample)),
            resource=_resource(settings.service),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor or batches(target))
        self._tracer = self._provider.get_tracer("dragoman")

    def begin(self, context: Headers, method: str, route: str) -> RequestSpans:
        """See core.ports.Tracer."""
        parent = _extracted(context) if context else Context()
        about: dict[str, AttributeValue] = {"http.request.method": method if method in _METHODS else "_OTHER"}
        if route:
            about["http.route"] = route
        return RequestSpans(self._tracer, self._tracer.start_span("request", parent, SpanKind.SERVER, about))

    async def close(self) -> None:
        """Sends what is left, for a few seconds at most."""
        await asyncio.to_thread(self._provider.shutdown)


class PromptSpans:
    """Sends spans with texts, each below that of its request. They wait for the collector, and hold no more than they
    are given: all of it is for one thread."""

    def __init__(self, settings: Tracing) -> None:
        self._exporter = exporter(settings)
        self._ended = _Ended()
        provider = TracerProvider(sampler=ALWAYS_ON, resource=_resource(settings.service), shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("dragoman")

    def add(self, context: Headers, began: float, ended: float, about: Mapping[str, AttributeValue]) -> None:
        """A span of the request with this `RequestTrace.context`. Times are Unix seconds."""
        within, start = _extracted(context), int(began * 1e9)
        span = self._tracer.start_span("prompt", within, SpanKind.INTERNAL, about, start_time=start)
        span.end(int(ended * 1e9))

    def send(self) -> None:
        """Raises OSError if the collector has not taken them, which are lost then."""
        spans, self._ended.spans = self._ended.spans, []
        if spans and self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise ConnectionError("the collector has not taken them")

    def close(self) -> None:
        self._exporter.shutdown()


class _Ended(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


def _extracted(context: Headers) -> Context:
    return _PROPAGATOR.extract({name.decode(): value.decode() for name, value in context}, Context())


def _injected(within: Context) -> Headers:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, within)
    return [(name.encode(), value.encode()) for name, value in carrier.items()]


def _resource(service: str) -> Resource:
    """The attributes of all spans of this process. `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` come before our
    own."""
    own = {
        "service.name": service,
        "service.version": version("dragoman"),
        "service.instance.id": _INSTANCE,
    }
    return Resource.create(own).merge(OTELResourceDetector().detect())


class RequestSpans:
    """The spans of one request: the request itself and below it each wait for a worker and each attempt. Implements
    core.ports.RequestTrace."""

    def __init__(self, tracer: Tracer, server: Span) -> None:
        self._tracer = tracer
        self._server = server
        self._within = set_span_in_context(server, Context())
        self._recording = server.is_recording()
        self._logged = False
        self._queue: Span | None = None
        self._attempt: Span | None = None

    @property
    def id(self) -> str | None:
        return f"{self._server.get_span_context().trace_id:032x}" if self._recording else None

    @property
    def context(self) -> Headers:
        return _injected(self._within) if self._recording else []

    def logged(self) -> None:
        self._logged = True

    def waiting(self) -> None:
        if self._recording:
            self._queue = self._tracer.start_span("queue", self._within)

    def sending(self, worker: str, attempt: int) -> Headers:
        within = self._within
        if self._recording:
            self._end_queue()
            url = urlsplit(worker)
            attributes: dict[str, AttributeValue] = {"server.address": url.hostname or "", "dragoman.attempt": attempt}
            if url.port is not None:
                attributes["server.port"] = url.port
            self._attempt = self._tracer.start_span("attempt", within, SpanKind.CLIENT, attributes)
            within = set_span_in_context(self._attempt, within)
        return _injected(within)

    def first_output(self, ago_s: float) -> None:
        if self._attempt is not None:
            self._attempt.add_event("first token", timestamp=time.time_ns() - int(ago_s * 1e9))

    def went_on(self, step: str, reason: str) -> None:
        self._server.add_event(step, {"dragoman.reason": reason})

    def guarded(self, guard: str, stage: str, result: str, seconds: float) -> None:
        if self._recording:
            now = time.time_ns()
            about = {"dragoman.guard": guard, "dragoman.stage": stage, "dragoman.result": result}
            began = now - int(seconds * 1e9)
            span = self._tracer.start_span("guard", self._within, SpanKind.CLIENT, about, start_time=began)
            if result == "failed":
                span.set_status(StatusCode.ERROR)
            span.end(now)

    def attempt_ended(self, error: GatewayError | None) -> None:
        span, self._attempt = self._attempt, None
        if span is None:
            return
        if error is not None:
            span.set_attribute("error.type", error.code or error.kind.value)
            if error.upstream is not None:
                span.set_attribute("http.response.status_code", error.upstream)
            span.set_status(StatusCode.ERROR)
        span.end()

    def finished(self, record: RequestRecord, finishes: Sequence[str]) -> None:
        self._end_queue()
        self.attempt_ended(None)
        span = self._server
        if self._recording:
            operation = OPERATIONS.get(record.operation, record.operation)
            span.update_name(f"{operation} {(record.routed and record.asked) or record.model}".strip() or "request")
            span.set_attributes(_attributes(record, operation, self._logged))
            if finishes:
                span.set_attribute("gen_ai.response.finish_reasons", finishes)
            if record.outcome == "failed":
                span.set_status(StatusCode.ERROR)
        span.end()

    def _end_queue(self) -> None:
        if self._queue is not None:
            self._queue.end()
            self._queue = None


def _attributes(record: RequestRecord, operation: str, logged: bool) -> dict[str, AttributeValue]:
    """logged: another span has the request's texts and its usage, which count once."""
    first_ms = record.time_to_first_token_ms
    found: dict[str, AttributeValue | None] = {
        "gen_ai.operation.name": operation or None,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": (record.routed and record.asked) or record.model or None,
        "gen_ai.response.model": record.model if record.worker is not None and record.outcome == "ok" else None,
        "gen_ai.response.time_to_first_chunk": None if first_ms is None else first_ms / 1000,
        "http.response.status_code": record.status or None,
        "error.type": record.code,
        "dragoman.request_id": record.id,
        "dragoman.dialect": record.dialect,
        "dragoman.outcome": record.outcome,
        "dragoman.attempts": record.attempts,
        "dragoman.stream": record.stream,
        "dragoman.team": record.team,
        "dragoman.limit": record.limit,
    }
    usage = record.usage
    if logged:
        found["langfuse.observation.type"] = "span"  # and the other one a generation
    elif usage is not None:
        found["gen_ai.usage.input_tokens"] = usage.input
        found["gen_ai.usage.output_tokens"] = usage.output
        found["gen_ai.usage.cache_read.input_tokens"] = usage.cached
    return {name: value for name, value in found.items() if value is not None}
