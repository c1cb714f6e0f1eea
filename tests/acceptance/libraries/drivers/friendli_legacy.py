"""friendli-client 1.5.8, the SDK before friendli."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from friendli import Friendli


def connect(url: str, model: str) -> Any:
    return Friendli(token="none", base_url=f"{url}/friendli")


def whole(client: Any, model: str, prompt: str) -> Any:
    return client.completions.create(model=model, prompt=prompt).choices[0].text


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for event in client.completions.create(model=model, prompt=prompt, stream=True):
        yield event.text
