"""The openai package, by its client for Azure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from openai import AzureOpenAI

PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}


def connect(url: str, model: str) -> Any:
    return AzureOpenAI(azure_endpoint=url, api_key="none", api_version="2024-10-21")


def whole(client: Any, model: str, prompt: str) -> Any:
    messages: Any = [{"role": "user", "content": prompt}]
    return client.chat.completions.create(model=model, messages=messages).choices[0].message.content


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    messages: Any = [{"role": "user", "content": prompt}]
    for chunk in client.chat.completions.create(model=model, messages=messages, stream=True):
        yield chunk.choices[0].delta.content or ""


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    turns: list[Any] = [{"role": "user", "content": prompt}]
    while True:
        said = client.chat.completions.create(model=model, messages=turns, tools=[TOOL]).choices[0].message
        if not said.tool_calls:
            return said.content
        turns.append(said)
        for call in said.tool_calls:
            output = look(json.loads(call.function.arguments)["at"])
            turns.append({"role": "tool", "tool_call_id": call.id, "content": output})
