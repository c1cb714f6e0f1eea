"""What LangChain's drivers share: a conversation with a tool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage


def loop(client: Any, prompt: str, look: Callable[[str], str]) -> Any:
    """The text of the last reply, after all calls of `look` that the model wants."""
    bound = client.bind_tools([look])
    turns: list[Any] = [HumanMessage(prompt)]
    while True:
        reply = bound.invoke(turns)
        if not reply.tool_calls:
            return reply.text
        turns.append(reply)
        turns += [ToolMessage(look(call["args"]["at"]), tool_call_id=call["id"]) for call in reply.tool_calls]
