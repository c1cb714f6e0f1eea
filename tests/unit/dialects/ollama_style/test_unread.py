"""A request that is refused before its body is read may have asked for a stream: the refusal suits both replies."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request
from tests.support.harness import Stack
from tests.unit.app.asking import key
from tests.unit.dialects.ollama_style.exchange import DIALECT, chat

KEY, KEYS = key("one")
PATH = "/ollama/chat/completions"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    config = {"auth": "keys", "keys": KEYS, "listen": {"max_body_bytes": 100_000}}
    with Stack(config=config) as started:
        yield started


@pytest.mark.parametrize("kind", Kind)
def test_it_is_a_whole_body_and_the_last_line_of_a_stream(kind: Kind) -> None:
    response, code = DIALECT.refuse(GatewayError(kind, "no"), Request("POST", PATH, [], route="chat"), None)
    (line,) = response.body.splitlines(keepends=True)
    assert line.endswith(b"\n")
    assert json.loads(line) == {"error": json.loads(line)["error"], "done": True}
    assert json.loads(line)["error"]["code"] == code


@pytest.mark.parametrize("stream", [False, True])
def test_without_a_key_and_with_too_much(stack: Stack, stream: bool) -> None:
    for headers, text, status in (({}, "hi", 401), ({"authorization": f"Bearer {KEY}"}, "x" * 200_000, 413)):
        body = {**chat(stream=stream), "messages": [{"role": "user", "content": text}]}
        reply = httpx.post(stack.url + PATH, json=body, headers=headers, timeout=60)
        assert reply.status_code == status
        assert reply.text.endswith("\n")
        assert reply.json()["done"] is True
        assert reply.json()["error"]["message"]
