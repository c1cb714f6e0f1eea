"""The openai package for Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openai import OpenAI


def connect(url: str, model: str) -> Any:
    return OpenAI(base_url=f"{url}/v1", api_key="none")


def whole(client: Any, model: str, prompt: str) -> Any:
    messages = [{"role": "user", "content": prompt}]
    return client.chat.completions.create(model=model, messages=messages).choices[0].message.content


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    messages = [{"role": "user", "content": prompt}]
    for chunk in client.chat.completions.create(model=model, messages=messages, stream=True):
        yield chunk.choices[0].delta.content or ""
