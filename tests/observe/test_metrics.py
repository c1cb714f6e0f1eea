"""The metrics page, read back by Prometheus's own parser."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.ports import RequestRecord
from gateway.core.usage import Usage
from gateway.observe.metrics import Metrics
from tests.harness import Stack

NAMES = {
    "dragoman_worker_ready": {"model", "worker"},
    "dragoman_worker_ejections": {"model", "worker"},
    "dragoman_draining": set(),
    "dragoman_reloads": {"result"},
    "dragoman_bugs": set(),
    "dragoman_retries": {"model"},
    "dragoman_refused_connections": {"status"},
    "dragoman_requests_running": {"dialect"},
    "dragoman_requests": {"dialect", "operation", "model", "status", "outcome"},
    "dragoman_request_seconds": {"dialect", "model"},
    "dragoman_first_output_seconds": {"dialect", "model"},
    "dragoman_tokens": {"model", "direction", "source"},
    "dragoman_team_requests": {"team", "outcome"},
    "dragoman_team_tokens": {"team", "direction"},
    "dragoman_dropped_fields": {"dialect"},
}


def samples(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(metrics: Metrics | str, name: str, **labels: str) -> float:
    page = metrics if isinstance(metrics, str) else metrics.page().decode()
    return samples(page)[name, tuple(sorted(labels.items()))]


def finish(metrics: Metrics, **fields: Any) -> None:
    metrics.begun("openai")
    metrics.finished(RequestRecord("id", "openai", **fields))


def test_the_page_parses_and_holds_what_is_promised() -> None:
    metrics = Metrics()
    finish(metrics, model="m", operation="chat", status=200, ms=3, ttft_ms=1, usage=Usage(1, 2), dropped=("a",))
    families = {family.name: family for family in text_string_to_metric_families(metrics.page().decode())}
    assert NAMES.keys() <= families.keys()
    for name, labels in NAMES.items():
        assert families[name].documentation
        for sample in families[name].samples:
            assert set(sample.labels) - {"le"} == labels, name


def test_a_histogram_counts_into_the_right_buckets() -> None:
    metrics = Metrics()
    times = [0.0, 4.999, 5.0, 5.001, 49.9, 1000.0, 599_999.0, 600_001.0]
    for ms in times:
        finish(metrics, model="m", ms=ms)
    page = metrics.page().decode()

    def below(bound: str) -> float:
        return value(page, "dragoman_request_seconds_bucket", dialect="openai", model="m", le=bound)

    assert [below(bound) for bound in ("0.005", "0.01", "0.025", "0.05", "0.5", "1.0", "300.0", "600.0", "+Inf")] == [
        *(3, 4, 4, 5, 5, 6, 6, 7, 8)
    ]
    assert value(page, "dragoman_request_seconds_count", dialect="openai", model="m") == len(times)
    total = value(page, "dragoman_request_seconds_sum", dialect="openai", model="m")
    assert total == pytest.approx(sum(times) / 1000)
    assert "dragoman_first_output_seconds_count{" not in page, "nothing was streamed"


def test_running_goes_up_and_down() -> None:
    metrics = Metrics()
    metrics.begun("openai")
    metrics.begun("openai")
    assert value(metrics, "dragoman_requests_running", dialect="openai") == 2
    metrics.finished(RequestRecord("id", "openai"))
    assert value(metrics, "dragoman_requests_running", dialect="openai") == 1


def test_tokens_count_by_direction_and_source() -> None:
    metrics = Metrics()
    finish(metrics, model="m", usage=Usage(3, 5))
    finish(metrics, model="m", usage=Usage(4, 6))
    finish(metrics, model="m", usage=Usage(None, 7, source="estimated"))
    finish(metrics, model="m")

    def tokens(direction: str, source: str) -> float:
        return value(metrics, "dragoman_tokens_total", model="m", direction=direction, source=source)

    assert (tokens("input", "engine"), tokens("output", "engine"), tokens("output", "estimated")) == (7, 11, 7)


def test_teams_are_counted_up_to_a_bound() -> None:
    metrics = Metrics()
    finish(metrics, model="m", usage=Usage(1, 1))
    for number in range(150):
        finish(metrics, model="m", team=f"team-{number}", usage=Usage(1, 2))
        finish(metrics, model="m", team=f"team-{number}", usage=Usage(1, 2))
    page = metrics.page().decode()
    assert value(page, "dragoman_team_requests_total", team="none", outcome="ok") == 1
    assert value(page, "dragoman_team_requests_total", team="team-0", outcome="ok") == 2
    assert value(page, "dragoman_team_tokens_total", team="team-99", direction="output") == 4
    assert value(page, "dragoman_team_requests_total", team="other", outcome="ok") == 100
    assert value(page, "dragoman_team_tokens_total", team="other", direction="input") == 100


def chat(**members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **members}


def test_a_clients_words_never_become_labels() -> None:
    config = {"dialects": {"openai": {"extras": "drop"}}}
    with Stack(config=config) as stack, httpx.Client(base_url=stack.url) as client:

        def flood(number: int) -> None:
            path = "/v1/chat/completions"
            client.post(path, json=chat(model=f"model-{number}"))
            client.post(path, json=chat(user=f"user-{number}", **{f"field-{number}": 1}))
            client.get(f"/path-{number}")
            client.get(f"/v1/models/{number}")
            client.request(f"METHOD{'X' * (number % 3)}", path)
            client.post(path, content=json.dumps(chat()), headers={"x-request-id": f"id-{number}", "user-agent": "u"})

        for number in range(3):
            flood(number)
        before = {name for name, _ in samples(client.get("/metrics").text)}
        size = len(samples(client.get("/metrics").text))
        for number in range(3, 30):
            flood(number)
        page = client.get("/metrics").text
        assert len(samples(page)) == size
        assert {name for name, _ in samples(page)} == before
        ended = {"dialect": "openai", "operation": "chat", "outcome": "ok", "status": "200", "model": "m"}
        assert value(page, "dragoman_requests_total", **ended) == 60
        assert value(page, "dragoman_dropped_fields_total", dialect="openai") == 30
        assert value(page, "dragoman_requests_running", dialect="openai") == 0


def test_workers_that_are_gone_are_gone_from_the_page() -> None:
    with Stack(({}, {})) as stack:
        first, second = (sim.url for sim in stack.sims)
        page = httpx.get(stack.url + "/metrics").text
        assert value(page, "dragoman_worker_ready", model="m", worker=first) == 1
        assert value(page, "dragoman_worker_ready", model="m", worker=second) == 1
        stack.run(stack.gateway.reload(stack.config({"models": {"m": {"workers": [second]}}})))
        stack.run(stack.gateway.state.runtime.running.empty(1))
        page = httpx.get(stack.url + "/metrics").text
        assert first not in page
        assert value(page, "dragoman_worker_ready", model="m", worker=second) == 1


def test_it_can_be_turned_off() -> None:
    with Stack(config={"metrics": {"enabled": False}}) as stack:
        assert httpx.get(stack.url + "/metrics").status_code == 404
