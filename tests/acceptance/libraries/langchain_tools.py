"""What LangChain's drivers share: replies read as text, and a conversation with a tool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.invoke(prompt).text


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for chunk in client.stream(prompt):
        yield chunk.text


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    """The text of the last reply, after all calls of `look` that the model wants."""
    bound = client.bind_tools([look])
    turns: list[Any] = [HumanMessage(prompt)]
    while True:
        reply = bound.invoke(turns)
        if not reply.tool_calls:
            return reply.text
        turns.append(reply)
        turns += [ToolMessage(look(call["args"]["at"]), tool_call_id=call["id"]) for call in reply.tool_calls]
