"""The client's connection by plain ASGI alone, and what reads a body that has not arrived.

The gateway's own server has a `core.ports.Client` that writes without a task switch for each chunk. The tests run both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from io import BytesIO
from typing import Any

from gateway.core.byte_budget import SMALL, Held
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers
from gateway.core.ports import Client, CountedConnection
from gateway.light_task import OneTimeEvent

Scope = MutableMapping[str, Any]
Receive = Callable[[], Any]
Send = Callable[[MutableMapping[str, Any]], Any]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
TakeRoom = Callable[[int], Awaitable[None]]
"""Called with the bytes of a body that are here or announced, before so many are held. Raises GatewayError."""


async def send_whole(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Sends a reply that is none of a dialect's, such as that of a health check."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def connect(scope: Scope, receive: Receive, send: Send, extension: str, known_as: str) -> Client:
    """The fastest client that the server allows: its own if `extension` is in the scope and the client speaks HTTP/1.1.
    known_as is the request's id."""
    extensions = scope.pop("extensions", None)  # the scope lasts as long as a stream
    direct: Client | None = None if extensions is None else extensions.get(extension)
    if direct is not None:
        direct.id = known_as
        if scope.get("http_version") == "1.1":
            return direct
    return AsgiClient(receive, send, direct)


# -- a body ---------------------------------------------------------------------------------------------------------


def announced(headers: Headers, limit: int) -> int:
    """The bytes that the body has by the head of the request, 0 if that does not say so. Raises
    GatewayError(TOO_LARGE)."""
    size = next((int(value) for name, value in headers if name == b"content-length"), 0)
    if size > limit:
        raise body_too_large(limit)
    return size


async def read_body(client: Client, headers: Headers, limit: int, take_room: TakeRoom) -> bytes:
    """The whole request body as it comes. `take_room` is awaited with its size before more than SMALL bytes of it are
    read, and may raise. Raises GatewayError: TOO_LARGE above `limit` bytes, without reading on; CLIENT_GONE."""
    size = announced(headers, limit)
    if size > SMALL:
        await take_room(size)
    parts = BytesIO()  # hands out what it holds without another copy
    more = True
    while more:
        block, more = await next_block(client)
        parts.write(block)
        if parts.tell() > limit:
            raise body_too_large(limit)
        if parts.tell() > SMALL and parts.tell() > size:
            size = parts.tell()
            await take_room(size)
    return parts.getvalue()


async def next_block(client: Client) -> tuple[bytes, bool]:
    """The next bytes of the request body, and whether more follow. Raises GatewayError(CLIENT_GONE)."""
    message = await client.receive()
    if message["type"] != "http.request":
        client.gone = True
        raise GatewayError(Kind.CLIENT_GONE, "the client left while sending its request")
    return message.get("body", b""), bool(message.get("more_body"))


def body_too_large(limit: int) -> GatewayError:
    """The refusal of a body above `limit` bytes."""
    return GatewayError(Kind.TOO_LARGE, f"the request body is larger than {limit} bytes")


# -- plain ASGI -----------------------------------------------------------------------------------------------------

# Bytes that wait for a slow plain-ASGI client before its worker is paused.
_HIGH = 65536


class AsgiClient:
    """By plain ASGI alone, on any server. `server`, if there is one, only reports what the server refused. Implements
    core.ports.Client."""

    direct = gone = started = False
    room: Held | None = None
    disk: Held | None = None

    def __init__(self, receive: Receive, send: Send, server: Client | None = None) -> None:
        self.id = ""
        self.receive = receive
        self._send = send
        self._server = server
        self._watcher: asyncio.Task[None] | None = None
        self._pause: Callable[[], None] | None = None
        self._resume: Callable[[], None] | None = None
        self._queue: list[bytes] = []
        self._queued = 0
        self._paused = False
        self._wake = asyncio.Event()
        self._last = False  # nothing more will be written
        self._whole = False

    @property
    def refused(self) -> tuple[int, str] | None:
        return None if self._server is None else self._server.refused

    @property
    def connection(self) -> CountedConnection | None:
        return None if self._server is None else self._server.connection

    def body(self) -> bytes | None:
        return None

    async def start(self, status: int, headers: Headers) -> None:
        self.started = True
        # Another server alone knows what becomes of its connection, and HTTP/2 forbids the field.
        headers = [field for field in headers if field[0] != b"connection"]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    def watch(self, on_gone: Callable[[], None]) -> None:
        async def watching() -> None:
            while (await self.receive())["type"] != "http.disconnect":
                pass
            if self._whole:
                return  # servers also send `http.disconnect` once the response is complete
            self.gone = True
            self._wake.set()
            on_gone()

        self._watcher = asyncio.get_running_loop().create_task(watching())

    def flow(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pause, self._resume = pause, resume
        if self._paused:
            pause()

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        self.started = True
        length = (b"content-length", str(len(body)).encode())
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        self._whole = True
        await self._send({"type": "http.response.body", "body": body})

    def write(self, data: bytes) -> None:
        self._queue.append(data)
        self._queued += len(data)
        self._wake.set()
        if self._queued > _HIGH and not self._paused and self._pause is not None:
            self._paused = True
            self._pause()

    async def carry(self, until: OneTimeEvent) -> None:
        waits = asyncio.get_running_loop().create_task(self._wake_at(until))
        try:
            while not (until.happened or self.gone):
                await self._wake.wait()
                self._wake.clear()
                await self._flush()
        finally:
            waits.cancel()

    async def _wake_at(self, event: OneTimeEvent) -> None:
        await event
        self._wake.set()

    async def _flush(self) -> None:
        while self._queue or (self._last and not self._whole):
            data = b"".join(self._queue)
            self._queue.clear()
            self._queued = 0
            self._whole = self._last
            await self._send({"type": "http.response.body", "body": data, "more_body": not self._last})
        if self._paused and self._resume is not None:
            self._paused = False
            self._resume()

    def end(self) -> None:
        self._last = True
        self._wake.set()

    async def finish(self, data: bytes) -> None:
        if data:
            self._queue.append(data)
        self.end()
        await self._flush()

    async def send_block(self, data: bytes, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def cut(self, data: bytes) -> None:
        """ASGI has no call for it: the response is left incomplete, and the server then closes the connection."""
        await self._flush()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
