"""huggingface_hub's client for inference, by TGI's own API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from huggingface_hub import InferenceClient


def connect(url: str, model: str) -> Any:
    return InferenceClient(model=f"{url}/tgi", token="none")


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.text_generation(prompt)


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    yield from client.text_generation(prompt, stream=True, max_new_tokens=24)
