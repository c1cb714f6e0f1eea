"""Pydantic AI."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def connect(url: str, model: str) -> Any:
    return Agent(OpenAIChatModel(model, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none")))


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.run_sync(prompt).output


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    async def pieces() -> list[str]:
        async with client.run_stream(prompt) as result:
            return [piece async for piece in result.stream_text(delta=True, debounce_by=None)]

    yield from asyncio.new_event_loop().run_until_complete(pieces())
