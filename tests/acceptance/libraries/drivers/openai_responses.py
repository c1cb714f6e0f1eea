"""The openai package for Python: responses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from openai import OpenAI

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}


def connect(url: str, model: str) -> Any:
    return OpenAI(base_url=f"{url}/v1", api_key="none")


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.responses.create(model=model, input=prompt).output_text


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for event in client.responses.create(model=model, input=prompt, stream=True):
        if event.type == "response.output_text.delta":
            yield event.delta


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    turns: list[Any] = [{"role": "user", "content": prompt}]
    while True:
        with client.responses.stream(model=model, input=turns, tools=[TOOL]) as stream:
            reply = stream.get_final_response()
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            return reply.output_text
        turns += [item.model_dump(exclude_none=True) for item in reply.output]
        for call in calls:
            output = look(json.loads(call.arguments)["at"])
            turns.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
