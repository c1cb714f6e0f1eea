"""Requests under OpenTelemetry's names."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.ports import RequestRecord
from gateway.core.usage import Usage
from gateway.observe.metrics import Metrics

BASE = {"gen_ai_provider_name": "dragoman", "gen_ai_request_model": "m"}
CHAT = {**BASE, "gen_ai_operation_name": "chat"}


def finish(metrics: Metrics, operation: str = "chat", **fields: Any) -> None:
    metrics.begun("openai")
    metrics.finished(RequestRecord(id="id", dialect="openai", operation=operation, **fields))


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    for family in text_string_to_metric_families(metrics.page().decode()):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return None


def test_a_stream_is_counted_by_its_first_and_its_later_tokens() -> None:
    metrics = Metrics(genai=True)
    finish(metrics, model="m", status=200, duration_ms=1200.0, time_to_first_token_ms=200.0, usage=Usage(7, 11))
    assert value(metrics, "gen_ai_server_request_duration_seconds_sum", **CHAT, error_type="") == 1.2
    assert value(metrics, "gen_ai_server_time_to_first_token_seconds_sum", **CHAT) == 0.2
    per_token = value(metrics, "gen_ai_server_time_per_output_token_seconds_sum", **CHAT)
    assert per_token == pytest.approx(0.1)
    assert value(metrics, "gen_ai_client_token_usage_sum", **CHAT, gen_ai_token_type="input") == 7
    assert value(metrics, "gen_ai_client_token_usage_sum", **CHAT, gen_ai_token_type="output") == 11


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"status": 200}, ""),
        ({"status": 503, "outcome": "failed", "code": "a-workers-word"}, "503"),
        ({"status": 0, "outcome": "cancelled"}, "cancelled"),
    ],
)
def test_an_error_is_told_by_its_status(fields: dict[str, Any], error: str) -> None:
    metrics = Metrics(genai=True)
    finish(metrics, model="m", **fields)
    assert value(metrics, "gen_ai_server_request_duration_seconds_count", **CHAT, error_type=error) == 1


@pytest.mark.parametrize(
    ("operation", "name"), [("complete", "text_completion"), ("embed", "embeddings"), ("chat", "chat")]
)
def test_operations_have_the_conventions_names(operation: str, name: str) -> None:
    metrics = Metrics(genai=True)
    finish(metrics, operation, model="m")
    labels = {**BASE, "gen_ai_operation_name": name, "error_type": ""}
    assert value(metrics, "gen_ai_server_request_duration_seconds_count", **labels) == 1


def test_without_the_switch_or_a_model_nothing_is_counted() -> None:
    for metrics, model in ((Metrics(), "m"), (Metrics(genai=True), "")):
        finish(metrics, model=model, time_to_first_token_ms=1.0, usage=Usage(1, 2))
        assert "gen_ai_client_token_usage_count" not in metrics.page().decode()
    metrics = Metrics()
    metrics.configure(genai=True)
    finish(metrics, model="m")
    assert value(metrics, "gen_ai_server_request_duration_seconds_count", **CHAT, error_type="") == 1
    metrics.configure(genai=False)
    assert "gen_ai" not in metrics.page().decode()
