"""An engine that drains, one that is killed, and one without our logits processor. Each test has its own."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.acceptance.engine.ask import ENDLESS, WAYS, chunks
from tests.acceptance.engine.conftest import Engine
from tests.support.harness import Stack, sse_data
from tests.support.redis_server import Server

pytestmark = pytest.mark.engine

CHAT = "/openai/v1/chat/completions"


@pytest.fixture
def stack(redis: Server) -> Iterator[Stack]:
    config = {
        "models": {"smollm2": {"backend": "vllm", "discover": {"redis": True}}},
        "redis": {"addresses": [redis.address], "timeout_s": 10},
        "health": {"interval_s": 10, "timeout_s": 10},
        "dialects": {name: {"default_model": "smollm2"} for name in ("azure_inference", "friendli")},
    }
    with Stack(workers=(), config=config) as stack:
        yield stack


def until(stack: Stack, *wanted: str, within: float = 60.0) -> None:
    began = time.monotonic()
    while {one.address for one in stack.gateway.deployment.pools["smollm2"].workers if one.serving} != set(wanted):
        assert time.monotonic() - began < within, stack.output.lines()
        time.sleep(0.02)


def test_the_record_of_a_real_worker(worker: Engine, redis: Server) -> None:
    (name,) = redis.command("SMEMBERS", "{dragoman-workers}")
    record = json.loads(redis.command("GET", b"{dragoman-workers}:" + name))
    assert record["address"] == worker.url
    assert record["models"] == ["smollm2"]
    assert record["engine"] == "vllm"
    assert record["version"].startswith("0.")
    assert record["max_model_len"] == 1024
    assert record["abilities"] == {
        "tools": True,
        "reasoning": False,
        "vision": False,
        "audio": False,
        "no_repeat_ngram": True,
        "bad_word_tokens": True,
        "scores": False,
    }
    assert 0 < redis.command("PTTL", b"{dragoman-workers}:" + name) <= 6000
    assert record["flags"] == ["enable-auto-tool-choice", "tool-call-parser"]


def test_what_the_worker_says_it_cannot_do_is_refused_before_it_is_asked(worker: Engine, stack: Stack) -> None:
    until(stack, worker.url)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {"model": "smollm2", "messages": [{"role": "user", "content": [image]}]}
    response = httpx.post(stack.url + CHAT, json=body, timeout=60)
    assert response.status_code in (400, 422)
    assert response.json()["error"]["param"] == "messages.0.content.0"
    azure = httpx.post(f"{stack.url}/azure/chat/completions?api-version=2024-05-01-preview", json=body, timeout=60)
    assert azure.status_code == 422


def test_sigterm_under_streams_cuts_none(worker: Engine, stack: Stack, redis: Server) -> None:
    """The engine that all other tests shared ends here."""
    until(stack, worker.url)
    body: dict[str, Any] = {"model": "smollm2", "messages": [{"role": "user", "content": "Tell me a long story."}]}
    body |= {"max_tokens": 60, "min_tokens": 60, "stream": True}
    began = threading.Barrier(5)

    def stream() -> bytes:
        got = b""
        with httpx.stream("POST", stack.url + CHAT, json=body, timeout=120) as answer:
            assert answer.status_code == 200
            for number, block in enumerate(answer.iter_bytes()):
                got += block
                if number == 0:
                    began.wait(120)
        return got

    with ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(stream) for _ in range(4)]
        began.wait(120)
        worker.popen.send_signal(signal.SIGTERM)
        until(stack)
        answers = [one.result() for one in streams]
    for answer in answers:
        assert chunks(answer)[-1]
        assert b'"finish_reason":"length"' in answer
    assert worker.popen.wait(60) == 0
    assert redis.command("KEYS", "*") == []
    assert httpx.post(stack.url + CHAT, json=body, timeout=60).status_code == 503


@pytest.mark.whole  # it starts an engine of its own
def test_a_stock_engine_refuses_and_a_killed_one_is_told_of(
    start: Callable[..., Engine], stack: Stack, redis: Server
) -> None:
    engine = start("--stock")
    engine.ready()
    until(stack, engine.url)
    for field, value in (("no_repeat_ngram", 2), ("bad_word_tokens", [{"tokens": [1, 2]}])):
        body: dict[str, Any] = {"prompt": "x", "max_tokens": 4, field: value}
        refused = httpx.post(f"{stack.url}/friendli/v1/completions", json=body, timeout=60)
        assert refused.status_code == 422
        assert refused.json()["error"]["param"] == field

    names = [name for name, way in WAYS.items() if way.can(True)]
    speaking = threading.Barrier(len(names) + 1)

    def cut(name: str) -> bytes:
        way, got = WAYS[name], b""
        fields = way.body(True, ENDLESS, max_tokens=800, temperature=0)
        with httpx.stream("POST", stack.url + way.path, json=fields, timeout=120) as answer:
            try:
                for number, block in enumerate(answer.iter_bytes()):
                    got += block
                    if number == 0:
                        speaking.wait(120)
            except httpx.RemoteProtocolError:
                got += b"<cut>"
        return got

    with ThreadPoolExecutor(len(names)) as pool:
        streams = [pool.submit(cut, name) for name in names]
        speaking.wait(120)
        killed = time.monotonic()
        for process in engine.processes():
            os.kill(process, signal.SIGKILL)
        answers = dict(zip(names, (one.result() for one in streams), strict=True))
        told = time.monotonic() - killed
    assert told < 60
    for name, answer in answers.items():
        assert b"[DONE]" not in answer, name
        assert b"error" in answer.lower() or b"exception" in answer.lower(), (name, answer[-300:])
        assert b'"finish_reason":"stop"' not in answer, name
    assert engine.popen.wait(30) == 1
    assert redis.command("KEYS", "*") == []
    assert httpx.post(stack.url + CHAT, json={"model": "smollm2", "messages": []}, timeout=60).status_code >= 400
    assert [
        one
        for one in sse_data(
            next(answers[name] for name in names if name.startswith("openai chat")).replace(b"<cut>", b"")
        )
        if b'"error"' in one
    ]
