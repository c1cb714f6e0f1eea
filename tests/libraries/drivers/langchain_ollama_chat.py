"""LangChain, by langchain-ollama."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import langchain_tools
from langchain_ollama import ChatOllama


def connect(url: str, model: str) -> Any:
    return ChatOllama(base_url=url, model=model)


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.invoke(prompt).text


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for chunk in client.stream(prompt):
        yield chunk.text


def tools(client: Any, model: str, prompt: str, look: Callable[[str], str]) -> Any:
    return langchain_tools.loop(client, prompt, look)
