"""Haystack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret


def connect(url: str, model: str) -> Any:
    return OpenAIChatGenerator(api_base_url=f"{url}/v1", api_key=Secret.from_token("none"), model=model)


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.run([ChatMessage.from_user(prompt)])["replies"][0].text


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    pieces: list[str] = []
    client.run([ChatMessage.from_user(prompt)], streaming_callback=lambda chunk: pieces.append(chunk.content))
    yield from pieces
