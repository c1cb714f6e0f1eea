"""A whole gateway whose workers are behind a proxy, or speak HTTP/2."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.support.harness import Stack, until
from tests.support.standins.forward import ForwardProxy
from tests.support.standins.http2 import Http2Server, serving_http2
from tests.support.standins.serving import elsewhere

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


def test_a_model_behind_a_proxy() -> None:
    with elsewhere(ForwardProxy("me:a-long-canary").serving) as proxy:
        environ = {"HTTP_PROXY": proxy.url.replace("://", "://me:a-long-canary@"), "NO_PROXY": "localhost"}
        model = {"proxy": "environment"}
        with Stack(config={"models": {"m": model}, "log": {"level": "debug"}}, environ=environ) as stack:
            until(lambda: bool(stack.gateway.deployment.pools["m"].ready))
            whole = httpx.post(stack.url + "/v1/chat/completions", json=CHAT, timeout=30)
            assert whole.json()["choices"][0]["message"]["content"]
            with httpx.stream("POST", stack.url + "/v1/chat/completions", json={**CHAT, "stream": True}) as reply:
                assert reply.read().endswith(b"data: [DONE]\n\n")
            stack.sim.fault("stall@1")
            with httpx.stream("POST", stack.url + "/v1/chat/completions", json={**CHAT, "stream": True}):
                pass  # the client leaves
            stack.run(stack.sim.ledger.wait(aborted=1))
            stack.gateway.log.flush()
            assert b"canary" not in stack.output.getvalue()
        assert f"POST {stack.sim.url}/v1/chat/completions HTTP/1.1" in proxy.asked
        assert any(line.startswith(f"GET {stack.sim.url}/health ") for line in proxy.asked)


def answer(connection: Http2Server, stream: int, head: dict[str, str], body: bytes) -> None:
    connection.head(stream, "200", ("content-type", "application/json"))
    message = {"role": "assistant", "content": "by HTTP/2"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    whole = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    listed = {"object": "list", "data": [{"id": "m", "object": "model"}]}
    connection.send(stream, json.dumps(whole if "chat" in head[":path"] else listed).encode(), end=True)


def test_a_model_by_http2() -> None:
    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        async with serving_http2(answer) as (address, _):
            yield address

    with elsewhere(serving) as address:
        model = {"backend": "openai", "workers": [address], "http2": True, "upstream_model": "m"}
        with Stack((), config={"models": {"m": model}}) as stack:
            reply = httpx.post(stack.url + "/v1/chat/completions", json=CHAT, timeout=30)
            assert reply.json()["choices"][0]["message"]["content"] == "by HTTP/2"


@pytest.mark.parametrize("option", ["http2: true", "proxy: 'http://127.0.0.1:9'"])
def test_a_model_without_these_options_goes_the_ordinary_way(option: str) -> None:
    from gateway.app.prepared import Prepared
    from gateway.transport.by_httpx import ByHttpx
    from tests.support.harness import load_text

    config = load_text(
        "models:\n  a: {backend: vllm, workers: ['http://127.0.0.1:1']}\n"
        f"  b: {{backend: vllm, workers: ['http://127.0.0.1:2'], {option}}}\n"
    )
    prepared = Prepared(config)
    assert not isinstance(prepared.transport("a", config.models["a"]), ByHttpx)
    assert isinstance(prepared.transport("b", config.models["b"]), ByHttpx)
