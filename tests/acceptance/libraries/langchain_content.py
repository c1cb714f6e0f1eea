"""What LangChain's drivers share whose replies are read as content."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.invoke(prompt).content


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for chunk in client.stream(prompt):
        yield chunk.content
