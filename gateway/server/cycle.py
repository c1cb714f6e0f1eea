"""One request on its connection: plain ASGI's `receive` and `send`, and the direct seam `core.ports.Client`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from gateway.core.byte_budget import Held
from gateway.core.http import Headers, header_value
from gateway.core.ports import CountedConnection
from gateway.server.head import response_head

if TYPE_CHECKING:
    from gateway.server.connection import ClientConnection

EXTENSION = "dragoman"
"""The seam's name in the ASGI scope's `extensions`."""

_LOG = logging.getLogger(__name__)
# Up to this size copying a body behind its head is cheaper than handing over two buffers.
_JOINED_BYTES = 65536
# In one turn of the loop several blocks of a worker may be written. More than this is sent before the turn ends, since
# only the socket can tell that its client reads nothing.
_MOST_PENDING_BYTES = 65536
_LAST_CHUNK = b"0\r\n\r\n"
_FAILED = b"Internal Server Error"
_NAME = itemgetter(0)


class _Sent:
    """Awaited, it returns at once, without a call of Python."""

    __await__ = ().__iter__


SENT = cast("Awaitable[None]", _Sent())


class RequestCycle:
    """One request, from its head to the end of its response. Implements `core.ports.Client`, see there.

    keep_alive   the connection stays open after the response
    awaits_100   the client waits for a 100 Continue before it sends its body
    more_body    the request's body is not whole yet
    started      the response head is out
    complete     the response is whole
    pending      written, and to be sent at the end of the loop's turn. If it is empty, the native relay sets it itself
    body_bytes   bytes of the request's body that nobody has read yet

    The constructor's `body` is the whole body of a request of which nothing is to come.
    """

    direct = True
    __slots__ = (
        "_arrival", "_bodiless", "_body", "_chunked", "_ended", "_left", "_news", "_until_close", "awaits_100",
        "client", "complete", "disk", "gone", "id", "keep_alive", "more_body", "on_gone", "on_pause", "on_resume",
        "pending", "refused", "room", "scope", "started",
    )  # fmt: skip

    def __init__(
        self,
        client: ClientConnection,
        scope: dict[str, Any],
        keep_alive: bool,
        awaits_100: bool,
        body: bytes | None = None,
    ) -> None:
        self.client = client
        self.scope = scope
        self.keep_alive = keep_alive
        self.awaits_100 = awaits_100
        self.more_body = body is None
        self.started = False
        self.complete = False
        self.gone = False
        self.id = ""
        self.refused: tuple[int, str] | None = None
        self.room: Held | None = None
        self.disk: Held | None = None
        self.on_gone: Callable[[], None] | None = None
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None
        self._body: bytes | bytearray = bytearray() if body is None else body
        self._news = body is not None  # for `receive`: body or its end has arrived, or there is no more to wait for
        self._arrival: asyncio.Event | None = None  # made only when somebody waits: mostly all has arrived already
        self.pending = b""
        self._chunked = False
        self._ended = False  # complete as soon as the client has caught up
        self._bodiless = False
        self._until_close = False  # the response's body lasts until the connection ends
        self._left = 0  # bytes of the response's body that its content-length still promises

    async def run(self, app: Any) -> None:
        """Calls the ASGI application. Whatever it leaves undone ends in a 500, or in a cut connection."""
        self.scope["extensions"] = {EXTENSION: self}
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:
            _LOG.exception("the application raised an exception")
        finally:
            self.close()
            # Not complete: the application failed, was cancelled, or cut the response on purpose. A client
            # notices that a framed body is cut; a body that lasts until the connection ends needs a reset.
            if not self.complete and not self.gone:
                if self.started:
                    self.flush()
                    if self._until_close:
                        self.client.transport.abort()
                    else:
                        self.cut_off()
                else:
                    self.keep_alive = False
                    self.respond(500, [(b"content-type", b"text/plain; charset=utf-8")], _FAILED)

    # -- the request ------------------------------------------------------------------------------------------------

    @property
    def body_bytes(self) -> int:
        return len(self._body)

    def body_arrived(self, block: bytes) -> None:
        self._body += block
        self.wake()

    def body_ended(self) -> None:
        self.more_body = False
        self.wake()

    def wake(self) -> None:
        self._news = True
        if self._arrival is not None:
            self._arrival.set()

    async def receive(self) -> dict[str, Any]:
        """ASGI's: what has arrived of the body, at least one byte unless it is at its end; or the disconnection."""
        if self.awaits_100 and not self.gone:
            self.awaits_100 = False
            self.client.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self._news or self.gone or self.complete):
            if self._arrival is None:
                self._arrival = asyncio.Event()
            self._arrival.clear()
            await self._arrival.wait()
        self._news = False
        if self.gone or self.complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        self.client.steer_reading()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def body(self) -> bytes | None:
        if self.more_body or self.awaits_100:
            return None
        body, self._body = bytes(self._body), bytearray()
        self._news = False
        return body

    # -- the response, by plain ASGI ---------------------------------------------------------------------------------

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """ASGI's. Waits while the client reads too slowly. Raises RuntimeError for a message out of order, and for a
        body that is not as long as its content-length; ValueError when a header holds a line ending."""
        if self.client.write_paused and not self.gone:
            await self.client.writable()
        if self.gone:
            return
        kind = message["type"]
        if kind == "http.response.start" and not self.started:
            self.client.transport.write(self._begun(message["status"], message.get("headers", ())))
        elif kind == "http.response.body" and self.started and not self.complete:
            self._send_body(message.get("body", b""), message.get("more_body", False))
        else:
            raise RuntimeError(f"the ASGI message {kind} is out of order")

    def _begun(self, status: int, headers: Headers) -> bytes:
        self._bodiless = self.scope["method"] == "HEAD" or status in (204, 304)
        length = next((value for name, value in headers if name == b"content-length"), None)
        if length is not None:
            self._left = 0 if self._bodiless else int(length)
        elif self.scope["http_version"] == "1.0":
            self._until_close = True  # it knows no chunks
            self.keep_alive = False
        else:
            self._chunked = not self._bodiless
        more = (b"transfer-encoding: chunked",) if self._chunked else ()
        self.started = True
        return self._head(status, headers, *more)

    def _send_body(self, body: bytes, more_body: bool) -> None:
        self.flush()
        transport = self.client.transport
        if self._chunked:
            block = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more_body:
                block += _LAST_CHUNK
            if block:
                transport.write(block)
        elif not self._bodiless and body:
            if not self._until_close:
                if len(body) > self._left:
                    raise RuntimeError("the response is longer than its content-length")
                self._left -= len(body)
            transport.write(body)
        if not more_body:
            if self._left:
                raise RuntimeError("the response is shorter than its content-length")
            self._complete()

    def _head(self, status: int, headers: Headers, *more: bytes) -> bytes:
        if self.keep_alive and not self.client.reusable:
            self.keep_alive = False
        if b"connection" in map(_NAME, headers):
            wanted = header_value(headers, b"connection") or b""
            # The application may end the connection, or say that it is kept; only here is it known whether it is.
            headers = [field for field in headers if field[0] != b"connection"]
            if wanted.strip().lower() == b"close":
                self.keep_alive = False
            elif self.keep_alive:
                more = (*more, b"connection: keep-alive")
        if not self.keep_alive:
            more = (*more, b"connection: close")
        self.awaits_100 = False
        return response_head(status, headers, *more)

    def _complete(self) -> None:
        self.complete = True
        self.wake()
        self.client.answered(self)

    @property
    def connection(self) -> CountedConnection:
        return self.client

    # -- the response, by the seam ------------------------------------------------------------------------------------

    def watch(self, on_gone: Callable[[], None]) -> None:
        if self.gone:
            on_gone()
        else:
            self.on_gone = on_gone

    def flow(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self.on_pause, self.on_resume = pause, resume
        if self.client.write_paused:
            pause()

    def respond(self, status: int, headers: Headers, body: bytes) -> Awaitable[None]:
        """In one write; plain ASGI makes two. At the end of the round, if there is one and the connection stays: before
        a connection is closed all must be written."""
        if self.gone:
            return SENT
        head = self._head(status, headers, b"content-length: %d" % len(body))
        self.started = True
        if self.scope["method"] == "HEAD":
            self.client.transport.write(head)
        elif len(body) > _JOINED_BYTES:
            self.client.transport.writelines((head, body))
        elif self.keep_alive and self.client.loop_round.in_round:
            self.pending = head + body
            self.client.loop_round.send(self)
        else:
            self.client.transport.write(head + body)
        self._complete()
        return SENT

    async def start(self, status: int, headers: Headers) -> None:
        """The head is written at the end of the turn, with the first block if that comes in the same turn."""
        if self.client.write_paused and not self.gone:
            await self.client.writable()
        if not self.gone:
            self.pending = self._begun(status, headers)
            self.client.rest()
            self.client.loop_round.send(self)
        self.started = True  # also to a client that is gone

    def carry(self, until: Awaitable[None]) -> Awaitable[None]:
        return until

    async def send_block(self, data: bytes, more: bool) -> None:
        await self.send({"type": "http.response.body", "body": data, "more_body": more})

    def write(self, data: bytes) -> None:
        """At the end of the turn, so that all connections' blocks are made first and sent then: neither our code nor
        the kernel's is driven out of the processor's caches by the other for each block."""
        if self.gone:
            return
        if self.pending:
            self.pending += b"%x\r\n%b\r\n" % (len(data), data)
            if len(self.pending) > _MOST_PENDING_BYTES:
                self.flush()
            return
        self.pending = b"%x\r\n%b\r\n" % (len(data), data)
        self.client.loop_round.send(self)

    def end(self) -> None:
        """The response ends here and now: a client may leave as soon as it has read the last block, before this request
        runs again."""
        if self.gone or self.complete or self._ended or self.client.transport.is_closing():
            return
        small = len(self.pending) <= _MOST_PENDING_BYTES and not self.client.write_paused
        if small and self.keep_alive and self.client.loop_round.in_round:
            if not self.pending:
                self.client.loop_round.send(self)
            self.pending += _LAST_CHUNK
        else:  # before a connection is closed all must be written, and only a socket can report a slow client
            self.pending += _LAST_CHUNK
            self.flush()
            if self.client.write_paused:
                self._ended = True
                return
        self._complete()

    async def finish(self, data: bytes) -> None:
        if data:
            self.write(data)
        self.end()
        if self._ended:  # a client that reads slowly has not caught up
            await self.client.writable()

    def caught_up(self) -> None:
        """Called by the connection: the client reads again."""
        if self._ended:
            self._complete()
        elif self.on_resume is not None:
            self.on_resume()

    def flush(self) -> None:
        pending, self.pending = self.pending, b""
        if pending and not self.gone and not self.client.transport.is_closing():
            self.client.transport.write(pending)

    async def cut(self, data: bytes) -> None:
        if data:
            self.write(data)
        self.cut_off()

    def cut_off(self) -> None:
        """Ends the connection so that the client can tell that the reply is not whole."""
        self.flush()
        self.gone = True
        self.client.cut()

    def close(self) -> None:
        """Parts the request from its scope: garbage in a reference cycle would wait for the collector, and each request
        would be made in cold memory (half of all its CPU time, measured)."""
        self.on_gone = self.on_pause = self.on_resume = None
        self.scope.pop("extensions", None)
