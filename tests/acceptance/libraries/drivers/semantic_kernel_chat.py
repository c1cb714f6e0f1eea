"""Semantic Kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from openai import AsyncOpenAI
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function

LOOK = "tested-look"
# Its connections belong to one loop.
LOOP = asyncio.new_event_loop()


def connect(url: str, model: str) -> Any:
    return OpenAIChatCompletion(model, async_client=AsyncOpenAI(base_url=f"{url}/v1", api_key="none"))


def _asked(prompt: str, **more: Any) -> Any:
    history = ChatHistory()
    history.add_user_message(prompt)
    return history, OpenAIChatPromptExecutionSettings(**more)


def whole(client: Any, model: str, prompt: str) -> Any:
    return LOOP.run_until_complete(client.get_chat_message_content(*_asked(prompt))).content


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    pieces = client.get_streaming_chat_message_content(*_asked(prompt))
    while (piece := LOOP.run_until_complete(anext(pieces, None))) is not None:
        yield piece.content


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    kernel = Kernel()
    kernel.add_function("tested", kernel_function(look, name="look"))
    asked = _asked(prompt, function_choice_behavior=FunctionChoiceBehavior.Auto())
    return LOOP.run_until_complete(client.get_chat_message_content(*asked, kernel=kernel)).content
