"""friendli 0.16: serverless, chat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from friendli import SyncFriendli


def connect(url: str, model: str) -> Any:
    return SyncFriendli(token="none", server_url=f"{url}/friendli", timeout_ms=60_000)


def whole(client: Any, model: str, prompt: str) -> Any:
    reply = client.serverless.chat.complete(model=model, messages=[{"role": "user", "content": prompt}])
    return reply.choices[0].message.content


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    messages = [{"role": "user", "content": prompt}]
    for event in client.serverless.chat.complete(model=model, messages=messages, stream=True):
        yield event.data.choices[0].delta.content or ""
