"""The anthropic package for Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from anthropic import Anthropic

TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}


def connect(url: str, model: str) -> Any:
    return Anthropic(base_url=url, api_key="none")


def whole(client: Any, model: str, prompt: str) -> Any:
    messages: Any = [{"role": "user", "content": prompt}]
    return client.messages.create(model=model, max_tokens=100, messages=messages).content[0].text


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    messages: Any = [{"role": "user", "content": prompt}]
    with client.messages.stream(model=model, max_tokens=100, messages=messages) as stream:
        yield from stream.text_stream


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    turns: list[Any] = [{"role": "user", "content": prompt}]
    while True:
        with client.messages.stream(model=model, max_tokens=100, messages=turns, tools=[TOOL]) as stream:
            reply = stream.get_final_message()
        if reply.stop_reason != "tool_use":
            return reply.content[0].text
        calls = [block for block in reply.content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": look(call.input["at"])} for call in calls]
        turns += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": results}]
