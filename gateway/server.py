"""The HTTP server: uvicorn with httptools, made safe at its edge and given one seam for speed.

uvicorn alone has no header or body timeout, no cap on header size or count, and accepts a missing or doubled Host
(measured on uvicorn 0.54, httptools 0.9). The subclass below adds those. The seam is `Downstream`, put into
`scope["extensions"]["dragoman"]`: a handler may learn at once that its client left, and write to its connection without
a task switch. A handler that ignores it gets plain ASGI.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast
from urllib.parse import unquote

import httptools
import uvicorn
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.core.http import Headers

EXTENSION = "dragoman"
_ASGI: Any = {"version": "3.0", "spec_version": "2.3"}
# Past this much unsent data the transport pauses the writer; small, since each stream may hold as much.
_WRITE_HIGH = 65536
# Past this much of a body that nobody has read yet, no more of it is taken from the socket.
_READ_HIGH = 65536
# Up to this size copying a body behind its head is cheaper than handing over two buffers.
_JOINED = 65536
# Requests that may wait behind a running one while we go on reading: who does not read sees nobody leave.
_PIPELINED = 8
# How long what a client still sends is thrown away after the last answer. Closing a socket with unread data resets the
# connection, and may take that answer with it.
_LINGER_S = 10.0


class Edge(Struct, frozen=True):
    """What a client may send and hold open: seconds and bytes, as in configuration `listen`."""

    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    write_idle_s: float = 60.0
    max_header_bytes: int = 32768
    max_header_count: int = 100
    max_body_bytes: int = 33554432
    max_connections: int = 10000


class Refusal(Exception):
    """A request that never reaches the application. Its answer is in OpenAI's shape, since no dialect is chosen yet."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class Downstream:
    """One request's client connection, for the handler that runs on it.

    on_gone is called once when the client leaves; on_pause and on_resume when it reads slower than we write.
    """

    __slots__ = ("cycle", "gone", "on_gone", "on_pause", "on_resume", "protocol")

    def __init__(self, protocol: EdgeProtocol, cycle: RequestResponseCycle) -> None:
        self.protocol = protocol
        self.cycle = cycle
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None

    @property
    def paused(self) -> bool:
        return self.protocol.flow.write_paused

    def body(self) -> bytes | None:
        """The request body, if all of it has arrived already: nearly always, since it comes with the head."""
        cycle = self.cycle
        if cycle.more_body or cycle.waiting_for_100_continue:
            return None
        body, cycle.body = cycle.body, bytearray()
        return bytes(body)

    def write(self, data: bytes) -> None:
        """One body block of a chunked response whose head was sent by plain ASGI. `data` must not be empty."""
        if not self.gone:
            self.protocol.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole response in one write; plain ASGI makes two. Raises ValueError when a header would end its line."""
        if self.gone:
            return
        cycle = self.cycle
        lines = [STATUS_LINE[status]]
        for name, value in headers:
            lines.append(b"%b: %b\r\n" % (name, value))
        lines.append(b"content-length: %d\r\n" % len(body))
        if cycle.scope["method"] == "HEAD":
            body = b""
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
            raise ValueError("a response header holds a line ending")
        cycle.response_started = cycle.response_complete = True
        if len(body) <= _JOINED:
            self.protocol.transport.write(head + body)
        else:
            self.protocol.transport.writelines((head, body))
        if not cycle.keep_alive:
            self.protocol.end()
        cycle.on_response()

    def release(self) -> None:
        """The request is over. Parts it from its scope: garbage in a cycle would wait for the collector, and each
        request would be made in cold memory (half of all its CPU time, measured)."""
        self.on_gone = self.on_pause = self.on_resume = None
        cast(Any, self.cycle.scope).pop("extensions", None)

    def cut(self) -> None:
        """Ends the connection after what was written, without the last chunk: the client can tell that it was cut."""
        self.cycle.disconnected = True  # or uvicorn would log an incomplete response as an application error
        self.gone = True
        self.protocol.cut()


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


class EdgeProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits. `edge` is set by `protocol_class`."""

    edge = Edge()
    downstream: Downstream | None = None
    _head_size = 0
    _hosts = 0
    _coded = False  # there is a Transfer-Encoding
    _dry = 0  # bytes since the parser last made something of them
    _in_head = True
    _whole = False
    _discarded = 0
    _deadline = 0.0
    _idle = False
    _resumed = False  # the parser is being told again what is known
    _deaf = False  # nothing that still arrives matters
    _ended = False
    _timer: asyncio.TimerHandle | None = None
    _timer_at = 0.0
    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITE_HIGH)
        if len(self.connections) > self.edge.max_connections:
            self._refuse(Refusal(503, "overloaded", "too many connections"))
            return
        self._watch(self.edge.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._timer, self._stall):
            if timer is not None:
                timer.cancel()
        self._leave()

    def _leave(self) -> None:
        """Tells the running request that nobody waits for it any more."""
        downstream, self.downstream = self.downstream, None
        if downstream is not None and not downstream.gone:
            downstream.gone = True
            downstream.cycle.disconnected = True
            downstream.cycle.message_event.set()
            if downstream.on_gone is not None and not downstream.cycle.response_complete:
                downstream.on_gone()

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
            self._refuse(Refusal(431, "headers_too_large", "the request head is too large"))
            return
        self._dry += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, Refusal):
                cause = Refusal(400, "invalid_request", "the request is not valid HTTP/1.1")
            self._refuse(cause)
        except (httptools.HttpParserError, UnicodeDecodeError):
            self._refuse(Refusal(400, "invalid_request", "the request is not valid HTTP/1.1"))
        else:
            if self._whole:
                self._deadline = 0.0
                if self.cycle.response_complete:
                    self._rest()  # what came was a blank line, or the rest of a request that is answered
            elif self._in_head:
                if not self._deadline:
                    self._watch(self.edge.header_timeout_s)
            else:
                self._watch(self.edge.body_timeout_s)

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
        self._head_size = self._hosts = 0
        self._coded = False
        self._in_head = True
        self._whole = False

    def on_url(self, url: bytes) -> None:
        if self._resumed:
            return
        self.url += url
        if len(self.url) > self.edge.max_header_bytes:
            raise Refusal(431, "headers_too_large", "the request line is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        if not self._in_head:
            return  # a trailer: nothing here reads them, and a header they must not become
        if name == b"host":
            self._hosts += 1
        elif name == b"transfer-encoding":
            if value.strip().lower() != b"chunked":
                raise Refusal(400, "invalid_request", "the only Transfer-Encoding spoken here is chunked")
            self._coded = True
        self._head_size += len(name) + len(value) + 4
        self.headers.append((name, value))
        if len(self.headers) > self.edge.max_header_count:
            raise Refusal(431, "headers_too_large", "the request has too many header fields")

    def on_headers_complete(self) -> None:
        if self._resumed:
            return
        version = self.parser.get_http_version()
        if self._coded and version != "1.1":
            raise Refusal(400, "invalid_request", "Transfer-Encoding needs HTTP/1.1")
        if version not in ("1.1", "1.0"):
            raise Refusal(400, "invalid_request", "only HTTP/1.1 and HTTP/1.0 are spoken here")
        if len(self.url) + self._head_size > self.edge.max_header_bytes:
            raise Refusal(431, "headers_too_large", "the request head is too large")
        if self._hosts != 1 and (self._hosts or version == "1.1"):
            raise Refusal(400, "invalid_request", "a request must have exactly one Host header")
        method = self.parser.get_method()
        if not self.url.startswith(b"/") or method == b"CONNECT":
            raise Refusal(400, "invalid_request", "the request target must be a path")
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
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
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

    # -- back-pressure ----------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(self.edge.write_idle_s, self.transport.abort)
        if self.downstream is not None and self.downstream.on_pause is not None:
            self.downstream.on_pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if self.downstream is not None and self.downstream.on_resume is not None:
            self.downstream.on_resume()

    # -- endings ----------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        self.transport.close()
        if self._stall is None:
            self._stall = self.loop.call_later(self.edge.write_idle_s, self.transport.abort)

    def end(self) -> None:
        """Closes after the last answer, in a way that lets a client that is still sending read it."""
        if self._whole or not self.transport.can_write_eof():
            self.cut()
            return
        self._deaf = self._ended = True
        self.transport.write_eof()
        self.flow.resume_reading()
        if self._timer is not None:
            self._timer.cancel()
        self._arm(_LINGER_S)

    def _watch(self, seconds: float) -> None:
        """At most one timer a connection, moved only to come earlier; it looks at the newest deadline when it fires."""
        self._deadline = self.loop.time() + seconds
        if self._timer is None or self._deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._arm(seconds)

    def _arm(self, seconds: float) -> None:
        self._timer_at = self.loop.time() + seconds
        self._timer = self.loop.call_later(seconds, self._overdue)

    def _overdue(self) -> None:
        self._timer = None
        if self._ended:
            self.transport.abort()
            return
        if not self._deadline or self.transport.is_closing():
            return
        left = self._deadline - self.loop.time()
        if left > 0:
            self._arm(left)
        elif self._idle or (self.downstream is None and not self._dry):  # unasked, an answer would only confuse
            self.transport.close()
        elif not self._in_head and self.flow.read_paused:
            self._watch(self.edge.body_timeout_s)  # it is we who are not reading
        else:
            self._refuse(Refusal(408, "request_timeout", "the request took too long to arrive"))

    def _refuse(self, refusal: Refusal) -> None:
        """Answers the request that is arriving, and ends the connection. Those before it still get their answers."""
        self._deaf = True
        cycle = self.cycle
        if not self._in_head:  # the request is known to the application already
            if cycle.response_started:
                self.cut()
                return
            if self.pipeline:
                self.pipeline.popleft()
                cycle = self.pipeline[0][0] if self.pipeline else cast(Downstream, self.downstream).cycle
            else:
                cycle.response_started = cycle.response_complete = True
                self._leave()
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
            self._deadline = 0.0
            return
        body = json.dumps(
            {
                "error": {
                    "message": refusal.message,
                    "type": "invalid_request_error" if refusal.status < 500 else "server_error",
                    "param": None,
                    "code": refusal.code,
                }
            }
        ).encode()
        self.transport.write(
            b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (STATUS_LINE[refusal.status], len(body), body)
        )
        self._whole = False
        self.end()


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


def protocol_class(edge: Edge) -> type[EdgeProtocol]:
    """The protocol for uvicorn's `http=` with these limits."""
    return type("Protocol", (EdgeProtocol,), {"edge": edge})


class Server(uvicorn.Server):
    """uvicorn with our endings: on SIGTERM or SIGINT it goes on serving while `drain` runs, then closes; a second one
    ends it at once. SIGHUP calls `reload`."""

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Callable[[], Awaitable[None]],
        reload: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._reload = reload
        self._jobs: set[asyncio.Task[None]] = set()
        self._ending = False
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # signals reach only the main thread
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, self._start, self._reload)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _end(self) -> None:
        if self._ending:
            self.should_exit = self.force_exit = True
        else:
            self._ending = True
            self._start(self._drain_and_exit)

    async def _drain_and_exit(self) -> None:
        await self._drain()
        self.should_exit = True

    def _start(self, job: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await job()

        task = asyncio.get_running_loop().create_task(run())
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)


def server(
    app: Any,
    edge: Edge,
    keep_alive_s: float,
    drain: Callable[[], Awaitable[None]],
    reload: Callable[[], Awaitable[None]],
) -> Server:
    """A server for `app`; run it with `serve(sockets=[…])` on a uvloop."""
    config = uvicorn.Config(
        app,
        http=protocol_class(edge),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=max(1, round(keep_alive_s)),
        timeout_graceful_shutdown=5,
    )
    return Server(config, drain, reload)
