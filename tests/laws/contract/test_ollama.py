"""Ollama's own client for Python, unmodified, against the gateway at the root and at `/ollama`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest

from tests.support.harness import Stack

PNG = bytes.fromhex("89504e470d0a1a0a")


def look(at: str) -> str:
    """Looks.

    Args:
      at: where

    Returns:
      what is there
    """
    return at


@pytest.fixture(scope="module", params=["", "/ollama"])
def client(stack: Stack, request: pytest.FixtureRequest) -> Iterator[ollama.Client]:
    with ollama.Client(host=stack.url + request.param) as found:
        yield found


def asking(**script: Any) -> Any:
    return {"model": "m", "messages": [{"role": "user", "content": "sim:" + json.dumps(script)}]}


def test_chats(client: ollama.Client) -> None:
    reply = client.chat(**asking(text="Hello there", reasoning="hm"))
    assert (reply.message.content, reply.message.thinking) == ("Hello there", "hm")
    assert reply.done_reason == "stop"
    assert reply.eval_count
    assert reply.total_duration
    found = list(client.chat(**asking(text="Hello there"), stream=True))
    assert "".join(chunk.message.content or "" for chunk in found) == "Hello there"
    assert found[-1].done


def test_generations(client: ollama.Client) -> None:
    text = asking(text="Hello there")["messages"][0]["content"]
    assert client.generate("m", text).response == "Hello there"
    found = client.generate("m", text, stream=True, options={"temperature": 0.5, "num_ctx": 4096})
    assert "".join(chunk.response or "" for chunk in found) == "Hello there"
    assert client.generate("m", "hi", raw=True).response
    assert client.generate("m", "").done_reason == "load"


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_of_tools(client: ollama.Client, stream: bool) -> None:
    script = asking(tool_calls=[{"name": "look", "arguments": {"at": name}} for name in "ab"])
    chat: Any = client.chat  # its overloads know no variable `stream`
    answer = chat(**script, tools=[look], stream=stream)
    messages = [chunk.message for chunk in answer] if stream else [answer.message]
    calls = [call for message in messages for call in message.tool_calls or []]
    assert [call.function.arguments for call in calls] == [{"at": "a"}, {"at": "b"}]
    turns: Any = [{"role": "user", "content": "look"}, {"role": "assistant", "tool_calls": calls}]
    turns += [{"role": "tool", "tool_name": "look", "content": look(**call.function.arguments)} for call in calls]
    assert client.chat("m", messages=turns).message.content


def test_images(client: ollama.Client) -> None:
    turn: Any = {"role": "user", "content": "what", "images": [PNG]}
    assert client.chat("m", messages=[turn]).message.content


def test_models(client: ollama.Client) -> None:
    assert [model.model for model in client.list().models] == ["m", "alias"]
    assert client.show("m").capabilities
    assert [model.model for model in client.ps().models] == ["m", "alias"]
    assert client.pull("m").status == "success"


def test_embeddings(client: ollama.Client) -> None:
    assert len(client.embed("m", ["a", "b"]).embeddings) == 2
    assert client.embeddings("m", "a").embedding


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({**asking(text="hi"), "model": "none"}, 404),
        (asking(fault="status:500"), 502),
        ({**asking(text="hi"), "options": {"temperature": "x"}}, 400),
    ],
)
def test_failures_are_its_own_exceptions(client: ollama.Client, asked: Any, status: int, stream: bool) -> None:
    chat: Any = client.chat
    with pytest.raises(ollama.ResponseError) as caught:
        list(chat(**asked, stream=stream))
    assert caught.value.status_code == status
    assert caught.value.error


@pytest.mark.parametrize("fault", ["reset@3", "eof@3"])
def test_a_cut_stream_is_never_a_success(client: ollama.Client, fault: str) -> None:
    with pytest.raises((ollama.ResponseError, httpx.RemoteProtocolError)):
        list(client.chat(**asking(text="Hello there, how are you today?", fault=fault), stream=True))


def test_keys() -> None:
    with Stack(config={"auth": "keys", "keys": {"app": {"hash": "sha256:" + "ab" * 32}}}) as stack:
        headers = {"authorization": "Bearer wrong"}
        with ollama.Client(host=stack.url, headers=headers) as client, pytest.raises(ollama.ResponseError) as caught:
            client.chat(**asking(text="hi"))
        assert caught.value.status_code == 401
