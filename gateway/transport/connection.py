"""One connection to a worker: its parser, its timer, and the checks of what the worker sends.

The worker is not trusted: its head is bounded, its framing must be unambiguous (RFC 9112, section 6.3), and a
compressed body, which the gateway never asks for, is refused unread.
"""

from __future__ import annotations

import asyncio
import select
from math import inf
from operator import itemgetter
from time import perf_counter
from typing import TYPE_CHECKING, Final, cast

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpResponseParser

from gateway.core.errors import GatewayError, Kind
from gateway.core.failures import Cause, needs_tls
from gateway.core.http import Headers
from gateway.core.ports import Deadlines
from gateway.core.upload import Body
from gateway.light_task import LoopRound, OneTimeEvent
from gateway.transport.feed import Feed
from gateway.transport.incoming import READ_BYTES, Incoming

if TYPE_CHECKING:
    from gateway.transport.pooled import Origin

_NAME = itemgetter(0)

HEAD_BYTES: Final = 32 * 1024
"""The most bytes before the response head is complete, including interim (1xx) heads; also the most framing bytes
(chunk extensions, trailers) between two pieces of body."""

HEAD_FIELDS: Final = 100
"""The most header fields in a response."""

JOINED_BYTES: Final = 64 * 1024
"""A request body of up to this size is joined to its head, because copying is cheaper than two writes."""

LEAST_READ_BYTES: Final = 1024
"""The smallest read. Reads shrink if a worker's bytes take long to pass on, such as thousands of tiny frames."""

SLOW_S: Final = 0.001
"""The longest time to pass on what was read in one turn of the event loop, because all other requests wait for it."""

LATE_BYTES: Final = 16 * 1024
"""A read of up to this size is copied and taken in when all sockets were read. A larger one, and the one after it,
which may end a large event, are taken in at once, or when it is their turn (`large.LargeReads`)."""

WRITE_BYTES: Final = 256 * 1024
"""A request body is written to the socket in slices of this size, as fast as the worker takes them."""


class WorkerConnection(asyncio.BufferedProtocol):
    """One socket to one origin: idle, or carrying one exchange. The parser calls the `on_` methods.

    There is one timer. It is moved only if a deadline is earlier than it. The deadline is `limit` seconds after
    `since`; a timer that fires before the deadline is set again.
    """

    # Slots of one object: a block of a stream reads or sets them 25 times, a plain request 88 times (counted with
    # `__getattribute__` in `bench.inside`). Through a second object each access takes 2 ns more, in a warm loop.
    __slots__ = (
        "_blocks", "_dirty", "_feed", "_framed", "_late", "_loop_round", "_most", "_outgoing", "_pausing", "_reusable",
        "_small", "_spare", "_timer", "_timer_at", "_unsent", "_used", "_waits", "_whole", "began_at", "dropped",
        "exchange", "fd", "head_at", "idle_limit", "limit", "loop", "origin", "parser", "reading_paused", "since",
        "transport", "write_paused",
    )  # fmt: skip

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.loop = asyncio.get_running_loop()
        self._loop_round = LoopRound.for_loop(self.loop)
        self.parser = HttpResponseParser(self)
        self.transport: asyncio.Transport | None = None
        self.fd = -1
        self.dropped = False  # closed by us, or about to report its loss: must not be used again
        # The deadline.
        self.since = 0.0
        self.limit = inf
        self.idle_limit = inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        # When the newest request was sent, and the newest head of a response came.
        self.began_at = self.head_at = 0.0
        # The request.
        self.write_paused = False  # the worker does not take more of the request at the moment
        self._outgoing = b""  # a request, to be sent at the end of the round
        self._unsent: memoryview | None = None
        self._feed: Feed | None = None  # of an upload
        # Reads. Their size follows the time that they take, so that no worker holds up the loop for 1 ms (SLOW_S).
        self.reading_paused = False
        self._pausing = False  # no reads before the next turn of the loop
        self._most = READ_BYTES // 4  # the size of the next read, in bytes
        self._small = min(LATE_BYTES, self._most - 1)  # the largest next read that is a small one; 0 after a large one
        self._late = b""  # read, and to be taken in by the round of this turn of the loop
        self._waits = False  # `_late` is a large read that waits for its turn
        self._blocks: list[bytes] = []  # pieces of the body in the current read
        # The response.
        self.exchange: Incoming | None = None
        self._spare = 0  # bytes since the last piece of body, or since the request while there is no head
        self._framed = False  # the response has a length or is chunked
        self._whole: Incoming | None = None  # complete, to be released once the current read is parsed
        self._used = False  # has carried an exchange before this one
        self._reusable = False
        self._dirty = False  # bytes came after the complete response

    def begin(self, head: bytes, body: bytes | Body, bodiless: bool, deadlines: Deadlines) -> Incoming:
        """Sends a request. The exchange's waiter is set when it has a status or an error."""
        exchange = Incoming(self, bodiless)
        exchange.waiter = OneTimeEvent()
        self.exchange = exchange
        self.began_at = self.since = self.loop.time()
        self.limit = deadlines.first_byte
        self.idle_limit = deadlines.idle
        self._spare = 0
        transport = self.transport
        if transport is None or self.dropped or transport.is_closing():
            self._cut(clean=False)
            return exchange
        self._arm()
        if isinstance(body, Body):
            transport.write(head)
            self._feed = Feed(self, body)
            self._feed.go_on()
        elif len(body) <= JOINED_BYTES:
            self._outgoing = head + body
            if self._loop_round.in_round:
                self._loop_round.send(self)
            else:
                self.flush()
        else:
            transport.write(head)
            self._unsent = memoryview(body)
            self._pump()
        return exchange

    def flush(self) -> None:
        """Sends the request."""
        outgoing, self._outgoing = self._outgoing, b""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(outgoing)

    def feeds(self, feed: Feed) -> bool:
        """Whether the body of the present request is `feed`."""
        return self._feed is feed

    def send_more(self, data: bytes) -> None:
        """Sends a piece of the request's body."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def fed(self, feed: Feed) -> None:
        """The body of the request is written."""
        if self._feed is feed:
            self._feed = None

    def fit(self) -> bool:
        """True if an idle connection may carry another request.

        The event loop reports an EOF or stray bytes only on its next turn, so this asks the kernel. Bytes that were
        read are taken in only in this turn's round. Otherwise unrequested bytes (such as a 408 on idle) would be taken
        for the answer to the next request.
        """
        if (
            self.transport is None
            or self.transport.is_closing()
            or self._late
            or self.loop.time() - self.since >= self.limit
        ):
            return False
        probe = select.poll()  # to keep one costs a connection 0.4 KB, and saves 0.1 us
        probe.register(self.fd, select.POLLIN)
        return not probe.poll(0)

    def fail(self, error: GatewayError | None) -> None:
        """Ends the exchange with `error` and closes the socket. None: the end of the connection completes the body."""
        exchange, self.exchange = self.exchange, None
        self.drop()
        if exchange is not None:
            exchange.end(error)

    def drop(self) -> None:
        """Closes the socket at once, without unsent bytes or a TLS close, and forgets the exchange. Idempotent."""
        self.exchange = self._feed = None
        self._unsent = None
        if not self.dropped:
            self.dropped = True
            # Not in connection_lost: uvloop does not call that if a connect is cancelled just before it completes.
            self.origin.connections.discard(self)
            self.origin.idle.pop(self, None)
            del self.parser  # it holds our bound methods: a reference cycle would wait for the garbage collector
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self.transport is not None:
                self.transport.abort()

    def pause_reading(self) -> None:
        if not self.reading_paused and self.transport is not None and not self.transport.is_closing():
            self.reading_paused = True
            if not self._pausing:
                self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.reading_paused:
            self.reading_paused = False
            self.since = self.loop.time()  # the worker could not send while reading was paused: its silence starts now
            if not self._pausing and self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()

    def _pause_a_turn(self, seconds: float) -> None:
        """Stops reading until the next turn of the event loop. Otherwise the loop would go on reading while the worker
        fills the buffer: megabytes, while all others wait. `seconds` is the time for the last read; it decides the size
        of the next one."""
        if seconds > SLOW_S:
            self._most = max(self._most // 2, LEAST_READ_BYTES)
        elif seconds < SLOW_S / 4:
            self._most = min(self._most * 2, READ_BYTES)
        if not self.reading_paused and self.transport is not None and not self.transport.is_closing():
            self._pausing = True
            self.transport.pause_reading()
            self.loop.call_soon(self._turn_over)

    def _turn_over(self) -> None:
        self._pausing = False
        if not self.reading_paused and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self.dropped:  # its request was cancelled during the connect
            self.transport.abort()
            return
        self.origin.connections.add(self)
        self.fd = transport.get_extra_info("socket").fileno()

    def connection_lost(self, exc: Exception | None) -> None:
        self.take_in()
        if self.exchange is not None:
            self._cut(clean=False)
        self.drop()

    def eof_received(self) -> None:
        self.take_in()
        if self.exchange is not None:
            self._cut(clean=True)
        self.drop()

    def get_buffer(self, sizehint: int) -> memoryview:
        # One buffer serves all connections: the loop fills it and calls buffer_updated in the same turn.
        return self.origin.buffer[: self._most]

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes <= self._small:
            if not self._late:
                self._loop_round.arrived(self)
            self._late += self.origin.buffer[:nbytes]
        else:
            self._read_large(self.origin.buffer[:nbytes])

    def _read_large(self, data: memoryview) -> None:
        nbytes = len(data)
        full = nbytes == self._most
        self._small = 0 if full or nbytes > LATE_BYTES else min(LATE_BYTES, self._most - 1)
        if not self._waits:
            self.take_in()
            if self.dropped or self.origin.large_reads.allowed:
                self._read(data, True, full)
                return
            self._wait()
        self._late += data

    def _wait(self) -> None:
        """Stops reading until it is this connection's turn."""
        self._waits = True
        if self.exchange is not None and self.exchange.status:
            self.since = self.loop.time()  # the worker is not silent
        if not self._pausing and not self.reading_paused and self.transport is not None:
            self.transport.pause_reading()
        self._pausing = True
        self.origin.large_reads.wait(self)

    def take_in(self) -> None:
        """Reads what came in this turn of the event loop, or waited for it."""
        late, self._late = self._late, b""
        if self._waits:
            self._waits = False
            self._turn_over()
            if not self.dropped:
                self._read(late, True, len(late) == self._most)
        elif late and not self.dropped:
            self._read(late, False, False)

    def _read(self, data: bytes | memoryview, large: bool, full: bool) -> None:
        """full: the read was as large as it could be."""
        nbytes = len(data)
        exchange = self.exchange
        if exchange is None:
            self.drop()  # idle: these bytes were not requested
            return
        answered = exchange.status
        first = not (answered or self._spare or large or exchange.bodiless)
        if first and self.origin.known.learnt and (known := self.origin.known.read(bytes(data))) is not None:
            self._take_known(exchange, *known)
            return
        began = perf_counter() if large else 0.0
        try:
            if answered:
                self.since = self.loop.time()
            elif self._spare + nbytes > HEAD_BYTES:
                room = HEAD_BYTES - self._spare
                self.parser.feed_data(data[:room])
                if not exchange.status:
                    self.fail(GatewayError(Kind.UPSTREAM, "the worker's response head is too large"))
                    return
                data = data[room:]
            self._spare += nbytes
            self.parser.feed_data(data)
        except HttpParserCallbackError as error:
            self._fail_internally(exchange, error.__context__ or error)
            return
        except (HttpParserError, HttpParserUpgrade):
            if self._whole is None:
                part = "body" if exchange.status else "head"
                self._deliver(exchange)
                cause = Cause.NEEDS_TLS if part == "head" and needs_tls(bytes(data[:2])) else Cause.MALFORMED
                self.fail(GatewayError(Kind.UPSTREAM, f"the worker's response {part} is not valid HTTP", cause=cause))
                return
            self._dirty = True
        if not self._deliver(exchange):
            return
        if began:
            seconds = perf_counter() - began
            self.origin.large_reads.spend(seconds)
            if full:
                self._pause_a_turn(seconds)
        if self._whole is not None:
            if first and exchange.status == 200 and self._reusable and not self._dirty:
                self.origin.known.learn(bytes(data), exchange.headers)
            self._release(self._whole)
        elif self._spare > HEAD_BYTES and exchange.status:
            self.fail(GatewayError(Kind.UPSTREAM, "the worker's response body is all framing and no content"))

    def _take_known(self, exchange: Incoming, headers: Headers, body: bytes) -> None:
        """Takes a whole reply whose head is known: what the calls of the parser come to."""
        self.head_at = self.loop.time()
        self.exchange, self._reusable = None, True
        exchange.status, exchange.headers = 200, headers
        if body:
            exchange.store(body)
        self._release(exchange)

    def _deliver(self, exchange: Incoming) -> bool:
        """Hands over the body bytes of the current read as one block, however many chunks they came in. True if the
        reader took it without an error."""
        blocks, self._blocks = self._blocks, []
        if blocks:
            try:
                exchange.arrive(blocks[0] if len(blocks) == 1 else b"".join(blocks))
            except Exception as error:
                self._fail_internally(exchange, error)
                return False
        return True

    def _fail_internally(self, exchange: Incoming, error: BaseException) -> None:
        """Ends the exchange after a sink raised: our bug, not the worker's. The receiver of the end reports it."""
        failed = GatewayError(Kind.INTERNAL, "the worker's answer could not be passed on")
        failed.__cause__ = error
        self._whole = None
        self.drop()
        exchange.end(failed)

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._feed is not None:
            self._feed.go_on()
        self._pump()

    # Called by the parser, from within buffer_updated. None of these methods raises.

    def on_message_begin(self) -> None:
        if self._whole is not None:
            self._dirty = True

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self.exchange
        if exchange is not None and not exchange.status:  # else trailers, or the exchange is over
            exchange.headers.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        exchange = self.exchange
        if exchange is None or exchange.status:
            return
        status = self.parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            exchange.headers = []  # interim (100, 102, 103): the final head is still to come
            return
        names = list(map(_NAME, exchange.headers))
        if problem := fault_of_head(status, exchange.headers, names):
            self.fail(GatewayError(Kind.UPSTREAM, problem))
            return
        self._framed = b"content-length" in names or b"transfer-encoding" in names
        self._spare = 0
        self.head_at = self.since = self.loop.time()
        self.limit = self.idle_limit
        self._arm()
        exchange.status = status
        exchange.wake()
        if exchange.bodiless:
            # The parser does not know that the request was a HEAD and waits for a body: never reuse this connection.
            self.exchange, self._whole, self._reusable = None, exchange, False

    def on_body(self, data: bytes) -> None:
        self._spare = 0
        if self.exchange is not None:
            self._blocks.append(data)

    def on_message_complete(self) -> None:
        exchange = self.exchange
        if exchange is not None and exchange.status:
            self.exchange, self._whole = None, exchange
            self._reusable = self.parser.should_keep_alive()

    def _release(self, exchange: Incoming) -> None:
        """Returns the connection of a complete response to the pool if its state is known, then ends the exchange."""
        self._whole = None
        exchange.source = None
        transport = self.transport
        if (
            self._reusable
            and not self._dirty
            and not self.dropped
            and transport is not None
            and not transport.is_closing()
            # The request must be fully written: else the worker would take the rest of it for the next request.
            and self._unsent is None
            and self._feed is None
            and not transport.get_write_buffer_size()
            and self.origin.keep(self)
        ):
            self.resume_reading()
            self._used = True
            self.since = self.loop.time()
            self.limit = self.origin.idle_expiry
            self._arm()
        else:
            self.drop()
        exchange.end(None)

    def _cut(self, clean: bool) -> None:
        """The connection ended during an exchange. `clean`: by an orderly EOF."""
        exchange = self.exchange
        assert exchange is not None
        if exchange.status:
            if clean and not self._framed:
                self.fail(None)  # the reader checks completeness by the wire's terminal mark
            else:
                early = "the worker closed the connection before its answer was complete"
                self.fail(GatewayError(Kind.TRUNCATED, early, broke=True))
        elif self._spare:
            early = "the worker closed the connection in the middle of a response head"
            self.fail(GatewayError(Kind.UPSTREAM, early, broke=True))
        else:
            exchange.stale = self._used
            self.fail(GatewayError(Kind.UPSTREAM, "the worker closed the connection before answering", broke=True))

    def _pump(self) -> None:
        transport = self.transport
        while (unsent := self._unsent) is not None and not self.write_paused:
            if transport is None or transport.is_closing():
                return
            self._unsent = unsent[WRITE_BYTES:] if len(unsent) > WRITE_BYTES else None
            transport.write(unsent[:WRITE_BYTES])

    def _arm(self) -> None:
        due = self.since + self.limit
        if due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            # Event loops have an upper bound for delays. An hour is below all of them.
            self._timer = self.loop.call_later(min(max(due - self.loop.time(), 0.0), 3600.0), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_at = inf
        now = self.loop.time()
        if self.reading_paused:
            self.since = now
        if self.since + self.limit - now > 0.001:  # uvloop rounds to milliseconds
            self._arm()
        elif self.exchange is None:
            self.drop()
        elif self.exchange.status:
            self.fail(GatewayError(Kind.TIMEOUT, "the worker fell silent in the middle of its answer", retryable=False))
        else:
            # Not retryable: another worker would take as long for the same answer.
            self.fail(GatewayError(Kind.TIMEOUT, "the worker did not begin to answer in time", retryable=False))


def fault_of_head(status: int, headers: Headers, names: list[bytes]) -> str | None:
    """The fault of a response head beyond its syntax, or None. names: those of `headers`."""
    if not 200 <= status < 600:
        return "the worker switched protocols" if status == 101 else "the worker's response status is not valid"
    if len(headers) > HEAD_FIELDS:
        return "the worker's response head is too large"
    # Anything but one plain "chunked" is compression, or ambiguous: two parsers may read it differently.
    if b"transfer-encoding" in names and _values(headers, b"transfer-encoding") != [b"chunked"]:
        return "the worker's transfer encoding is not supported"
    if b"content-encoding" in names and not {b"", b"identity"}.issuperset(_values(headers, b"content-encoding")):
        return "the worker compressed its answer although asked not to"
    return None


def _values(headers: Headers, wanted: bytes) -> list[bytes]:
    return [value.strip().lower() for name, value in headers if name == wanted]
