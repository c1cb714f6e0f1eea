"""Requests that the gateway makes of itself, for a message of a web socket or a line of a batch."""

from __future__ import annotations

import asyncio
from typing import Any


class InnerRequest:
    """The receiving half of plain ASGI, for a body that is here. `leave` ends it as a client that goes away does."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        if not self._left.done():
            self._left.set_result(None)

    async def receive(self) -> dict[str, Any]:
        if self._body is None:
            await self._left
            return {"type": "http.disconnect"}
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}
