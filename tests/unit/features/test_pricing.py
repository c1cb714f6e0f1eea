"""What requests cost: in records, metrics and a header, by the prices of the model that answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
import pytest

from gateway.core.money import Rates
from tests.support.clients import DIALECTS, usual
from tests.support.harness import Stack, until
from tests.unit.app.asking import CHAT, GONE
from tests.unit.app.media import EVENTS, Asked, Worker, answer, scripted

PRICE = {"input": 0.15, "cached_input": "0.075", "output": 0.6, "request": 0.0001}
RATES = Rates(150_000_000, 75_000_000, 600_000_000, 100_000)
SPEND = {"currency": "EUR", "header": True}
URL = "/v1/chat/completions"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    models = {
        "m": {"price": PRICE},
        "away": {**GONE, "price": {"input": 1_000, "output": 1_000, "request": 50}, "fallback": ["m"]},
        "alone": {**GONE, "price": PRICE},
        "free": {**GONE, "fallback": ["m"]},
    }
    with Stack(config={"models": models, "spend": SPEND}) as running:
        yield running


def ask(stack: Stack, **more: Any) -> tuple[httpx.Response, dict[str, Any]]:
    reply = httpx.post(stack.url + URL, json={**CHAT, "max_tokens": 9, **more}, timeout=30)
    return reply, stack.record()


def worth(record: dict[str, Any]) -> int:
    usage = record["usage"]
    return RATES.cost(usage["input"], usage["output"], usage["cached"] or 0)


def test_a_reply_names_its_cost_and_so_does_its_record(stack: Stack) -> None:
    reply, record = ask(stack)
    assert record["cost"] == worth(record) > 100_000
    assert reply.headers["x-dragoman-cost"] == f"{record['cost'] / 1e9:.9f}".rstrip("0")


def test_a_stream_costs_what_it_used_and_names_it_in_its_record_alone(stack: Stack) -> None:
    reply, record = ask(stack, stream=True)
    assert record["cost"] == worth(record) > 100_000
    assert "x-dragoman-cost" not in reply.headers


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_has_a_cost(stack: Stack, name: str) -> None:
    way = usual(name)
    reply = httpx.post(stack.url + way.path("m"), json={**way.body("hello"), "model": "m"}, timeout=30)
    assert reply.status_code == 200
    record = stack.record()
    assert record["cost"] == worth(record) > 100_000


def test_a_fallback_is_charged_at_its_own_price(stack: Stack) -> None:
    for name in ("away", "free"):
        reply, record = ask(stack, model=name)
        assert (reply.status_code, record["model"]) == (200, "m")
        assert record["cost"] == worth(record) < 1_000_000
        assert reply.headers.get_list("x-dragoman-cost") == [f"{record['cost'] / 1e9:.9f}".rstrip("0")]


def test_what_no_worker_answered_costs_nothing(stack: Stack) -> None:
    reply, record = ask(stack, model="alone")
    assert (reply.status_code, record["cost"]) == (503, 0)
    assert "x-dragoman-cost" not in reply.headers


PARTIAL = b'data: {"type": "image_generation.partial_image", "b64_json": "eA=="}\n\n'
DRAWN = b'data: {"type": "image_generation.completed", "b64_json": "eA=="}\n\n'


def drawing(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
    body = json.loads(asked.body)
    images = body.get("n", 1)
    if body.get("stream"):  # a stream of three is cut behind the second one
        answer(handler, PARTIAL + DRAWN * min(images, 2), EVENTS)
    else:
        answer(handler, json.dumps({"created": 1, "data": [{"b64_json": "eA=="}] * images}).encode())


def test_images_cost_by_their_number() -> None:
    budget = {"name": "few", "amount": 0.2, "scope": []}
    with scripted(drawing) as worker:
        model = {"backend": "openai", "workers": [worker.url], "price": {"image": 0.02, "request": 0.001}}
        with Stack((), {"models": {"m": model}, "spend": SPEND, "budgets": [budget]}) as stack:

            def draw(**more: Any) -> tuple[httpx.Response, dict[str, Any]]:
                body = {"model": "m", "prompt": "a cat", **more}
                return httpx.post(stack.url + "/v1/images/generations", json=body, timeout=30), stack.record()

            for more, cost in (({"n": 2}, "0.041"), ({}, "0.021")):
                reply, record = draw(**more)
                assert reply.headers["x-dragoman-cost"] == cost
                assert record["usage"]["images"] == more.get("n", 1)
            for images, made in ((1, 1), (3, 2)):
                _, record = draw(n=images, stream=True)
                assert (record["usage"]["images"], record["cost"]) == (made, 20_000_000 * made + 1_000_000)
            reply, record = draw(n=4)  # 0.076 is left
            assert (reply.status_code, reply.json()["error"]["code"]) == (429, "insufficient_quota")
            assert record["cost"] == 0


def test_a_question_costs_nothing(stack: Stack) -> None:
    body = {"model": "m", "messages": CHAT["messages"]}
    assert httpx.post(stack.url + "/v1/messages/count_tokens", json=body, timeout=30).status_code == 200
    assert stack.record()["cost"] == 0


def test_the_metric_adds_up_to_the_records(stack: Stack) -> None:
    ask(stack)
    total = sum(record.get("cost", 0) for record in stack.records())
    page = httpx.get(stack.url + "/metrics").text
    (line,) = [one for one in page.splitlines() if one.startswith('dragoman_cost_nano_total{model="m"')]
    assert float(line.rpartition(" ")[2]) == total


def test_a_continued_stream_costs_what_the_client_got() -> None:
    workers: tuple[dict[str, Any], ...] = ({"fault": "reset@3"}, {})
    with Stack(workers, {"models": {"m": {"price": PRICE}}, "spend": SPEND}) as stack:
        for _ in range(4):
            _, record = ask(stack, stream=True, max_tokens=12)
            assert record["cost"] == worth(record)


def test_a_client_that_leaves_a_plain_reply_pays_what_a_worker_can_have_done() -> None:
    config = {"models": {"m": {"price": PRICE, "max_context": 4096}}, "spend": SPEND}
    with Stack(({"fault": "stall@before"},), config) as stack:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(stack.url + URL, json={**CHAT, "max_tokens": 50}, timeout=0.5)
        record = stack.record()
        assert (record["outcome"], record["usage"]) == ("cancelled", None)
        assert RATES.cost(1, 50) <= record["cost"] <= RATES.cost(100, 50)


@pytest.mark.parametrize(
    ("path", "body", "most"),
    [
        (URL, {"max_tokens": 50}, 50),
        (URL, {"max_tokens": 50, "n": 3}, 150),
        ("/v1/completions", {"max_tokens": 50, "n": 2}, 100),
        ("/v1/embeddings", {}, 0),
    ],
)
def test_a_client_that_leaves_a_plain_reply_pays_no_more_for_a_large_prompt(
    path: str, body: dict[str, Any], most: int
) -> None:
    text = "hello " * 50_000
    asked = {"messages": [{"role": "user", "content": text}]} if path == URL else {"prompt": text, "input": text}
    config = {"models": {"m": {"price": {"output": 1}}}, "spend": SPEND}
    with Stack(({"fault": "stall@before", "max_model_len": 1_000_000},), config) as stack:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(stack.url + path, json={"model": "m", **asked, **body}, timeout=1)
        record = stack.record()
    assert (record["outcome"], record["usage"], record["cost"]) == ("cancelled", None, 1_000 * most)


def test_a_client_that_leaves_a_plain_reply_pays_no_time_in_the_queue() -> None:
    config = {"models": {"m": {"price": {"output": 1}, "max_in_flight": 1}}, "spend": SPEND}
    body = {**CHAT, "max_tokens": 5_000}
    with Stack(({"fault": "stall@before"},), config) as stack, ThreadPoolExecutor(1) as others:
        first = others.submit(httpx.post, stack.url + URL, json=body, timeout=1)
        until(lambda: bool(stack.sim.entries))
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(stack.url + URL, json=body, timeout=1.5)
        assert type(first.exception()) is httpx.ReadTimeout
        until(lambda: len(stack.records()) == 2)
        _, waited = stack.records()
    assert waited["queue_ms"] > 300
    assert 0 <= waited["cost"] - 1_000 * waited["upstream_ms"] < 1_001


def test_without_prices_no_record_has_a_cost() -> None:
    with Stack() as stack:
        reply, record = ask(stack)
        assert "cost" not in record
        assert "x-dragoman-cost" not in reply.headers
