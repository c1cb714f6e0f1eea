"""The HTTP server in front of llama.cpp's: it passes requests on, and can be drained.

llama.cpp's own server cannot drain: it either continues to serve or cuts running replies. uvicorn can: it stops
listening, closes idle connections and lets running replies end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import httpx
import uvicorn

# The largest request. The context of the small model has a few KiB, and a request is buffered until it is complete.
_MOST_BYTES = 64 << 20
# Fields of one connection, not of the message (RFC 9110 7.6.1), and fields that the other connection sets itself.
_OF_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade", b"host", b"content-length", b"expect")
)


class Front:
    """The ASGI application: sends each request to `address`, with the same method, target, fields and body, and passes
    the reply on as it comes. If the client leaves, the request to llama.cpp ends."""

    def __init__(self, address: str) -> None:
        self._address = httpx.URL(address)
        # llama.cpp closes connections without announcing it, so each request has its own.
        self._client = httpx.AsyncClient(
            timeout=None, trust_env=False, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
        )
        self._client.headers.clear()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > _MOST_BYTES:
                await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
                await send({"type": "http.response.body"})
                return
        passing = asyncio.create_task(self._pass(scope, bytes(body), send))
        leaving = asyncio.create_task(receive())
        await asyncio.wait((passing, leaving), return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if not passing.done():
            passing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await passing

    async def _pass(self, scope: MutableMapping[str, Any], body: bytes, send: Any) -> None:
        """Passes a reply on. Raises httpx.HTTPError if llama.cpp breaks off; uvicorn then cuts the connection, too."""
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        asked = self._client.build_request(
            scope["method"],
            self._address.copy_with(raw_path=target),
            headers=[(name, value) for name, value in scope["headers"] if name not in _OF_CONNECTION],
            content=body or None,
        )
        reply = await self._client.send(asked, stream=True)
        try:
            headers = [(name.lower(), value) for name, value in reply.headers.raw]
            kept = [field for field in headers if field[0] not in _OF_CONNECTION - {b"content-length"}]
            await send({"type": "http.response.start", "status": reply.status_code, "headers": kept})
            async for block in reply.aiter_raw():
                await send({"type": "http.response.body", "body": block, "more_body": True})
            await send({"type": "http.response.body"})
        finally:
            await reply.aclose()


class Server(uvicorn.Server):
    """uvicorn's server. It calls `listening` when it listens, and handles no signals.

    cut  after `serve`: the grace period ended before the running requests did
    """

    def __init__(self, config: uvicorn.Config, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self.cut = False
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        began = time.monotonic()
        await super().shutdown(sockets)
        self.cut = time.monotonic() - began >= (self.config.timeout_graceful_shutdown or 0)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def drain(self) -> None:
        """Refuses new connections from now on; `serve` returns when the running requests have ended, or after the grace
        period. May be called from any thread."""
        self.should_exit = True


def server(address: str, grace_s: float, listening: Callable[[], None]) -> Server:
    """The server in front of llama.cpp's at `address`."""
    return Server(
        uvicorn.Config(
            Front(address),
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=max(1, round(grace_s)),
        ),
        listening,
    )


def bound(host: str, port: int) -> socket.socket:
    """A bound socket for the server, not listening yet. Raises OSError if the port is in use."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
