"""LangChain, by langchain-openai: responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import langchain_tools
from langchain_openai import ChatOpenAI


def connect(url: str, model: str) -> Any:
    return ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, use_responses_api=True)


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.invoke(prompt).text


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for chunk in client.stream(prompt):
        yield chunk.text


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    return langchain_tools.loop(client, prompt, look)
