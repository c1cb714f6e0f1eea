"""friendli 0.16: dedicated, completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from friendli import SyncFriendli


def connect(url: str, model: str) -> Any:
    return SyncFriendli(token="none", server_url=f"{url}/friendli", timeout_ms=60_000)


def whole(client: Any, model: str, prompt: str) -> Any:
    reply = client.dedicated.completions.complete(dedicated_completions_body={"model": model, "prompt": prompt})
    return reply.choices[0].text


def streamed(client: Any, model: str, prompt: str) -> Iterator[str]:
    asked = {"model": model, "prompt": prompt, "stream": True}
    for event in client.dedicated.completions.complete(dedicated_completions_body=asked):
        yield event.data.choices[0].text
