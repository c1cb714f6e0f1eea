"""The cohere package for Python: its chats. tests/acceptance/libraries/cohere_rankings.py has its rankings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from cohere import ClientV2

_LOOK = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}


def connect(url: str, model: str) -> Any:
    return ClientV2(base_url=url, api_key="none")


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.chat(model=model, messages=[{"role": "user", "content": prompt}]).message.content[0].text


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for event in client.chat_stream(model=model, messages=[{"role": "user", "content": prompt}]):
        if event.type == "content-delta":
            yield event.delta.message.content.text


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    turns: list[Any] = [{"role": "user", "content": prompt}]
    while True:
        reply = client.chat(model=model, messages=turns, tools=[{"type": "function", "function": _LOOK}]).message
        if not reply.tool_calls:
            return reply.content[0].text
        turns.append(reply)
        for call in reply.tool_calls:
            result = {
                "type": "document",
                "document": {"data": {"seen": look(json.loads(call.function.arguments)["at"])}},
            }
            turns.append({"role": "tool", "tool_call_id": call.id, "content": [result]})
