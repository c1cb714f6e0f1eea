"""Mistral's package for Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from mistralai.client import Mistral

PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}


def connect(url: str, model: str) -> Any:
    return Mistral(server_url=url, api_key="none")


def whole(client: Any, model: str, prompt: str) -> Any:
    messages = [{"role": "user", "content": prompt}]
    return client.chat.complete(model=model, messages=messages).choices[0].message.content


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    with client.chat.stream(model=model, messages=[{"role": "user", "content": prompt}]) as events:
        for event in events:
            for choice in event.data.choices:
                yield choice.delta.content or ""


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    turns: list[Any] = [{"role": "user", "content": prompt}]
    while True:
        reply = client.chat.complete(model=model, messages=turns, tools=[TOOL]).choices[0].message
        if not reply.tool_calls:
            return reply.content
        turns.append(reply)
        for call in reply.tool_calls:
            content = look(json.loads(call.function.arguments)["at"])
            turns.append({"role": "tool", "tool_call_id": call.id, "name": "look", "content": content})
