"""Semantic Kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

from openai import AsyncOpenAI
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory


def connect(url: str, model: str) -> Any:
    openai = partial(AsyncOpenAI, base_url=f"{url}/v1", api_key="none")
    return lambda: OpenAIChatCompletion(model, async_client=openai())


def _asked(prompt: str) -> Any:
    history = ChatHistory()
    history.add_user_message(prompt)
    return history, OpenAIChatPromptExecutionSettings()


def whole(client: Any, model: str, prompt: str) -> Any:
    async def asked() -> Any:
        return (await client().get_chat_message_content(*_asked(prompt))).content

    return asyncio.run(asked())


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    async def pieces() -> list[str]:
        return [piece.content async for piece in client().get_streaming_chat_message_content(*_asked(prompt))]

    yield from asyncio.run(pieces())
