"""LangChain, by langchain-anthropic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import langchain_tools
from langchain_anthropic import ChatAnthropic


def connect(url: str, model: str) -> Any:
    return ChatAnthropic(base_url=url, api_key="none", model=model)


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.invoke(prompt).text


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for chunk in client.stream(prompt):
        yield chunk.text


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    return langchain_tools.loop(client, prompt, look)
