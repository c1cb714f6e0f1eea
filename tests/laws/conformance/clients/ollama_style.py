"""Clients of the Ollama-style API."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from gateway.core.http import Response
from tests.laws.conformance.clients.heard import Client, Heard, HeardChoice, events
from tests.laws.conformance.clients.openai import refused_openai


def hear_ollama_style_lines(stream: bytes) -> Heard:
    assert not stream or stream.endswith(b"\n")
    heard = Heard()
    for line in stream.decode().split("\n")[:-1]:
        hear_ollama_style_chunk(heard, json.loads(line))
    return heard


def hear_ollama_style_sse(stream: bytes) -> Heard:
    heard = Heard()
    ended = False
    for kind, data in events(stream):
        assert not ended, "something follows [END]"
        if data == "[END]":
            ended = True
            heard.complete = heard.error is None
        elif kind:
            assert kind == "error"
            heard.error = json.loads(data)["message"]
        else:
            chunk = json.loads(data)
            assert chunk["done"] is False
            hear_ollama_style_chunk(heard, chunk)
    assert ended or heard.error is None, "an error is followed by [END]"
    return heard


def refused_sse(response: Response) -> str:
    assert response.header(b"content-type") == b"text/event-stream"
    return hear_ollama_style_sse(response.body).error or ""


def hear_ollama_style_chunk(heard: Heard, chunk: dict[str, Any]) -> None:
    assert not heard.complete, "something follows done"
    assert heard.error is None, "something follows an error"
    choice = heard.of(0)
    if "error" in chunk:
        assert chunk["done"] is True
        heard.error = chunk["error"]["message"]
        return
    heard.complete = chunk["done"]
    hear_ollama_style_message(choice, chunk["message"])


def hear_ollama_style_message(choice: HeardChoice, message: dict[str, Any]) -> None:
    choice.text += message["content"]
    choice.thinking += message.get("thinking", "")
    for call in message.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        choice.calls.append([call["id"], call["function"]["name"], text])


def read_ollama_style(body: bytes) -> Heard:
    reply = json.loads(body)
    heard = Heard(complete=reply["done"])
    hear_ollama_style_message(heard.of(0), reply["message"])
    return heard


_OLLAMA_STYLE = {
    "n": "a reply has one message",
    "finish": "no chunk says why it ended",
    "stop": "no chunk says why it ended",
    "usage": "the specification has no counts",
    "logprobs": "the specification has no logprobs",
    "refusal": "a refusal is the message's text",
}


_client = partial(Client, dialect="ollama_style", operation="chat", read=read_ollama_style, blind=_OLLAMA_STYLE)
CLIENTS: tuple[Client, ...] = (
    _client(
        "ollama_style lines",
        path="/chat/completions",
        route="chat",
        hear=hear_ollama_style_lines,
        refused=refused_openai,
    ),
    _client(
        "ollama_style sse",
        path="/chat/sse",
        route="sse",
        hear=hear_ollama_style_sse,
        refused=refused_sse,
        asks_to_stream=False,
    ),
)
