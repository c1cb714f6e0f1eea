"""The client's connection during one request: read the body, answer, notice that the client leaves.

`Client` has two implementations. `AsgiClient` is plain ASGI and the reference. `DirectClient` uses the server's
`core.ports.Downstream` to write without a task switch for each chunk. The tests run both.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, MutableMapping
from io import BytesIO
from typing import Any

from gateway.core.byte_budget import SMALL, Held
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers, Response
from gateway.core.ports import CountedConnection, Downstream

Scope = MutableMapping[str, Any]
Receive = Callable[[], Any]
Send = Callable[[MutableMapping[str, Any]], Any]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Hold = Callable[[int], Awaitable[None]]
"""Called with the bytes of a body that are here or announced, before so many are held. Raises GatewayError."""


async def send_whole(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Sends a reply that is none of a dialect's, such as that of a health check."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# Bytes that wait for a slow plain-ASGI client before its worker is paused.
_HIGH = 65536


class Client(ABC):
    """One client connection, as one request sees it. `body` and `start` are here as plain ASGI has them.

    gone     the client has left
    started  the response head is out
    room     of the budget of bodies, while the request holds some of it
    disk     of that of uploads, likewise
    direct   the downstream whose `write` it is, if nothing lies between
    write    sends its argument, not empty, after `start`; it may be buffered until `carry`, `finish` or `cut`
    end      ends a streamed response with what was written last. Idempotent; `finish` must still follow
    """

    write: Callable[[bytes], None]
    end: Callable[[], None]

    gone = False
    started = False
    room: Held | None = None
    disk: Held | None = None
    direct: Downstream | None = None
    _last_block = False
    _headers: Headers
    _receive: Receive
    _send: Send
    # None on a server that has no such seam.
    _downstream: Downstream | None

    @property
    def refused(self) -> tuple[int, str] | None:
        """Status and code that the server itself answered with, because the body was malformed; the client counts as
        gone then."""
        return None if self._downstream is None else self._downstream.refused

    @property
    def connection(self) -> CountedConnection | None:
        """None if the server does not name it."""
        return None if self._downstream is None else self._downstream.connection

    async def body(self, limit: int, hold: Hold) -> bytes:
        """The whole request body. `hold` is awaited with its size before more than SMALL bytes of it are read, and may
        raise. Raises GatewayError: TOO_LARGE above `limit` bytes, without reading on; CLIENT_GONE."""
        size = self.announced(limit)
        if size > SMALL:
            await hold(size)
        message = await self._receive()
        if not message.get("more_body") and message["type"] == "http.request":
            body: bytes = message["body"]
            if len(body) > limit:
                raise body_too_large(limit)
            return body
        parts = BytesIO()  # hands out what it holds without another copy
        while message["type"] == "http.request":
            parts.write(message["body"])
            if parts.tell() > limit:
                raise body_too_large(limit)
            if parts.tell() > SMALL and parts.tell() > size:
                size = parts.tell()
                await hold(size)
            if not message.get("more_body"):
                return parts.getvalue()
            message = await self._receive()
        self.gone = True
        raise GatewayError(Kind.CLIENT_GONE, "the client left while sending its request")

    def announced(self, limit: int) -> int:
        """The bytes that the body has by its head, 0 if that does not say so. Raises GatewayError(TOO_LARGE)."""
        size = next((int(value) for name, value in self._headers if name == b"content-length"), 0)
        if size > limit:
            raise body_too_large(limit)
        return size

    async def block(self) -> bytes | None:
        """The next bytes of the request body, instead of `body`; None at its end. Raises GatewayError(CLIENT_GONE)."""
        if self._last_block:
            return None
        message = await self._receive()
        if message["type"] != "http.request":
            self.gone = True
            raise GatewayError(Kind.CLIENT_GONE, "the client left while sending its request")
        self._last_block = not message.get("more_body")
        block: bytes = message["body"]
        return block

    @abstractmethod
    def watch(self, on_gone: Callable[[], None]) -> None:
        """From now on, `on_gone` is called once when the client leaves. Only after the body was read."""

    @abstractmethod
    def flow(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """From now on, `pause` is called when the client reads slower than we write, and `resume` when it has caught
        up."""

    @abstractmethod
    def respond(self, response: Response, extra: Headers) -> Awaitable[None]:
        """Sends a whole response, with the `extra` headers behind its own, once it is awaited."""

    async def start(self, status: int, headers: Headers) -> None:
        """Sends the head of a streamed response."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send_block(self, data: bytes, more: bool) -> None:
        """Sends a part of a streamed response, as fast as the client reads; more: others follow. After `start`, in
        place of `write` and `finish`."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    @abstractmethod
    async def carry(self, until: asyncio.Future[None]) -> None:
        """Carries what is written to the client, until `until` is done."""

    @abstractmethod
    async def finish(self, data: bytes) -> None:
        """Sends `data` and ends a streamed response in order, unless it has ended."""

    @abstractmethod
    async def cut(self, data: bytes) -> None:
        """Sends `data`, then ends the connection so that the client can tell that the reply is not whole."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of the connection. Called once, at the end."""


class AsgiClient(Client):
    """By plain ASGI alone, on any server. A `downstream`, if there is one, only reports what the server refused."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, downstream: Downstream | None = None) -> None:
        self._headers: Headers = scope["headers"]
        self._receive = receive
        self._send = send
        self._downstream = downstream
        self._watcher: asyncio.Task[None] | None = None
        self._pause: Callable[[], None] | None = None
        self._resume: Callable[[], None] | None = None
        self._queue: list[bytes] = []
        self._queued = 0
        self._paused = False
        self._wake = asyncio.Event()
        self._last = False  # nothing more will be written
        self._whole = False

    async def start(self, status: int, headers: Headers) -> None:
        # Another server alone knows what becomes of its connection, and HTTP/2 forbids the field.
        await super().start(status, [field for field in headers if field[0] != b"connection"])

    def watch(self, on_gone: Callable[[], None]) -> None:
        async def watching() -> None:
            while (await self._receive())["type"] != "http.disconnect":
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

    async def respond(self, response: Response, extra: Headers) -> None:
        self.started = True
        length = (b"content-length", str(len(response.body)).encode())
        await self._send(
            {
                "type": "http.response.start",
                "status": response.status,
                "headers": [*response.headers, *extra, length],
            }
        )
        self._whole = True
        await self._send({"type": "http.response.body", "body": response.body})

    def write(self, data: bytes) -> None:
        self._queue.append(data)
        self._queued += len(data)
        self._wake.set()
        if self._queued > _HIGH and not self._paused and self._pause is not None:
            self._paused = True
            self._pause()

    async def carry(self, until: asyncio.Future[None]) -> None:
        until.add_done_callback(lambda _: self._wake.set())
        while not (until.done() or self.gone):
            await self._wake.wait()
            self._wake.clear()
            await self._flush()

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

    async def cut(self, data: bytes) -> None:
        """ASGI has no call for it: the response is left incomplete, and the server then closes the connection."""
        await self._flush()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()


class DirectClient(Client):
    """By the `downstream` of the gateway's own server."""

    _downstream: Downstream

    def __init__(self, scope: Scope, receive: Receive, send: Send, downstream: Downstream) -> None:
        self._headers: Headers = scope["headers"]
        self._receive = receive
        self._send = send
        self._downstream = downstream
        self.direct = downstream
        self.write = downstream.write  # one call fewer for every chunk
        self.end = downstream.end

    async def body(self, limit: int, hold: Hold) -> bytes:
        body = self._downstream.body()
        if body is None:
            return await super().body(limit, hold)
        if len(body) > limit:
            raise body_too_large(limit)
        if len(body) > SMALL:
            await hold(len(body))
        return body

    def watch(self, on_gone: Callable[[], None]) -> None:
        def left() -> None:
            self.gone = True
            on_gone()

        if self._downstream.gone:
            left()
        else:
            self._downstream.on_gone = left

    def flow(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._downstream.on_pause, self._downstream.on_resume = pause, resume
        if self._downstream.paused:
            pause()

    async def carry(self, until: asyncio.Future[None]) -> None:
        await until

    async def respond(self, response: Response, extra: Headers) -> None:
        # Raises before it has sent anything.
        self._downstream.respond(response.status, response.headers + extra, response.body)
        self.started = True

    async def finish(self, data: bytes) -> None:
        if data:
            self._downstream.write(data)
        self._downstream.end()
        await self._downstream.taken()

    async def cut(self, data: bytes) -> None:
        if data:
            self._downstream.write(data)
        self._downstream.cut()

    def close(self) -> None:
        self._downstream.release()


def connect(scope: Scope, receive: Receive, send: Send, extension: str, known_as: str) -> Client:
    """The fastest client that the server allows: a direct one if `extension` is in the scope and the client speaks
    HTTP/1.1. known_as is the request's id."""
    downstream: Downstream | None = scope.get("extensions", {}).get(extension)
    if downstream is not None:
        downstream.id = known_as
    if downstream is None or scope.get("http_version") != "1.1":
        return AsgiClient(scope, receive, send, downstream)
    return DirectClient(scope, receive, send, downstream)


def body_too_large(limit: int) -> GatewayError:
    return GatewayError(Kind.TOO_LARGE, f"the request body is larger than {limit} bytes")
