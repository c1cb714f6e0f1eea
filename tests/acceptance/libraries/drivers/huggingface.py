"""huggingface_hub's client for inference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from huggingface_hub import InferenceClient


def connect(url: str, model: str) -> Any:
    return InferenceClient(base_url=f"{url}/v1", api_key="none")


def whole(client: Any, model: str, prompt: str) -> Any:
    messages = [{"role": "user", "content": prompt}]
    return client.chat_completion(messages, model=model).choices[0].message.content


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for chunk in client.chat_completion([{"role": "user", "content": prompt}], model=model, stream=True):
        yield chunk.choices[0].delta.content or ""
