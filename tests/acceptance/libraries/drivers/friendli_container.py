"""friendli 0.16: container, chat."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from friendli import SyncFriendli


def connect(url: str, model: str) -> Any:
    return partial(SyncFriendli(token="none").container.chat.complete, server_url=f"{url}/friendli", timeout_ms=60_000)


def whole(client: Any, model: str, prompt: str) -> Any:
    return client(model=model, messages=[{"role": "user", "content": prompt}]).choices[0].message.content


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    for event in client(model=model, messages=[{"role": "user", "content": prompt}], stream=True):
        yield event.data.choices[0].delta.content or ""
