"""The text-generation package, TGI's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from text_generation import Client


def connect(url: str, model: str) -> Any:
    return Client(f"{url}/tgi", headers={"Authorization": "Bearer none"})


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.generate(prompt, max_new_tokens=24).generated_text


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for event in client.generate_stream(prompt, max_new_tokens=24):
        yield event.token.text
