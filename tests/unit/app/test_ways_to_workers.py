"""A whole gateway whose workers are behind a proxy, or speak HTTP/2."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from tests.support.commands import called
from tests.support.harness import Stack, until
from tests.support.ports import free_port
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


@pytest.mark.parametrize(
    ("name", "reason"), [("nothing listens", "proxy_unreachable"), ("wrong password", "proxy_key_refused")]
)
def test_a_fault_of_the_proxy_is_reported_as_that(name: str, reason: str, tmp_path: Path) -> None:
    with elsewhere(ForwardProxy("me:other").serving) as proxy:
        place = proxy.url if name == "wrong password" else f"http://127.0.0.1:{free_port()}"
        environ = {"HTTP_PROXY": place.replace("://", "://me:a-long-canary@")}
        admin = {"metrics": {"listen": f"127.0.0.1:{free_port()}"}}
        shown = place.replace("://", "://***@")
        with Stack(config={"models": {"m": {"proxy": "environment"}}, **admin}, environ=environ) as stack:
            (told,) = stack.events("worker down")
            assert (told["reason"], told["proxy"]) == (reason, shown)
            (model,) = httpx.get(stack.admin_url + "/status.json").json()["models"]
            (worker,) = model["workers"]
            assert (worker["reason"], worker["proxy"]) == (reason, shown)
            assert f"proxy {shown}" in called("status", "--once", "--url", stack.admin_url).stdout
            config = tmp_path / "gateway.yaml"
            named = {"backend": "vllm", "workers": [stack.sim.url], "proxy": "environment"}
            config.write_text(yaml.dump({"models": {"m": named}}))
            found = called("check", "--probe", str(config), HTTP_PROXY=environ["HTTP_PROXY"])
            assert f"down: {reason}: the worker has a proxy that" in found.stderr
            assert f"proxy {shown}" in found.stderr
            refused = httpx.post(stack.url + "/v1/chat/completions", json=CHAT, timeout=30)
            assert refused.status_code == 503
            stack.gateway.log.flush()
            seen = stack.output.getvalue().decode() + found.stderr + refused.text + json.dumps(model)
            assert "canary" not in seen
            assert proxy.url[7:] not in refused.text


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


def test_a_worker_without_http2_has_the_option_named(tmp_path: Path) -> None:
    admin = {"metrics": {"listen": f"127.0.0.1:{free_port()}"}}
    with Stack(config={"models": {"m": {"http2": True}}, **admin}) as stack:
        (model,) = httpx.get(stack.admin_url + "/status.json").json()["models"]
        assert model["workers"][0]["meaning"].endswith(": does it speak HTTP/2 (`http2`)?")
        config = tmp_path / "gateway.yaml"
        named = {"backend": "vllm", "workers": [stack.sim.url], "http2": True}
        config.write_text(yaml.dump({"models": {"m": named}}))
        assert "does it speak HTTP/2 (`http2`)?" in called("check", "--probe", str(config)).stderr


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
