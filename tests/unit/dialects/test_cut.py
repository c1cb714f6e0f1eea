"""A cap on the output that exceeds the model's context is refused, or cut and named as the client has named it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.clients import GENERATING, Way, usual
from tests.support.harness import Stack
from tests.support.standins.web import web

WORKERS: tuple[dict[str, Any], ...] = ({"max_model_len": 200, "strict_context": True},)
CAPPED = [way for way in map(usual, GENERATING) if way.operation == "chat" and way.field("max_tokens")]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Its model `m` is asked for the prompt's length; that of `guessed` is estimated."""
    with Stack(WORKERS) as running:
        base = {"backend": "vllm", "upstream_model": "sim", "workers": [running.sim.url], "max_context": 200}
        models = {"m": base, "guessed": {**base, "paths": ["/v1/chat/completions"]}}
        running.run(running.gateway.reload(running.config({"models": models})))
        yield running


@pytest.mark.parametrize("model", ["m", "guessed"])
@pytest.mark.parametrize("way", CAPPED, ids=str)
def test_a_cut_cap_has_the_clients_name(stack: Stack, way: Way, model: str) -> None:
    body = way.body("hello", stream=False, max_tokens=32000)
    reply = httpx.post(stack.url + way.path(model), json={**body, "model": model}, timeout=30)
    named = [one for one in reply.headers.get("x-dragoman-dropped", "").split(", ") if "max" in one.lower()]
    field = way.field("max_tokens")
    assert field is not None
    if "is cut off, and named" in field.note:
        assert reply.status_code == 200, reply.text
        assert named == [field.name]
        assert stack.record()["dropped"] == named
    else:
        assert 400 <= reply.status_code < 500, reply.text
        assert named == []


@pytest.mark.parametrize("cap", [3000, 32000])
def test_a_cap_that_is_cut_for_a_later_round_is_named_once(cap: int) -> None:
    """With 3,000 the first round fits; what it found fills the context of the next one."""
    rounds = [{"tool_calls": [{"name": "web_search", "arguments": {"query": "a"}}]}, {"text": "It rains."}]
    asked = {
        "model": "m",
        "input": "Go. sim:" + json.dumps({"rounds": rounds}),
        "tools": [{"type": "web_search"}],
        "max_output_tokens": cap,
    }
    with web() as service:
        config = {"models": {"m": {"max_context": 3120}}, "tools": {"web_search": {"url": service.url}}}
        with Stack(config=config) as stack:
            reply = httpx.post(stack.url + "/v1/responses", json=asked, timeout=30)
            assert reply.status_code == 200, reply.text
            first, second = [json.loads(one.body) for one in stack.sim.entries]
            assert (first["max_tokens"] < cap) == (cap == 32000)
            assert second["max_tokens"] < first["max_tokens"]
            assert reply.headers["x-dragoman-dropped"] == "max_output_tokens"
            assert stack.record()["dropped"] == ["max_output_tokens"]
