"""What LiteLLM's drivers share: it is one function, whatever the route."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def whole(client: Any, model: str, prompt: str) -> Any:
    return client(messages=[{"role": "user", "content": prompt}]).choices[0].message.content


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for chunk in client(messages=[{"role": "user", "content": prompt}], stream=True):
        yield chunk.choices[0].delta.content or ""
