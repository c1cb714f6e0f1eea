"""LangChain, by langchain-openai."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_openai import ChatOpenAI


def connect(url: str, model: str) -> Any:
    return ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model)


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.invoke(prompt).content


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for chunk in client.stream(prompt):
        yield chunk.content
