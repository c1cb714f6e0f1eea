"""Haystack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret


def connect(url: str, model: str) -> Any:
    return OpenAIChatGenerator(api_base_url=f"{url}/v1", api_key=Secret.from_token("none"), model=model)


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.run([ChatMessage.from_user(prompt)])["replies"][0].text


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    pieces: list[str] = []
    client.run([ChatMessage.from_user(prompt)], streaming_callback=lambda chunk: pieces.append(chunk.content))
    yield from pieces


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    parameters = {"type": "object", "properties": {"at": {"type": "string"}}}
    looking = Tool(name="look", description="Looks.", parameters=parameters, function=lambda at: look(at))
    turns = [ChatMessage.from_user(prompt)]
    while True:
        reply = client.run(turns, tools=[looking])["replies"][0]
        if not reply.tool_calls:
            return reply.text
        turns.append(reply)
        turns += [ChatMessage.from_tool(looking.invoke(**call.arguments), origin=call) for call in reply.tool_calls]
