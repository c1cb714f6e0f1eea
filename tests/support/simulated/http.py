"""One connection: httptools reads requests, one is answered at a time, and a disconnect is noticed at once.

It is written on asyncio's protocols, so that faults can reach the socket and an answer costs a few microseconds.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from typing import Any, Protocol

import httptools
from msgspec import Struct

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error"}
REASONS |= {422: "Unprocessable Content", 429: "Too Many Requests", 501: "Not Implemented", 503: "Service Unavailable"}
MAX_BODY = 256 * 1024 * 1024
MAX_PIPELINED = 64


class Request(Struct):
    """A request, completely received. target is the path with its query; header names are in lower case."""

    method: str
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    keep: bool

    @property
    def path(self) -> str:
        return self.target.split(b"?", 1)[0].decode("latin-1")

    def header(self, name: bytes) -> bytes | None:
        """The first header of this lower-case name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


class Answering(Protocol):
    """The handler of the current request."""

    def lost(self) -> None:
        """The client has left."""

    def resume(self) -> None:
        """The client reads again."""


class Handler(Protocol):
    """The receiver of requests."""

    loop: asyncio.AbstractEventLoop
    keep_alive: float

    def request(self, connection: Connection, request: Request) -> None: ...
    def opened(self, connection: Connection) -> None: ...
    def closed(self, connection: Connection) -> None: ...


class _Date:
    """The Date header, made once a second."""

    second = 0
    lines = b""

    def head(self) -> bytes:
        now = int(time.time())
        if now != self.second:
            self.second = now
            date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(now))
            self.lines = f"date: {date}\r\nserver: uvicorn\r\n".encode()
        return self.lines


_date = _Date()


def head(status: int, headers: bytes) -> bytes:
    """A response head as uvicorn writes it; `headers` are whole lines."""
    return b"HTTP/1.1 %d %b\r\n%b%b\r\n" % (status, REASONS.get(status, "Unknown").encode(), _date.head(), headers)


class Connection(asyncio.Protocol):
    """One client connection."""

    __slots__ = (
        "answering",
        "arriving",
        "body",
        "buffer",
        "closing",
        "drip",
        "ended",
        "handler",
        "headers",
        "idle_since",
        "keep",
        "loop",
        "number",
        "parser",
        "paused",
        "pending",
        "size",
        "target",
        "timer",
        "transport",
    )

    def __init__(self, handler: Handler, number: int) -> None:
        self.handler = handler
        self.loop = handler.loop
        self.number = number
        self.parser: Any = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.answering: Answering | None = None
        self.pending: deque[Request] = deque()
        self.paused = self.keep = self.closing = self.ended = self.arriving = False
        self.timer: asyncio.TimerHandle | None = None
        self.idle_since = 0.0
        self.drip = 0
        self.buffer = bytearray()

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.handler.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.pending.clear()
        self.handler.closed(self)
        if (answering := self.answering) is not None:
            self.answering = None
            answering.lost()
        self.parser = None

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.answering is not None:
            self.answering.resume()

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            if self.answering is None:
                body = b"Invalid HTTP request received."
                lines = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n"
                self.transport.write(head(400, lines % len(body)) + body)
            self.close()

    # httptools' callbacks

    def on_message_begin(self) -> None:
        self.arriving = True  # a worker that reads slowly closes no connection for it
        self.headers: list[tuple[bytes, bytes]] = []
        self.body: list[bytes] = []
        self.size = 0
        self.target = b""

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers.append((name, value))
        if name == b"expect":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self.size += len(body)
        if self.size > MAX_BODY:
            self.close()
            return
        self.body.append(body)

    def on_message_complete(self) -> None:
        self.arriving = False
        body = self.body[0] if len(self.body) == 1 else b"".join(self.body)
        parser = self.parser
        request = Request(
            parser.get_method().decode(), self.target, tuple(self.headers), body, parser.should_keep_alive()
        )
        if self.answering is not None:
            self.pending.append(request)
            if len(self.pending) > MAX_PIPELINED:
                self.close()
        elif not self.closing:
            self._begin(request)

    # answering

    def _begin(self, request: Request) -> None:
        self.keep = request.keep
        self.ended = False
        self.handler.request(self, request)

    def send(self, data: bytes) -> None:
        """Write bytes of the current answer."""
        if self.drip:
            if not self.buffer:
                self.loop.call_soon(self._drop)
            self.buffer += data
        else:
            self.transport.write(data)

    def _drop(self) -> None:
        if self.closing:
            return
        self.transport.write(bytes(self.buffer[: self.drip]))
        del self.buffer[: self.drip]
        if self.buffer:
            self.loop.call_soon(self._drop)
        elif self.ended:
            self._end()

    def end(self, keep: bool = True) -> None:
        """The answer is whole: take the next request, wait for one, or close."""
        self.keep = self.keep and keep
        if self.buffer:
            self.ended = True
        else:
            self._end()

    def _end(self) -> None:
        self.answering = None
        self.drip = 0
        if not self.keep or not self.handler.keep_alive:
            self.close()
        elif self.pending:
            self._begin(self.pending.popleft())
        else:
            self._idle()

    def _idle(self) -> None:
        # One timer a connection, moved on lazily: an answer costs a clock reading, not a timer.
        self.idle_since = self.loop.time()
        if self.timer is None and self.handler.keep_alive:
            self.timer = self.loop.call_later(self.handler.keep_alive, self._expire)

    def _expire(self) -> None:
        self.timer = None
        if self.closing:
            return
        left = self.idle_since + self.handler.keep_alive - self.loop.time()
        if self.answering is not None or self.arriving:
            left = self.handler.keep_alive
        if left <= 0:
            self.close()
        else:
            self.timer = self.loop.call_later(left, self._expire)

    def answer(self, status: int, body: bytes, kind: bytes = b"application/json", lines: bytes = b"") -> None:
        """A whole answer."""
        length = b"content-length: %d\r\ncontent-type: %b\r\n%b" % (len(body), kind, lines)
        self.send(head(status, length) + body)
        self.end()

    # ends of a connection

    def close(self) -> None:
        """Close in an orderly way: what was written is sent, then FIN."""
        self.closing = True
        self.transport.close()

    def reset(self) -> None:
        """Close with a reset (RST) and drop what was not sent yet."""
        self.closing = True
        raw = self.transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
