"""The catalogue: it names what a loaded gateway shows, and docs/metrics.md says what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.observe.catalogue import FIGURES, GROUPS
from tests.support.harness import Stack
from tests.unit.auth.stored_keys import hash_of

CHAT = "/v1/chat/completions"


def chat(**members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10, **members}


def shown(page: str) -> Iterator[tuple[str, str, frozenset[str]]]:
    """(name, type, labels) of what a page shows."""
    for family in text_string_to_metric_families(page):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        yield family.name + ("_total" if family.type == "counter" else ""), family.type, frozenset(labels)


def test_a_loaded_gateway_shows_what_is_in_the_catalogue_and_nothing_else(tmp_path: Path) -> None:
    config = {
        "metrics": {"genai": True, "top_keys": 1},
        "limits": [
            {"name": "all", "kind": "requests", "limit": 1000, "scope": ["key"]},
            {"name": "dark", "kind": "requests", "limit": 1, "scope": ["key"], "shadow": True},
            {"name": "tokens", "kind": "tokens", "limit": 5000, "scope": ["key"]},
        ],
        # Nobody listens there: the records wait.
        "redis": {"url": "redis://127.0.0.1:1"},
        "limiter": {"store": "memory"},
        "keys_store": "redis",
        "batches": {"directory": str(tmp_path)},
        "keys": {"own": {"hash": hash_of("configured")}},
        "accounting": {"redis_stream": "usage"},
        "dialects": {"openai": {"extras": "drop"}},
        "breaker": {"failures": 1, "max_eject_share": 1},
        "models": {
            "away": {
                "backend": "vllm",
                "workers": ["http://127.0.0.1:1"],
                "fallback": ["m"],
                "kv_events": {"port": 1},
            },
            "m": {
                "aliases": ["other-name"],
                "mirror": {"model": "away"},
                "max_in_flight": 100,
                "price": {"request": 1},
            },
        },
        "spend": {"currency": "EUR"},
        "budgets": [{"name": "b", "amount": 1000}],
    }
    headers = {"api-key": "configured"}
    with Stack(({}, {}), config=config) as stack, httpx.Client(base_url=stack.url, headers=headers) as client:
        for body in (chat(), chat(stream=True), chat(odd=1), chat(max_tokens=10_000)):
            client.post(CHAT, json=body)
        client.post(CHAT, json=chat(messages=[{"role": "user", "content": 'sim:{"fault": "reset"}'}]))
        client.post(CHAT, content=b"{")
        client.request("BREW", "/")
        client.post(CHAT, json=chat(model="away"))
        client.post(CHAT, json=chat(model="other-name"))
        stalls = [{"role": "user", "content": 'sim:{"text": "a b c d", "fault": "stall@2"}'}]
        with client.stream("POST", CHAT, json=chat(stream=True, messages=stalls)) as reply:
            next(reply.iter_bytes())
        stack.records()
        stack.gateway.metrics.reloads.labels("done")
        stack.gateway.metrics.prefills.labels("m", "handed")
        stack.gateway.metrics.bugs.inc(0)
        stack.gateway.metrics.queue_refused.labels("m", "full")
        stack.gateway.metrics.hedges.labels("m", "first")
        stack.gateway.metrics.tool_calls.labels("search", "ok")
        stack.gateway.metrics.cache_requests.labels("m", "hit")
        stack.gateway.metrics.cache_saved.labels("m", "input")
        stack.gateway.metrics.cache_errors.labels("late")
        stack.gateway.metrics.guard_checks.labels("g", "before", "allowed")
        stack.gateway.metrics.guard_seconds["g", "before"]
        stack.gateway.metrics.quarantined.labels("m")
        stack.gateway.metrics.batch_lines.labels("openai", "succeeded")
        stack.gateway.metrics.moved.labels("m", "late")
        stack.gateway.metrics.continued.labels("m", "died")
        stack.gateway.metrics.not_continued.labels("m", "tool_call")
        found = {name: (kind, labels) for name, kind, labels in shown(client.get("/metrics").text)}
    assert found == {name: (figure.kind, frozenset(figure.labels)) for name, figure in FIGURES.items()}


@pytest.mark.parametrize("name", FIGURES)
def test_each_metric_is_described(name: str) -> None:
    figure = FIGURES[name]
    assert (figure.kind == "counter") == name.endswith("_total")
    assert (figure.kind == "histogram") == bool(figure.bounds)
    assert list(figure.bounds) == sorted(set(figure.bounds))
    assert figure.text.endswith(".")
    # The query is of this metric, and of labels that metrics have.
    assert re.search(rf"\b{name}(_bucket|_sum|_count)?\b", figure.query)
    known = {label for one in FIGURES.values() for label in one.labels} | {"le", "instance", ""}
    grouped = {label.strip() for labels in re.findall(r"by \(([^)]*)\)", figure.query) for label in labels.split(",")}
    assert grouped <= known
    assert figure.query.count("(") == figure.query.count(")")


def test_no_metric_is_described_twice() -> None:
    assert sum(len(group.figures) for group in GROUPS) == len(FIGURES)
