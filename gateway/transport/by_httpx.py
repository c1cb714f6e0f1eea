"""Workers behind a proxy, and workers that speak HTTP/2, by httpx: the same `Transport` as `Pooled`, but slower.

Requests, checks, deadlines, bounds, pooling and the words of failures are those of `Pooled`; only what carries the
bytes is another. Each connection is an httpx transport of its own and carries one request at a time, with HTTP/2 too:
httpcore, which httpx builds on, resets no stream of HTTP/2 and takes no room back from one that is closed early. A
client that leaves must end its request at the worker at once, and a slow reader must hold up no other request; both are
certain with the end of a connection.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable
from math import inf
from typing import Any

import httpcore
import httpx

from gateway.core.errors import GatewayError, Kind, causes, out_of_descriptors
from gateway.core.failures import Cause
from gateway.core.figures import ConnectionCounts
from gateway.core.http import Headers, header_value
from gateway.core.ports import Deadlines
from gateway.core.upload import Body
from gateway.light_task import OneTimeEvent
from gateway.transport.connection import HEAD_BYTES, fault_of_head
from gateway.transport.feed import SLICE_BYTES, lost
from gateway.transport.incoming import Incoming
from gateway.transport.pooled import Origin, Pooled

_SENDS = frozenset({"http11.send_request_headers.started", "http2.send_request_headers.started"})
_CONNECTED = "connection.connect_tcp.complete"
_TURN_S = 0.001
"""Seconds for which blocks are taken before other requests have their turn: httpcore returns all chunks of a read of
64 KiB without a wait."""
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_PARSERS = frozenset({"h11", "h2", "hpack", "hyperframe"})


class ByHttpx(Pooled):
    """The `Transport` to workers behind a proxy, or with HTTP/2.

    context    the trust of https workers; of no other transport, because httpx writes its protocols (ALPN) into it
    proxy_for  called once for each worker's address; returns the URL of its proxy, with user and password if it asks
               for them, or None
    http2      https workers are offered HTTP/2; http workers must speak it ("with prior knowledge", RFC 9113, 3.3)
    idle_expiry, max_idle, counts  as of `Pooled`
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        proxy_for: Callable[[str], str | None] = lambda address: None,
        http2: bool = False,
        *,
        idle_expiry: float = 4.0,
        max_idle: int = 256,
        counts: ConnectionCounts | None = None,
    ) -> None:
        super().__init__(idle_expiry=idle_expiry, max_idle=max_idle, ssl_for=lambda address: context, counts=counts)
        self._context = context
        self._proxy_for = proxy_for
        self._http2 = http2
        self.closing: set[asyncio.Task[None]] = set()

    def _origin(self, address: str) -> Origin:
        proxy = self._proxy_for(address)
        secure = address.startswith("https:")
        return _Origin(self, address, self._context, proxy, http1=secure or not self._http2, http2=self._http2)

    async def close(self) -> None:
        await super().close()
        if self.closing:
            await asyncio.wait(self.closing)


class _Origin(Origin):
    """One worker address. Its connections connect when their first request is sent."""

    __slots__ = ("_carrier", "base", "closing", "proxied")

    def __init__(
        self, pooled: ByHttpx, address: str, context: ssl.SSLContext, proxy: str | None, http1: bool, http2: bool
    ) -> None:
        super().__init__(pooled, address)
        self.base = httpx.URL(address)
        self.closing = pooled.closing
        self.proxied = proxy is not None
        # Without the environment: `gateway.config` alone reads it. One connection each; see above.
        limits = httpx.Limits(max_connections=1, keepalive_expiry=inf)

        def carrier() -> httpx.AsyncHTTPTransport:
            return httpx.AsyncHTTPTransport(
                verify=context, trust_env=False, http1=http1, http2=http2, limits=limits, proxy=proxy
            )

        self._carrier = carrier

    async def connect(self, seconds: float) -> Line:
        line = Line(self, self._carrier())
        self.connections.add(line)
        return line


class Line:
    """One connection: idle, or carrying one exchange, in a task. Implements `pooled.Connection`."""

    def __init__(self, origin: _Origin, carrier: httpx.AsyncHTTPTransport) -> None:
        self.exchange: Incoming | None = None
        self.reading_paused = False
        self.began_at = self.head_at = self.since = 0.0
        self._origin = origin
        self._carrier = carrier
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._clock: asyncio.Timeout | None = None
        self._deadlines = Deadlines()
        self._raw: httpcore.AsyncNetworkStream | None = None  # the socket below TLS and HTTP, as httpcore knows it
        self._used = False  # has carried an exchange before this one
        self._reached = False  # what it connects to, the proxy or the worker, is being written to, or was
        self._sent = False  # the request is being written, or was

    def begin(self, head: bytes, body: bytes | Body, bodiless: bool, deadlines: Deadlines) -> Incoming:
        """As `pooled.Connection`. Until the request is written, the connection's deadline holds, over name, connection,
        proxy and TLS together."""
        if self._expiry is not None:
            self._expiry.cancel()
        exchange = Incoming(self, bodiless)
        exchange.waiter = OneTimeEvent()
        self.exchange, self._deadlines, self._reached, self._sent = exchange, deadlines, False, False
        self.began_at = self.since = self._loop.time()
        self._task = self._loop.create_task(self._carry(exchange, self._request(head, body)))
        return exchange

    def fit(self) -> bool:
        return True  # httpcore looks whether the worker has closed it, and opens another one

    def fail(self, error: GatewayError | None) -> None:
        exchange, self.exchange = self.exchange, None
        self.drop()
        if exchange is not None:
            exchange.end(error)

    def drop(self) -> None:
        """Closes the connection, which also ends the request at the worker. Idempotent."""
        self.exchange = None
        if self in self._origin.connections:
            self._origin.connections.discard(self)
            self._origin.idle.pop(self, None)
            if self._expiry is not None:
                self._expiry.cancel()
            if self._task is not None and not self._task.done():
                self._task.cancel()
            closing = self._loop.create_task(self._close(self._task))
            self._origin.closing.add(closing)
            closing.add_done_callback(self._origin.closing.discard)

    def pause_reading(self) -> None:
        self.reading_paused = True
        self._flowing.clear()
        self._reschedule(None)

    def resume_reading(self) -> None:
        if self.reading_paused:
            self.reading_paused = False
            self.since = self._loop.time()  # the worker could not send: its silence starts now
            self._flowing.set()
            self._reschedule(self.since + self._deadlines.idle)

    def _reschedule(self, when: float | None) -> None:
        if self._clock is not None and not self._clock.expired():  # one that has run out cannot be put off
            self._clock.reschedule(when)

    def _request(self, head: bytes, body: bytes | Body) -> httpx.Request:
        """`head`, which `Origin.head` has made and checked, and the body as httpx takes them."""
        first, *lines = head[:-4].split(b"\r\n")
        method, target, _ = first.split(b" ")
        headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
        url = self._origin.base.copy_with(raw_path=target)
        stream = _Upload(body) if isinstance(body, Body) else httpx.ByteStream(body)
        return httpx.Request(method.decode(), url, headers=headers, stream=stream, extensions={"trace": self._trace})

    async def _trace(self, event: str, info: dict[str, Any]) -> None:
        """Called by httpcore with each step. https://www.encode.io/httpcore/extensions/#trace"""
        if event == _CONNECTED:
            self._raw, self._used = info["return_value"], False
        elif event in _SENDS:
            self._reached = True
            if info["request"].method == b"CONNECT":
                return
            self._sent = True
            self.began_at = self.since = self._loop.time()
            self._reschedule(self.since + self._deadlines.first_byte)

    async def _carry(self, exchange: Incoming, request: httpx.Request) -> None:
        try:
            async with asyncio.timeout(self._deadlines.connect) as self._clock:
                response = await self._carrier.handle_async_request(request)
            self._clock = None
            self._take_head(exchange, response)
            await self._take_body(exchange, response)
        except Exception as error:  # httpx passes on those of its parsers and of anyio as they are
            self._clock = None
            if self.exchange is exchange:
                exchange.stale = not exchange.status and self._used and self._sent and _broke(error)
                self.fail(self._failure(exchange, error))
        else:
            self._release(exchange)

    def _take_head(self, exchange: Incoming, response: httpx.Response) -> None:
        """Raises GatewayError for a head that must not be."""
        headers: Headers = [(name.lower(), value) for name, value in response.headers.raw]
        names = [name for name, _ in headers]
        # Two parsers may end such a body, or such a line, at different places. h11 takes both.
        two_ends = b"transfer-encoding" in names and b"content-length" in names
        if two_ends or any(_CONTROL.search(value) for _, value in headers):
            wrong = "the worker's response head is not valid HTTP"
            raise GatewayError(Kind.UPSTREAM, wrong, cause=Cause.MALFORMED)
        problem = fault_of_head(response.status_code, headers, names)
        if sum(len(name) + len(value) for name, value in headers) > HEAD_BYTES:
            problem = "the worker's response head is too large"
        if problem is not None:
            raise GatewayError(Kind.UPSTREAM, problem)
        if self._origin.proxied and self._origin.base.scheme == "http" and _is_of_proxy(response.status_code, headers):
            raise _refused(response.status_code)
        self.head_at = self.since = self._loop.time()
        exchange.headers = headers
        exchange.status = response.status_code
        exchange.wake()

    async def _take_body(self, exchange: Incoming, response: httpx.Response) -> None:
        blocks, block, began = response.aiter_raw(), b"-", self._loop.time()
        while block:
            await self._flowing.wait()
            if self._loop.time() - began > _TURN_S:
                await asyncio.sleep(0)
                began = self._loop.time()
            async with asyncio.timeout_at(self.since + self._deadlines.idle) as self._clock:
                block = await anext(blocks, b"")  # the end; frames without content do not come here
            self._clock = None
            if block:
                self.since = self._loop.time()
                try:
                    exchange.arrive(block)
                except Exception as error:  # our bug, not the worker's
                    raise GatewayError(Kind.INTERNAL, "the worker's answer could not be passed on") from error

    def _failure(self, exchange: Incoming, error: Exception) -> GatewayError:
        """The error that the exchange ends with, in the words of `WorkerConnection` and `Origin`."""
        if isinstance(error, GatewayError):
            return error
        if not self._sent:
            return self._no_connection(error)
        if isinstance(error, TimeoutError):
            late = "fell silent in the middle of its answer" if exchange.status else "did not begin to answer in time"
            return GatewayError(Kind.TIMEOUT, f"the worker {late}", retryable=False)
        if not _broke(error):
            part = "body" if exchange.status else "head"
            wrong = f"the worker's response {part} is not valid HTTP"
            return GatewayError(Kind.UPSTREAM, wrong, cause=Cause.MALFORMED)
        if exchange.status:
            early = "the worker closed the connection before its answer was complete"
            return GatewayError(Kind.TRUNCATED, early, broke=True)
        return GatewayError(Kind.UPSTREAM, "the worker closed the connection before answering", broke=True)

    def _no_connection(self, error: Exception) -> GatewayError:
        root = _root(error)
        if isinstance(error, httpx.ProxyError) and (status := str(error)[:3]).isdigit():
            return _refused(int(status))
        if self._origin.proxied and not self._reached and not out_of_descriptors(root):
            late = isinstance(error, TimeoutError)
            kind, code = (Kind.TIMEOUT, "connect_timeout") if late else (Kind.UPSTREAM, None)
            return GatewayError(kind, "the proxy could not be reached", code=code, cause=Cause.PROXY_UNREACHABLE)
        return self._origin.not_connected(root if isinstance(root, (OSError, UnicodeError)) else ConnectionResetError())

    def _release(self, exchange: Incoming) -> None:
        """Returns the connection of a complete response to the pool, then ends the exchange."""
        if self.exchange is not exchange:
            return
        self.exchange, self._used = None, True
        self.resume_reading()
        if self._origin.keep(self):
            self._expiry = self._loop.call_later(self._origin.idle_expiry, self.drop)
        else:
            self.drop()
        exchange.end(None)

    async def _close(self, carrying: asyncio.Task[None] | None) -> None:
        """Closes the sockets once the exchange's task has let go of them."""
        if carrying is not None and carrying is not asyncio.current_task():
            await asyncio.wait([carrying])
        await self._carrier.aclose()
        if self._raw is not None:
            await self._raw.aclose()  # httpcore forgets one whose TLS handshake was cancelled


class _Upload(httpx.AsyncByteStream):
    """The body of an upload, which is fetched as the worker takes it, a slice at a time."""

    def __init__(self, body: Body) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Raises GatewayError if the file of the upload is gone."""
        for piece in self._body.pieces:
            if isinstance(piece, bytes):
                yield piece
                continue
            start, size = piece
            for at in range(start, start + size, SLICE_BYTES):
                yield await self._fetched(at, min(SLICE_BYTES, start + size - at))

    async def _fetched(self, start: int, size: int) -> bytes:
        fetched: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def take(data: bytes | None) -> None:
            if not fetched.done():
                fetched.set_result(data)

        self._body.source.fetch(start, size, take)
        if (data := await fetched) is None:
            raise lost()
        return data


def _is_of_proxy(status: int, headers: Headers) -> bool:
    """Whether the answer to an http worker's request is the proxy's own: by its status, which no engine has, by
    `Proxy-Status` (RFC 9209, 2.1.1: `error` stands in answers that the proxy made), or by Squid's own header."""
    if status in (407, 502, 504):
        return True
    marked = b"error=" in (header_value(headers, b"proxy-status") or b"")
    return status >= 400 and (marked or header_value(headers, b"x-squid-error") is not None)


def _refused(status: int) -> GatewayError:
    """The error of a request that the proxy did not pass on."""
    why, cause = "refused to connect to the worker", Cause.PROXY_REFUSED
    if status == 407:
        why, cause = "refused the gateway's user or password", Cause.PROXY_KEY_REFUSED
    elif status >= 500:
        why, cause = "could not connect to the worker", Cause.UNREACHABLE
    return GatewayError(Kind.UPSTREAM, f"the proxy {why}", cause=cause)


def _broke(error: Exception) -> bool:
    """Whether the connection ended, or the stream of HTTP/2 was reset; else time ran out, or what came was wrong. The
    latter is raised from a parser's own error."""
    if isinstance(error, TimeoutError):
        return False
    parsed = any(type(one).__module__.partition(".")[0] in _PARSERS for one in causes(error))
    return not parsed or "peer closed connection" in str(error)


def _root(error: BaseException) -> BaseException:
    """The error behind what httpx, httpcore and anyio made of it."""
    root = error
    for root in causes(error):
        if isinstance(root, BaseExceptionGroup):
            return _root(root.exceptions[-1])
        if isinstance(root, OSError) and type(root) is not OSError:
            break
    return root
