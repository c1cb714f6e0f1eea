"""Bytes to requests: what is read of a client, under its limits, and the task that answers each request."""

from __future__ import annotations

import asyncio
from itertools import chain
from operator import itemgetter
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.server.connection import EXTENSION, Connection, Downstream
from gateway.server.edge import Edge, HttpError, Refused

_NAME = itemgetter(0)
_ASGI: Any = {"version": "3.0", "spec_version": "2.3"}
# Past this much unsent data the transport pauses the writer; small, since each stream may hold as much.
_WRITE_HIGH = 65536
# Past this much of a body that nobody has read yet, no more of it is taken from the socket.
_READ_HIGH = 65536
# Requests that may wait behind a running one while we go on reading: who does not read sees nobody leave.
_PIPELINED = 8


class _Arrival:
    """What uvicorn uses of an asyncio.Event, made only when somebody waits: nearly always all has arrived already."""

    __slots__ = ("_event", "_set")

    def __init__(self) -> None:
        self._set = False
        self._event: asyncio.Event | None = None

    def set(self) -> None:
        self._set = True
        if self._event is not None:
            self._event.set()

    def clear(self) -> None:
        self._set = False
        if self._event is not None:
            self._event.clear()

    async def wait(self) -> None:
        if not self._set:
            if self._event is None:
                self._event = asyncio.Event()
            await self._event.wait()


class EdgeProtocol(Connection):
    """A connection that reads requests, with limits."""

    _discarded = 0
    _resumed = False  # the parser is being told again what is known

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITE_HIGH)
        if len(self.connections) > self.edge.max_connections:
            self._refuse(HttpError(503, "overloaded", "too many connections"))
            return
        self._watch(self.edge.header_timeout_s)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._discard(len(data))
            return
        if self._idle:
            self._idle = False
            self._deadline = 0.0
        # httptools buffers a header, a trailer and a chunk's extension of any length before it calls back; one read
        # more than the limit is harmless.
        if self._dry > self.edge.max_header_bytes:
            self._refuse(HttpError(431, "headers_too_large", "the request head is too large"))
            return
        self._dry += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, HttpError):
                cause = HttpError(400, "invalid_request", "the request is not valid HTTP/1.1")
            self._refuse(cause)
        except (httptools.HttpParserError, UnicodeDecodeError):
            self._refuse(HttpError(400, "invalid_request", "the request is not valid HTTP/1.1"))
        else:
            if self._whole:
                self._deadline = 0.0
                if self.cycle.response_complete:
                    self._rest()  # what came was a blank line, or the rest of a request that is answered
            elif self._in_head:
                if len(self.headers) > self.edge.max_header_count:
                    self._refuse(HttpError(431, "headers_too_large", "the request has too many header fields"))
                elif not self._deadline:
                    self._watch(self.edge.header_timeout_s)
            else:
                self._watch_body(len(data))

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                self._decline()
                data = data[offer.args[0] :]
            else:
                return

    def _decline(self) -> None:
        """An offer to speak another protocol (WebSocket, HTTP/2) is not taken up: what follows is HTTP/1.1 as before.

        Java's HttpClient makes one with its first request to every server. The parser takes it for the end of all
        HTTP and hands out no body: that is left to another parser, which starts with the same framing.
        """
        framing = self._framing()
        self.parser = httptools.HttpRequestParser(self)
        if framing:
            self._resumed = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % framing)
            self._resumed = False

    def _framing(self) -> bytes:
        return b"".join(
            b"%b: %b\r\n" % field for field in self.headers if field[0] in (b"content-length", b"transfer-encoding")
        )

    # -- parser callbacks -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._resumed:
            return
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        scope: Any = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "root_path": "",
            "headers": self.headers,
            "state": {},
        }
        self.scope = scope
        self._in_head = True
        self._whole = False

    def on_url(self, url: bytes) -> None:
        if self._resumed:
            return
        self.url += url
        if len(self.url) > self.edge.max_header_bytes:
            raise HttpError(431, "headers_too_large", "the request line is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        # Called for each field, so all that can wait is done for all of them at the end of the head.
        if self._in_head:  # else a trailer: nothing here reads them, and a header they must not become
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._resumed:
            return
        version, headers, edge = self.parser.get_http_version(), self.headers, self.edge
        if len(headers) > edge.max_header_count:
            raise HttpError(431, "headers_too_large", "the request has too many header fields")
        if len(self.url) + sum(map(len, chain.from_iterable(headers))) + 4 * len(headers) > edge.max_header_bytes:
            raise HttpError(431, "headers_too_large", "the request head is too large")
        if version not in ("1.1", "1.0"):
            raise HttpError(400, "invalid_request", "only HTTP/1.1 and HTTP/1.0 are spoken here")
        names = list(map(_NAME, headers))
        hosts = names.count(b"host")
        if hosts != 1 and (hosts or version == "1.1"):
            raise HttpError(400, "invalid_request", "a request must have exactly one Host header")
        if b"transfer-encoding" in names:
            if any(name == b"transfer-encoding" and value.strip().lower() != b"chunked" for name, value in headers):
                raise HttpError(400, "invalid_request", "the only Transfer-Encoding spoken here is chunked")
            if version != "1.1":
                raise HttpError(400, "invalid_request", "Transfer-Encoding needs HTTP/1.1")
        if b"expect" in names:
            expected = [value.lower() for name, value in headers if name == b"expect"]
            self.expect_100_continue = b"100-continue" in expected
        method = self.parser.get_method()
        if not self.url.startswith(b"/") or method == b"CONNECT":
            raise HttpError(400, "invalid_request", "the request target must be a path")
        self._begin(method.decode("ascii"), version)
        self._in_head = False
        self._dry = 0
        if 0 < len(self.pipeline) <= _PIPELINED:
            self.flow.resume_reading()

    def _begin(self, method: str, version: str) -> None:
        """As uvicorn's `on_headers_complete`, less what this gateway has no use for (WebSockets, a root path)."""
        raw, _, query = self.url.partition(b"?")
        path = raw.decode("ascii")
        scope = cast(Any, self.scope)
        scope["method"] = method
        scope["http_version"] = version
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = raw
        scope["query_string"] = query
        before = self.cycle
        self.cycle = cycle = RequestResponseCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=cast(Any, _Arrival()),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and not self.parting and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def on_body(self, body: bytes) -> None:
        self._dry = 0
        cycle = self.cycle
        if cycle.response_complete:
            self._discard(len(body))
            return
        cycle.body += body
        if len(cycle.body) > _READ_HIGH:
            self.flow.pause_reading()
        cycle.message_event.set()

    def _discard(self, size: int) -> None:
        """The answer is out, what still comes is of no use: but read on for a while (see _LINGER_S)."""
        self._discarded += size
        if self._discarded > 2 * self.edge.max_body_bytes:
            self.transport.abort()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade() and self._framing():
            return  # its body comes after `_decline`
        self._whole = True
        self._in_head = True
        self._discarded = 0
        self._body_since = 0.0
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.message_event.set()
        if not self.pipeline:
            self.flow.resume_reading()  # a large body may have paused it, and who does not read sees nobody leave

    def on_response_complete(self) -> None:
        """As uvicorn's, but for the keep-alive timer: ours is set once for many requests."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._whole:
            self._rest()

    def _rest(self) -> None:
        """Nothing is under way: the connection may be kept for a while."""
        self._idle = True
        self._watch(self.timeout_keep_alive)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        downstream = Downstream(self, cycle)
        self.downstream = downstream
        cast(Any, cycle.scope)["extensions"] = {EXTENSION: downstream}
        if cycle.scope["http_version"] == "1.0":
            app = _until_closed(app, cycle)
        super()._start_asgi_task(cycle, app)


def _until_closed(app: Any, cycle: RequestResponseCycle) -> Any:
    """`app` for an HTTP/1.0 client, which knows no chunks: a body of unknown length lasts until the connection ends."""

    async def run(scope: Any, receive: Any, send: Any) -> None:
        unknown = False

        async def send_plain(message: Any) -> None:
            nonlocal unknown
            if message["type"] == "http.response.start":
                unknown = all(name != b"content-length" for name, _ in message["headers"])
                if unknown:
                    cycle.chunked_encoding = False
            elif unknown:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        cycle.waiting_for_100_continue = False
        await app(scope, receive, send_plain)
        if unknown and not cycle.response_complete and not cycle.disconnected:
            cycle.disconnected = True  # cut on purpose, see Downstream.cut
            cycle.transport.abort()

    return run


def protocol_class(edge: Edge, refused: Refused) -> type[EdgeProtocol]:
    """The protocol for uvicorn's `http=` with these limits."""
    return type("Protocol", (EdgeProtocol,), {"edge": edge, "refused": staticmethod(refused), "outbox": []})
