"""LiteLLM as a client."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from litellm import completion


def connect(url: str, model: str) -> Any:
    return partial(completion, model=f"openai/{model}", api_base=f"{url}/v1", api_key="none")


def whole(client: Any, model: str, prompt: str) -> Any:
    return client(messages=[{"role": "user", "content": prompt}]).choices[0].message.content


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for chunk in client(messages=[{"role": "user", "content": prompt}], stream=True):
        yield chunk.choices[0].delta.content or ""
