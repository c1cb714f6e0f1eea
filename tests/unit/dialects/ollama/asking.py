"""Requests of Ollama's API, what is made of them, and its streams as its clients hear them."""

from __future__ import annotations

import json
from typing import Any

from gateway import backends, dialects
from gateway.core.messages import Chat, Complete, Embed, ListModels
from gateway.core.ports import Capabilities, Settings, StreamWriter
from gateway.translation.offline import Crossing, send
from tests.unit.dialects.asking import HI, request

DIALECT = dialects.create("ollama", Settings())
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
PNG = "iVBORw0KGgo="


def body(**members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": HI, **members}


def scripted(**script: Any) -> dict[str, Any]:
    """A chat to which a simulated worker answers as `script` says."""
    return body(messages=[{"role": "user", "content": "sim:" + json.dumps(script)}])


def read(route: str, members: dict[str, Any]) -> Chat | Complete | Embed | ListModels:
    op = DIALECT.read(request(members, route=route))
    assert isinstance(op, (Chat, Complete, Embed, ListModels))
    return op


def chat_writer() -> StreamWriter:
    op = read("chat", body())
    assert isinstance(op, Chat)
    return DIALECT.writer(op)


def crossing(backend: str = "vllm", can: Capabilities | None = None, route: str = "chat", **members: Any) -> Crossing:
    """On its way to a worker."""
    asked = body(**members) if route == "chat" else {"model": "m", **members}
    return send(DIALECT, backends.create(backend), json.dumps(asked).encode(), can or Capabilities("w"), route=route)


def sent(backend: str = "vllm", can: Capabilities | None = None, route: str = "chat", **members: Any) -> Any:
    """What a worker gets."""
    return json.loads(crossing(backend, can, route, **members).outgoing.body)


def lines(stream: str) -> list[dict[str, Any]]:
    """The lines of a stream, each an object alone, as the strictest client reads them: no blank line."""
    assert stream.endswith("\n")
    return [json.loads(line) for line in stream[:-1].split("\n")]


def heard(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The messages of a chat's lines, joined."""
    said: dict[str, Any] = {"content": "", "thinking": "", "tool_calls": []}
    for line in found:
        said["content"] += line["message"]["content"]
        said["thinking"] += line["message"].get("thinking", "")
        said["tool_calls"] += line["message"].get("tool_calls", [])
    return said
