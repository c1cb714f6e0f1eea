"""DSPy's language model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import dspy

PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}


def connect(url: str, model: str) -> Any:
    return dspy.LM(f"openai/{model}", api_base=f"{url}/v1", api_key="none")


def whole(client: Any, model: str, prompt: str) -> Any:
    return client(prompt, cache=False)[0]


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    turns: list[Any] = [{"role": "user", "content": prompt}]
    while not isinstance(reply := client(messages=turns, tools=[TOOL], cache=False)[0], str):
        calls = reply["tool_calls"]
        turns.append({"role": "assistant", "content": reply["text"], "tool_calls": calls})
        for call in calls:
            content = look(json.loads(call["function"]["arguments"])["at"])
            turns.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return reply
