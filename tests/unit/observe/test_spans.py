"""Traces: the spans of requests as a collector gets them, and the context that goes on at workers."""

from __future__ import annotations

import dataclasses
import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gateway.app import KNOWN
from gateway.app.routes import route_table, templates
from gateway.config import ConfigError, load
from gateway.config import Tracing as TracingConfig
from gateway.features.tracing import Spans
from gateway.kernel.way import Way
from gateway.observe.spans import Spans as Tracer
from gateway.observe.tracing import tracer_of
from tests.support.clients import WAYS
from tests.support.harness import Stack
from tests.support.standins.serving import Answering, serving
from tests.unit.app.asking import GONE

CHAT = "/v1/chat/completions"
CANARY = "canary-51ab"
TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED, UNSAMPLED = f"00-{TRACE}-b7ad6b7169203331-01", f"00-{TRACE}-b7ad6b7169203331-00"


def chat(text: str = CANARY, **members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **members}


def traced(stack: Stack, sample: float = 1.0) -> InMemorySpanExporter:
    """From now on `stack` traces into what is returned."""
    memory = InMemorySpanExporter()
    settings = TracingConfig(endpoint="http://127.0.0.1:1/v1/traces", sample=sample, service="test")
    tracer = Tracer(memory, settings, SimpleSpanProcessor(memory))
    runtime = stack.gateway.deployment.runtime
    watching = Spans(tracer, templates(stack.gateway.deployment.config))
    runtime.way = Way((watching, *runtime.way.features))
    for served in runtime.models.values():
        served.way = Way((watching, *served.way.features))
    return memory


def spans(stack: Stack, memory: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    """By name, of requests that are over."""
    stack.records()
    found: dict[str, list[ReadableSpan]] = {}
    for span in memory.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


def parent(worker: Any) -> tuple[str, str, str]:
    """Trace, span and flags of the last request that a worker got."""
    entry = worker.entries[-1]
    _, trace, span, flags = entry.header("traceparent").split("-")
    return trace, span, flags


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_has_its_spans(stream: bool) -> None:
    with Stack() as stack:
        memory = traced(stack)
        httpx.post(stack.url + CHAT, json=chat(stream=stream), headers={"traceparent": SAMPLED, "tracestate": "a=b"})
        found = spans(stack, memory)
        record = stack.record()
        (server,), (queue,), (attempt,) = found["chat m"], found["queue"], found["attempt"]
        assert (server.kind, attempt.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
        assert server.parent is not None
        assert f"{server.parent.span_id:016x}" == "b7ad6b7169203331"
        assert {f"{span.context.trace_id:032x}" for span in (server, queue, attempt)} == {TRACE}
        assert queue.parent is not None
        assert attempt.parent is not None
        assert queue.parent.span_id == attempt.parent.span_id == server.context.span_id
        moments = [server.start_time, queue.start_time, queue.end_time, attempt.start_time, attempt.end_time]
        moments.append(server.end_time)
        known = [moment for moment in moments if moment is not None]
        assert len(known) == 6
        assert known == sorted(known)
        events = [event.name for event in attempt.events]
        assert events == (["first token"] if stream else [])
        assert record["trace"] == TRACE
        about = dict(server.attributes or {})
        assert about["gen_ai.operation.name"] == "chat"
        assert about["gen_ai.request.model"] == about["gen_ai.response.model"] == "m"
        assert (about["http.request.method"], about["http.route"]) == ("POST", CHAT)
        assert about["gen_ai.response.finish_reasons"] == ("stop",)
        assert about.get("gen_ai.response.time_to_first_chunk") == (
            record["time_to_first_token_ms"] / 1000 if stream else None
        )
        assert about["gen_ai.usage.input_tokens"] == record["usage"]["input"]
        assert about["gen_ai.usage.output_tokens"] == record["usage"]["output"]
        assert about["http.response.status_code"] == 200
        assert about["dragoman.request_id"] == record["id"]
        assert dict(attempt.attributes or {})["server.address"] == "127.0.0.1"
        # The worker's own spans are children of the attempt.
        assert parent(stack.sim) == (TRACE, f"{attempt.context.span_id:016x}", "01")
        entry = stack.sim.entries[-1]
        assert entry.header("tracestate") == "a=b"
        assert CANARY not in "".join(span.to_json() for span in memory.get_finished_spans())


def about(stack: Stack, memory: InMemorySpanExporter) -> dict[str, Any]:
    """The attributes of the last request's own span."""
    stack.records()
    span = [one for one in memory.get_finished_spans() if one.kind is SpanKind.SERVER][-1]
    return dict(span.attributes or {})


# A thing that every dialect has, by whichever lane its replies come.
ASKED = [(way, stream) for way in WAYS for stream in (True, False) if way.answers(stream=stream)]


@pytest.mark.parametrize("backend", ["vllm", "tgi"])
def test_every_way_to_ask_has_its_route_and_what_became_of_it(backend: str) -> None:
    with Stack(config={"models": {"m": {"backend": backend}}}) as stack, httpx.Client() as client:
        memory = traced(stack)
        routes = {line.path for line in route_table(stack.gateway.deployment.config)}
        for way, stream in ASKED:
            body = way.body("sim:" + json.dumps({"text": "a b c"}), stream=stream, model="m")
            reply = client.post(stack.url + way.path("m"), json=body)
            found = about(stack, memory)
            assert found["http.route"] in routes, way
            assert found["http.route"].endswith(way.route.path), way
            assert found["http.request.method"] == "POST"
            if reply.status_code != 200 or way.operation not in ("chat", "complete"):
                continue
            assert found["gen_ai.response.model"] == "m", way
            assert found["gen_ai.response.finish_reasons"] == ("stop",), (way, stream)
            assert ("gen_ai.response.time_to_first_chunk" in found) == (
                stack.record()["time_to_first_token_ms"] is not None
            ), way


@pytest.mark.parametrize("stream", [False, True])
def test_each_choice_says_why_it_ended(stream: bool) -> None:
    with Stack() as stack:
        memory = traced(stack)
        reply = httpx.post(stack.url + CHAT, json=chat(n=2, max_tokens=1, stream=stream))
        assert reply.status_code == 200
        assert about(stack, memory)["gen_ai.response.finish_reasons"] == ("length", "length")


def test_nothing_that_a_client_made_up_is_a_value() -> None:
    with Stack() as stack:
        memory = traced(stack)
        httpx.request("PROPFIND", stack.url + CHAT)
        assert about(stack, memory)["http.request.method"] == "_OTHER"
        httpx.get(stack.url + f"/v1/{CANARY}")
        assert "http.route" not in about(stack, memory)
        httpx.get(stack.url + f"/v1/models/{CANARY}")
        assert about(stack, memory)["http.route"] == "/v1/models/{model:path}"
        assert CANARY not in "".join(span.to_json() for span in memory.get_finished_spans())


def test_another_model_that_answers_is_named() -> None:
    models = {"m": {}, "away": {**GONE, "fallback": ["m"]}}
    with Stack(config={"models": models}) as stack:
        memory = traced(stack)
        assert httpx.post(stack.url + CHAT, json=chat(model="away")).status_code == 200
        found = about(stack, memory)
        assert (found["gen_ai.request.model"], found["gen_ai.response.model"]) == ("away", "m")


async def test_the_resource_says_which_process_of_which_version_and_what_the_environment_adds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=door-1,deployment.environment.name=test%20one")
    settings = TracingConfig(endpoint="http://127.0.0.1:1/v1/traces", sample=1.0, service="door")
    made = [Tracer(InMemorySpanExporter(), settings) for _ in range(2)]
    one, other = (dict(spans._provider.resource.attributes) for spans in made)  # each span is exported with it
    assert (one["service.name"], one["service.version"]) == ("door", version("dragoman"))
    # A reload that changes something else of `tracing` makes the second one.
    assert one["service.instance.id"] == other["service.instance.id"]
    assert (one["k8s.pod.name"], one["deployment.environment.name"]) == ("door-1", "test one")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=7,service.name=mine")
    named = Tracer(InMemorySpanExporter(), settings)
    attributes = named._provider.resource.attributes  # each span is exported with it
    assert (attributes["service.name"], attributes["service.instance.id"]) == ("mine", "7")
    for spans in (*made, named):
        await spans.close()


@pytest.mark.long
def test_each_process_is_an_instance_of_its_own() -> None:
    script = "from gateway.observe import spans; print(spans._INSTANCE)"
    done = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in range(2)
    ]
    one, other = (each.stdout.strip() for each in done)
    assert one != other


def test_each_attempt_has_a_span_and_a_context_of_its_own() -> None:
    with Stack(({"fault": "reset"}, {"fault": "reset"})) as stack:
        memory = traced(stack)
        assert httpx.post(stack.url + CHAT, json=chat()).status_code >= 500
        found = spans(stack, memory)
        first, second = found["attempt"]
        assert [dict(one.attributes or {})["dragoman.attempt"] for one in (first, second)] == [1, 2]
        assert {one.status.status_code for one in (first, second)} == {StatusCode.ERROR}
        told = {parent(sim)[1] for sim in stack.sims}
        assert told == {f"{one.context.span_id:016x}" for one in (first, second)}
        (server,) = found["chat m"]
        assert server.status.status_code is StatusCode.ERROR
        assert dict(server.attributes or {})["dragoman.outcome"] == "failed"
        for sim in stack.sims:
            (entry,) = sim.entries
            assert [name for name, _ in entry.headers].count(b"traceparent") == 1


def test_what_is_refused_has_a_span_too() -> None:
    with Stack() as stack:
        memory = traced(stack)
        httpx.post(stack.url + CHAT, json=chat(model=CANARY))
        httpx.post(stack.url + CHAT, content=b"{")
        found = spans(stack, memory)
        assert [dict(one.attributes or {})["error.type"] for one in found["chat"]] == [
            "model_not_found",
            "invalid_json",
        ]
        assert CANARY not in "".join(span.to_json() for span in memory.get_finished_spans())


@pytest.mark.parametrize(
    ("sample", "headers", "recorded"),
    [
        (1.0, {}, True),
        (0.0, {}, False),
        (0.0, {"traceparent": SAMPLED}, True),
        (1.0, {"traceparent": UNSAMPLED}, False),
        (1.0, {"traceparent": "nonsense"}, True),
    ],
)
def test_sampling_is_the_clients_choice_else_a_share(sample: float, headers: dict[str, str], recorded: bool) -> None:
    with Stack() as stack:
        memory = traced(stack, sample)
        httpx.post(stack.url + CHAT, json=chat(), headers=headers)
        assert bool(spans(stack, memory)) == recorded
        assert (stack.record()["trace"] is not None) == recorded
        trace, _, found = parent(stack.sim)
        assert int(found, 16) & 1 == recorded, "the worker obeys the same choice"
        assert (trace == TRACE) == (headers.get("traceparent", "").startswith("00-"))


class Collector(NamedTuple):
    """Takes OTLP over HTTP. `requests` holds (path, headers, what was sent)."""

    url: str
    requests: list[tuple[str, dict[str, str], ExportTraceServiceRequest]]


@pytest.fixture
def collector() -> Iterator[Collector]:
    requests: list[tuple[str, dict[str, str], ExportTraceServiceRequest]] = []

    class Handler(Answering):
        def do_POST(self) -> None:
            body = self.posted()
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            requests.append((self.path, self.named(), ExportTraceServiceRequest.FromString(body)))
            self.answer(200)

    with serving(Handler) as origin:
        yield Collector(f"{origin}/v1/traces", requests)


def test_a_collector_gets_the_spans_at_the_latest_when_the_gateway_ends(collector: Collector) -> None:
    tracing = {"endpoint": collector.url, "sample": 1, "service": "door", "headers": {"x-key": "k"}}
    with Stack(config={"tracing": tracing}) as stack:
        httpx.post(stack.url + CHAT, json=chat(stream=True))
        trace = stack.record()["trace"]
    names, services = set(), set()
    for path, headers, sent in collector.requests:
        assert path == "/v1/traces"
        assert headers["x-key"] == "k"
        for resource in sent.resource_spans:
            services |= {one.value.string_value for one in resource.resource.attributes if one.key == "service.name"}
            for scope in resource.scope_spans:
                names |= {span.name for span in scope.spans if span.trace_id.hex() == trace}
    assert services == {"door"}
    assert names == {"chat m", "queue", "attempt"}


def test_a_collector_that_is_away_is_nobodys_trouble() -> None:
    tracing = {"endpoint": "http://127.0.0.1:1/v1/traces", "sample": 1}
    with Stack(config={"tracing": tracing}) as stack:
        for _ in range(3):
            assert httpx.post(stack.url + CHAT, json=chat()).status_code == 200


async def test_a_reload_keeps_the_tracer_unless_its_options_change() -> None:
    settings, again = (TracingConfig(endpoint="http://127.0.0.1:1/v1/traces", sample=1.0) for _ in range(2))
    first = tracer_of(settings, None)
    assert first is not None
    assert tracer_of(again, first) is first
    second = tracer_of(settings.model_copy(update={"sample": 0.5}), first)
    assert second is not None
    assert second is not first
    assert tracer_of(None, first) is None
    await first.close()
    await second.close()


def test_a_configuration_that_asks_for_what_is_not_installed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    model = "models: {m: {backend: vllm, workers: ['http://127.0.0.1:1']}}\n"
    path.write_text(model + "tracing: {endpoint: 'http://127.0.0.1:4318/v1/traces'}\n")
    with pytest.raises(ConfigError, match=r"needs pip install 'dragoman\[tracing\]'"):
        load(path, dataclasses.replace(KNOWN, tracing=lambda: False), {})
    config = load(path, KNOWN, {})
    assert config.tracing is not None
    assert config.tracing.sample == 0.1


@pytest.mark.long
def test_without_tracing_nothing_of_it_is_imported() -> None:
    # redis-py imports the SDK for itself where it finds it; what makes and sends spans is ours alone.
    code = "import json, sys, gateway.cli.serve; print(json.dumps(list(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    imported = json.loads(found.stdout)
    assert "gateway.observe.tracing" in imported
    assert not [one for one in imported if one.startswith(("gateway.observe.spans", "opentelemetry.exporter"))]


def test_logged_prompts_are_spans_below_their_requests(collector: Collector) -> None:
    """In attributes, where Langfuse and Phoenix look for them; tokens count once."""
    tracing = {"endpoint": collector.url, "sample": 1}
    log = {"traces": True, "rules": {"all": {"match": {"model": ["m"]}}}}
    with Stack(config={"tracing": tracing, "prompt_log": log}) as stack:
        said = "sim:" + json.dumps({"text": "to me@example.com"})
        function = {"name": "f", "arguments": '{"a": 1}'}
        turns = [
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "1", "content": "found"},
        ]
        body = chat(said, stream=True)
        httpx.post(stack.url + CHAT, json={**body, "messages": [*turns, *body["messages"]]})
        httpx.post(stack.url + CHAT, json=chat(), headers={"traceparent": UNSAMPLED})
        trace = next(record["trace"] for record in stack.records() if record["trace"])
    sent = [
        span
        for _, _, one in collector.requests
        for all_ in one.resource_spans
        for scope in all_.scope_spans
        for span in scope.spans
    ]
    (span,) = [span for span in sent if span.name == "prompt"]
    (server,) = [one for one in sent if one.name == "chat m"]
    assert (span.trace_id.hex(), span.parent_span_id) == (trace, server.span_id)
    found = {one.key: one.value for one in span.attributes}
    assert found["gen_ai.operation.name"].string_value == "chat"
    called, returned, asked = json.loads(found["gen_ai.input.messages"].string_value)
    assert called["parts"] == [{"type": "tool_call", "name": "f", "arguments": {"a": 1}}]
    assert returned == {"role": "tool", "parts": [{"type": "tool_call_response", "response": "found"}]}
    assert asked["role"] == "user"
    assert "[email]" in asked["parts"][0]["content"]
    assert json.loads(found["gen_ai.output.messages"].string_value) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "to [email]"}], "finish_reason": "stop"}
    ]
    assert [one.string_value for one in found["gen_ai.response.finish_reasons"].array_value.values] == ["stop"]
    assert found["gen_ai.usage.output_tokens"].int_value > 0
    assert not [one for one in server.attributes if CANARY in str(one) or "usage" in one.key]
