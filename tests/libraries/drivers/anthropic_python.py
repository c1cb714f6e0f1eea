"""The anthropic package for Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anthropic import Anthropic


def connect(url: str, model: str) -> Any:
    return Anthropic(base_url=url, api_key="none")


def whole(client: Any, model: str, prompt: str) -> Any:
    messages: Any = [{"role": "user", "content": prompt}]
    return client.messages.create(model=model, max_tokens=100, messages=messages).content[0].text


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    messages: Any = [{"role": "user", "content": prompt}]
    with client.messages.stream(model=model, max_tokens=100, messages=messages) as stream:
        yield from stream.text_stream
