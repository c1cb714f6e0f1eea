"""Requests that the gateway makes of itself, for a message of a web socket, a line of a batch, or the playground."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.core.http import Headers


def scope_of(path: str, headers: Headers, raw_path: bytes, query: bytes = b"", client: Any = None) -> dict[str, Any]:
    """The scope of a POST in plain ASGI. path: without percent-encoding."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": raw_path,
        "query_string": query,
        "headers": headers,
        "client": client,
        "server": None,
    }


class InternalRequest:
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
