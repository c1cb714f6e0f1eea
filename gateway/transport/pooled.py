"""The HTTP/1.1 client for workers: pooled connections over httptools, with no task and no future per block. Workers
behind a proxy, and those that speak HTTP/2, have `by_httpx` in its place.

    Pooled ──< Origin (one worker address) ──< WorkerConnection (one socket, one parser) ── Incoming (one response)

An `Incoming` leaves its `WorkerConnection` as soon as the response is complete. So a slow reader never blocks a healthy
connection, and a late `close()` never affects another response.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import inf
from operator import itemgetter
from typing import Protocol
from urllib.parse import quote, urlsplit

from gateway.core.errors import GatewayError, Kind, out_of_descriptors
from gateway.core.figures import ConnectionCounts, Silence
from gateway.core.http import Request
from gateway.core.ports import Deadlines
from gateway.core.upload import Body
from gateway.transport.causes import not_connected
from gateway.transport.connection import WorkerConnection
from gateway.transport.incoming import READ_BYTES, Incoming, Source
from gateway.transport.known_head import KnownHead
from gateway.transport.large import LargeReads
from gateway.transport.names import Name

_LOG = logging.getLogger(__name__)
_NAME = itemgetter(0)
_LOG_EVERY_S = 10.0
"""Seconds between log lines that no file descriptor is left, for each worker address."""
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_METHOD = re.compile(r"[A-Z]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NOT_QUERY = re.compile(rb"[^\x21-\x7e]")
_ADDRESS = re.compile(r"(?:(?![@?#])[!-~])+")

# Headers for framing and connections, which only this client sets: a caller's value could contradict them.
_OURS = frozenset(
    b"host content-length transfer-encoding accept-encoding connection keep-alive proxy-connection te trailer upgrade "
    b"expect".split()
)


class Connection(Source, Protocol):
    """One connection to a worker, as its `Origin` and `Pooled` use it: `WorkerConnection` and `by_httpx.Line`.

    exchange    the response that is under way, if any
    began_at    when the newest request was sent, and head_at when the newest head came; seconds of the loop's clock
    since       when the worker last sent something
    """

    exchange: Incoming | None
    reading_paused: bool
    began_at: float
    head_at: float
    since: float

    def begin(self, head: bytes, body: bytes | Body, bodiless: bool, deadlines: Deadlines) -> Incoming:
        """Sends a request. The exchange's waiter is set when it has a status or an error."""

    def fit(self) -> bool:
        """True if an idle connection may carry another request."""

    def fail(self, error: GatewayError | None) -> None:
        """Ends the exchange with `error` and closes the connection."""


class Origin:
    """One worker address: how to reach it, and its connections.

    connections  all open connections, idle or busy
    idle         the idle connections, the most recently used last
    """

    __slots__ = (
        "_base", "_constant", "_host", "_log_at", "_name", "_port", "_ssl", "buffer", "connections", "idle",
        "idle_expiry", "known", "large_reads", "max_idle",
    )  # fmt: skip

    def __init__(self, pooled: Pooled, address: str) -> None:
        invalid = GatewayError(Kind.INTERNAL, "a worker's address is not a valid http(s) URL")
        try:
            url = urlsplit(address)
            host, port = url.hostname, url.port
        except ValueError:
            raise invalid from None
        if url.scheme not in ("http", "https") or not host or not _ADDRESS.fullmatch(address):
            raise invalid
        self._host = host
        self._port = port or (443 if url.scheme == "https" else 80)
        self._name = Name(host, self._port)
        self._base = url.path.rstrip("/")
        self._ssl = pooled.ssl_context(address) if url.scheme == "https" else None
        # HTTP recommends Host first. identity: the gateway reads replies, and decompression would allow a zip bomb.
        self._constant = b" HTTP/1.1\r\nhost: " + url.netloc.encode() + b"\r\naccept-encoding: identity"
        self._log_at = 0.0
        self.known = KnownHead()
        self.buffer = pooled.buffer
        self.large_reads = pooled.large_reads
        self.idle_expiry = pooled.idle_expiry
        self.max_idle = pooled.max_idle
        self.connections: set[Connection] = set()
        self.idle: dict[Connection, None] = {}

    def head(self, request: Request) -> bytes:
        """The request head. Raises GatewayError(INTERNAL) if a value could inject a header line."""
        start = _target(request.method, self._base, request.path)
        if request.query:
            if _NOT_QUERY.search(request.query):
                raise GatewayError(Kind.INTERNAL, "a query string for the worker holds a forbidden character")
            start += b"?" + request.query
        headers = request.headers
        if not _all_sent(tuple(map(_NAME, headers))):
            headers = [field for field in headers if _is_sent(field[0])]
        # Joined by C code, which is cheaper than a loop over the lines.
        lines = [start + self._constant, *map(b": ".join, headers)]
        if request.upload is not None:
            lines.append(b"content-length: %d" % request.upload.size)
        elif request.body or request.method not in ("GET", "HEAD"):
            lines.append(b"content-length: %d" % len(request.body))
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        # One check of the whole head instead of each value: every line end must be one that was written here. The first
        # of `lines` are three.
        ends = len(lines) + 3
        if head.count(b"\r") != ends or head.count(b"\n") != ends or 0 in head:
            raise GatewayError(Kind.INTERNAL, "a header for the worker holds a control character")
        return head

    def take(self) -> Connection | None:
        """The most recently used idle connection that is still usable, or None."""
        while self.idle:
            connection, _ = self.idle.popitem()
            if connection.fit():
                return connection
            connection.drop()
        return None

    def keep(self, connection: Connection) -> bool:
        if len(self.idle) >= self.max_idle:
            return False
        self.idle[connection] = None
        return True

    def silence(self, recent: float) -> Silence | None:
        """The silence of the replies that the worker owes; None if it owes none. It owes no body of an error, and
        nothing to a client that reads slowly. A head says nothing: servers send that of a stream before their engine
        has begun. There may be thousands of streams: a piece that came after `recent` is enough to know."""
        body_at, since = 0.0, inf
        for connection in self.connections:
            exchange = connection.exchange
            if exchange is None or connection.reading_paused or exchange.status not in (0, 200):
                continue
            silent = connection.began_at
            if exchange.status and connection.since > connection.head_at:
                silent = connection.since
                if silent > recent:
                    return Silence(silent, silent)
                body_at = max(body_at, silent)
            since = min(since, silent)
        return None if since == inf else Silence(body_at or None, since)

    async def connect(self, seconds: float) -> Connection:
        """A new connection, with the TLS handshake done. Raises GatewayError: UPSTREAM, TIMEOUT after `seconds`, or
        OVERLOADED if this process has no file descriptor left."""
        connection = WorkerConnection(self)
        opening = self._open(connection, seconds)
        try:
            # In a task, which the timeout needs: the request would be one as long as it lasts.
            error = await connection.loop.create_task(opening)
        except BaseException:
            connection.drop()
            raise
        if error is None:
            return connection
        connection.drop()
        if isinstance(error, (OSError, UnicodeError)):
            raise self.not_connected(error) from error
        raise error

    def not_connected(self, error: BaseException) -> GatewayError:
        """The error of a request for which no connection came about, for the reason `error`."""
        if not out_of_descriptors(error):
            return not_connected(error)
        if (now := asyncio.get_running_loop().time()) >= self._log_at:
            self._log_at = now + _LOG_EVERY_S
            _LOG.warning(
                "no file descriptor is left: raise `ulimit -n` (systemd: LimitNOFILE) or lower listen.max_connections"
            )
        return GatewayError(Kind.OVERLOADED, "the gateway has no file descriptor left", retry_after=1)

    async def _open(self, connection: WorkerConnection, seconds: float) -> Exception | None:
        """Returns what went wrong: it never stays unread in the task, even if the request is cancelled meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self._connect(connection, await self._name.addresses(seconds))
        except Exception as error:
            return error
        return None

    async def _connect(self, connection: WorkerConnection, addresses: Sequence[str]) -> None:
        """Connects to the first of `addresses` that takes a connection. Raises the last one's error."""
        host = None if self._ssl is None else self._host
        for number, address in enumerate(addresses, 1):
            try:
                await connection.loop.create_connection(
                    lambda: connection, address, self._port, ssl=self._ssl, server_hostname=host
                )
                return
            except OSError as error:
                if number == len(addresses) or isinstance(error, ssl.SSLError):
                    raise


class Pooled:
    """The `Transport` to workers: HTTP/1.1 with connections pooled per address, the most recently used first.

    idle_expiry  seconds after which an idle connection is closed. Keep it below the workers' own timeout (5 s for
                 uvicorn, and so for vLLM); otherwise requests race with the worker's close
    max_idle     the most idle connections per address; more are closed when they become idle
    ssl_for      called once for each https address; None, or no function, means the system's CAs and full verification
    counts       called for every connection that is opened or used again

    One instance belongs to one event loop. It does not bound the number of connections: slots do that.
    """

    def __init__(
        self,
        *,
        idle_expiry: float = 4.0,
        max_idle: int = 256,
        ssl_for: Callable[[str], ssl.SSLContext | None] | None = None,
        counts: ConnectionCounts | None = None,
    ) -> None:
        self.counts = counts or ConnectionCounts()
        self.idle_expiry = idle_expiry
        self.max_idle = max_idle
        self.origins: dict[str, Origin] = {}
        self._left: set[str] = set()
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.large_reads = LargeReads()
        self._ssl_for = ssl_for
        self._default_ssl: ssl.SSLContext | None = None
        self._closed = False

    @property
    def open(self) -> int:
        """The number of open connections, including idle ones."""
        return sum(len(origin.connections) for origin in self.origins.values())

    @property
    def idle(self) -> int:
        return sum(len(origin.idle) for origin in self.origins.values())

    def silence(self, address: str, recent: float) -> Silence | None:
        """The silence of the replies that the worker at `address` owes; None if it owes none. See `Origin.silence`."""
        origin = self.origins.get(address)
        return None if origin is None else origin.silence(recent)

    def forget(self, address: str) -> None:
        """The worker at `address` has left. Its idle connections close; while others are open its origin stays until
        the next worker leaves."""
        if (origin := self.origins.get(address)) is not None:
            self._left.add(address)
            for idle in tuple(origin.idle):
                idle.drop()
        for gone in [one for one in self._left if not self.origins[one].connections]:
            self._left.discard(gone)
            del self.origins[gone]

    def ssl_context(self, address: str) -> ssl.SSLContext:
        context = self._ssl_for(address) if self._ssl_for is not None else None
        if context is None:
            if self._default_ssl is None:
                self._default_ssl = ssl.create_default_context()  # reads every CA: some 10 ms, so once
            context = self._default_ssl
        return context

    async def send(self, request: Request, address: str, deadlines: Deadlines) -> Incoming:
        """See `Transport.send`. The first-byte deadline starts when the first byte of the request is written.

        Also raises GatewayError: INTERNAL, before anything is sent, for a request that cannot be written safely, and
        DRAINING after `close()`.
        """
        origin = self.origins.get(address)
        if origin is None:
            origin = self.origins[address] = self._origin(address)
        head = origin.head(request)
        self._check_open()
        connection, sent = origin.take(), False
        while True:
            if connection is None:
                try:
                    connection = await origin.connect(deadlines.connect)
                except GatewayError as error:
                    error.broke = sent  # the worker may have closed that connection by dying
                    raise
                self._check_open(connection)
                self.origins.setdefault(address, origin)  # the worker may have left meanwhile
                self.counts.opened += 1
            else:
                self.counts.reused += 1
            exchange = connection.begin(head, request.upload or request.body, request.method == "HEAD", deadlines)
            assert exchange.waiter is not None
            try:
                await exchange.waiter
            except BaseException:
                exchange.close()
                raise
            if exchange.status or exchange.error is None:
                return exchange
            if not exchange.stale:
                raise exchange.error
            # The worker closed an idle connection just as it was used. Send once more, on a new connection.
            connection, sent = None, True

    def _origin(self, address: str) -> Origin:
        return Origin(self, address)

    async def close(self) -> None:
        """Closes every connection. Running exchanges and later sends fail with DRAINING."""
        self._closed = True
        for origin in self.origins.values():
            for connection in tuple(origin.connections):
                connection.fail(GatewayError(Kind.DRAINING, "the gateway is shutting down"))
        await asyncio.sleep(0)  # the loop closes the sockets on its next turn

    def _check_open(self, connection: Connection | None = None) -> None:
        if self._closed:
            if connection is not None:
                connection.drop()
            raise GatewayError(Kind.DRAINING, "the gateway is shutting down")


@lru_cache(maxsize=1024)
def _target(method: str, base: str, path: str) -> bytes:
    """Method and request target, percent-encoded. Raises GatewayError(INTERNAL) if they would break the line."""
    if not _METHOD.fullmatch(method):
        raise GatewayError(Kind.INTERNAL, "a request for the worker has no valid method")
    if not path.startswith("/") or _CONTROL.search(path) or {".", ".."} & set(path.split("/")):
        raise GatewayError(Kind.INTERNAL, "a request for the worker has no valid path")
    try:
        return b"%b %b" % (method.encode(), (base + quote(path, safe="/:@!$&'()*+,;=~")).encode("ascii"))
    except UnicodeEncodeError as error:
        raise GatewayError(Kind.INTERNAL, "a request for the worker has no valid path") from error


@lru_cache(maxsize=512)
def _all_sent(names: tuple[bytes, ...]) -> bool:
    """Whether headers of all these names are sent. Raises as `_is_sent`. The names of requests to workers come from a
    few places, and hardly differ."""
    return all(_is_sent(name) for name in names)


def _is_sent(name: bytes) -> bool:
    """False for a header that only this client sets. Raises GatewayError(INTERNAL) unless the name is lower-case."""
    if not _TOKEN.fullmatch(name):
        raise GatewayError(Kind.INTERNAL, "a header for the worker has no valid name")
    return name not in _OURS
