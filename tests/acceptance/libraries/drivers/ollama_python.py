"""The ollama package for Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ollama import Client


def connect(url: str, model: str) -> Any:
    return Client(host=url)


def whole(client: Any, model: str, prompt: str) -> Any:
    messages: Any = [{"role": "user", "content": prompt}]
    return client.chat(model=model, messages=messages).message.content


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    messages: Any = [{"role": "user", "content": prompt}]
    for chunk in client.chat(model=model, messages=messages, stream=True):
        yield chunk.message.content or ""


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    turns: list[Any] = [{"role": "user", "content": prompt}]
    while True:
        said = client.chat(model=model, messages=turns, tools=[look]).message
        if not said.tool_calls:
            return said.content
        turns.append(said)
        for call in said.tool_calls:
            turns.append({"role": "tool", "tool_name": "look", "content": look(call.function.arguments["at"])})
