"""An ASGI application as a worker's HTTP server: uvicorn's, which can be drained.

Draining stops listening, closes idle connections and lets running replies end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, MutableMapping
from typing import Any

import uvicorn

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class TooLarge(Exception):
    """The body of a request has more bytes than it may have."""


async def received(receive: Receive, most: int) -> bytes:
    """The body of a request, at most `most` bytes. Raises TooLarge, and ConnectionError if the client left."""
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > most:
            raise TooLarge
    return bytes(body)


async def answered(receive: Receive, answer: Coroutine[Any, Any, None]) -> None:
    """Runs `answer` to its end, or until the client leaves."""
    answering = asyncio.create_task(answer)
    leaving = asyncio.ensure_future(receive())
    await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    if not answering.done():
        answering.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await answering


async def whole(send: Send, status: int, body: bytes, kind: bytes = b"") -> None:
    """Sends a whole reply. kind is its content type."""
    headers = [(b"content-length", b"%d" % len(body)), *([(b"content-type", kind)] if kind else [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


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


def server(app: Any, grace_s: float, listening: Callable[[], None]) -> Server:
    """The server of an application. It calls `listening` when it listens."""
    return Server(
        uvicorn.Config(
            app,
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
