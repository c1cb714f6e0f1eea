"""Events to an address of the operator's, signed as https://www.standardwebhooks.com (version 1.0.0) says.

No request waits for it. One event is under way at a time and is tried `len(_WAITS_S) + 1` times; up to `_WAITING` wait
behind it, and beyond that the oldest are lost. An event may come twice, if its answer was lost: its id tells.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import msgspec

from gateway.background import cancel_tasks
from gateway.config.money import BudgetWebhook

_WAITING = 1000
_WAITS_S = (1.0, 5.0, 30.0, 120.0)
_TIMEOUT_S = 10.0


def signature(secret: str, id_: str, at: int, body: bytes) -> str:
    """The header `webhook-signature` of a message. The key are the bytes of `secret` as they are written."""
    signed = hmac.digest(secret.encode(), f"{id_}.{at}.".encode() + body, "sha256")
    return "v1," + base64.b64encode(signed).decode()


class Webhook:
    """on_change: called with "failing" and why, with "sending" once an event arrives again, and with "lost" and how
    many events were given up."""

    def __init__(self, options: BudgetWebhook, on_change: Callable[[str, str], None]) -> None:
        self.options = options
        self._on_change = on_change
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._failing = False

    def send(self, kind: str, data: Mapping[str, Any]) -> None:
        """Sends an event soon. data must be JSON-able."""
        if len(self._waiting) >= _WAITING:
            self._waiting.popleft()
            self._on_change("lost", "1")
        event = {"type": kind, "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "data": data}
        self._waiting.append((f"msg_{secrets.token_hex(12)}", msgspec.json.encode(event)))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting:  # again: an event may come while the client closes
                async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client:
                    while self._waiting:
                        await self._deliver(client, *self._waiting.popleft())
        finally:
            self._task = None

    async def _deliver(self, client: httpx.AsyncClient, id_: str, body: bytes) -> None:
        for wait_s in (*_WAITS_S, None):
            why = await self._try(client, id_, body)
            if (why is not None) != self._failing:
                self._failing = why is not None
                self._on_change("failing" if why else "sending", why or "")
            if why is None:
                return
            if wait_s is not None:
                await asyncio.sleep(wait_s)
        self._on_change("lost", "1")

    async def _try(self, client: httpx.AsyncClient, id_: str, body: bytes) -> str | None:
        """Why it did not arrive; None if it did."""
        at = int(time.time())
        headers = {
            "content-type": "application/json",
            "webhook-id": id_,
            "webhook-timestamp": str(at),
            "webhook-signature": signature(self.options.secret, id_, at, body),
        }
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                async with client.stream("POST", self.options.url, content=body, headers=headers) as reply:
                    return None if reply.is_success else f"status {reply.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:  # the last for an odd host
            return type(error).__name__

    async def close(self) -> None:
        """Gives up what waits."""
        if self._task is not None:
            await cancel_tasks(self._task)
            self._on_change("lost", str(len(self._waiting) + 1))
