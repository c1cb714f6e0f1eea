"""One client connection: how long it may take over what, how it ends, and what a handler may do with it."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.core.http import Headers
from gateway.server.edge import Edge, HttpError, Refused

EXTENSION = "dragoman"
_STATUS = {status: line.rstrip() for status, line in STATUS_LINE.items()}
# Up to this size copying a body behind its head is cheaper than handing over two buffers.
_JOINED = 65536
# In one turn the loop may read two megabytes of one worker: only what is sent can tell that its client reads nothing.
_MOST_PENDING = 65536
# How long what a client still sends is thrown away after the last answer. Closing a socket with unread data resets the
# connection, and may take that answer with it.
_LINGER_S = 10.0
_RESET = struct.pack("ii", 1, 0)


class Downstream:
    """One request's client connection, for the handler that runs on it.

    on_gone is called once when the client leaves; on_pause and on_resume when it reads slower than we write. id is what
    the handler calls the request, if it says so; refused what the server has answered it with by itself: status, code.
    """

    __slots__ = ("cycle", "gone", "id", "on_gone", "on_pause", "on_resume", "pending", "protocol", "refused")

    def __init__(self, protocol: Connection, cycle: RequestResponseCycle) -> None:
        self.protocol = protocol
        self.cycle = cycle
        self.gone = False
        self.pending = b""
        self.id = ""
        self.refused: tuple[int, str] | None = None
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
        """One body block of a chunked response whose head was sent by plain ASGI. `data` must not be empty.

        It goes out when the loop's turn ends, after those of all other connections were made: neither our code nor the
        kernel's is then driven out of the processor's caches by the other for each block.
        """
        if self.gone:
            return
        if self.pending:
            self.pending += b"%x\r\n%b\r\n" % (len(data), data)
            if len(self.pending) > _MOST_PENDING:
                self.flush()
            return
        self.pending = b"%x\r\n%b\r\n" % (len(data), data)
        outbox = self.protocol.outbox
        if not outbox:
            self.protocol.loop.call_soon(_send_all, outbox)
        outbox.append(self)

    def flush(self) -> None:
        """Sends what was written at once."""
        pending, self.pending = self.pending, b""
        if pending and not self.gone:
            self.protocol.transport.write(pending)

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole response in one write; plain ASGI makes two. Raises ValueError when a header would end its line."""
        if self.gone:
            return
        cycle = self.cycle
        lines = [_STATUS[status], *map(b": ".join, headers), b"content-length: %d" % len(body)]
        if not cycle.keep_alive:
            lines.append(b"connection: close")
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        if head.count(b"\n") != len(lines) + 1 or head.count(b"\r") != len(lines) + 1:
            raise ValueError("a response header holds a line ending")
        if cycle.scope["method"] == "HEAD":
            body = b""
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
        self.flush()
        self.cycle.disconnected = True  # or uvicorn would log an incomplete response as an application error
        self.gone = True
        self.protocol.cut()


def _send_all(outbox: list[Downstream]) -> None:
    due = outbox[:]
    outbox.clear()
    for downstream in due:
        downstream.flush()


class Connection(HttpToolsProtocol):
    """uvicorn's protocol, less the reading of requests, with deadlines and orderly endings.

    edge, refused, outbox and parting are the class's, see `protocol_class`: a changed edge holds for connections that
    are open, too; in the outbox are those who have written in this turn of the server's loop; parting says that every
    answer is its connection's last.
    """

    edge: Edge
    outbox: list[Downstream]
    refused: Refused
    parting = False
    downstream: Downstream | None = None
    _dry = 0  # bytes since the parser last made something of them
    _in_head = True
    _whole = False
    _body_since = 0.0  # 0: nothing of a body is late
    _body_size = 0
    _deadline = 0.0
    _idle = False
    _deaf = False  # nothing that still arrives matters
    _ended = False
    _timer: asyncio.TimerHandle | None = None
    _timer_at = 0.0
    _stall: asyncio.TimerHandle | None = None

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

    # -- back-pressure ----------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(self.edge.write_idle_s, self._drop)
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

    def _drop(self) -> None:
        """Ends a connection whose client reads nothing, by a reset: the kernel would else keep what it has to send, for
        minutes and megabytes each."""
        raw = self.transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def cut(self) -> None:
        self.transport.close()
        if self._stall is None:
            self._stall = self.loop.call_later(self.edge.write_idle_s, self._drop)

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

    def _watch_body(self, size: int) -> None:
        """`size` bytes more of a body have come, and it is not whole: no pause may be too long, nor all of it too
        slow, or a byte a minute would hold a connection for ever."""
        edge, now = self.edge, self.loop.time()
        if not self._body_since:
            self._body_since, self._body_size = now, 0
        self._body_size += size
        left = edge.body_timeout_s
        if edge.min_body_rate_bytes:
            left = min(left, self._body_since - now + left + self._body_size / edge.min_body_rate_bytes)
        self._watch(max(left, 0.0))

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
            self._body_since = 0.0  # it is we who are not reading
            self._watch_body(0)
        else:
            self._refuse(HttpError(408, "request_timeout", "the request took too long to arrive"))

    def _refuse(self, refusal: HttpError) -> None:
        """Answers the request that is arriving, and ends the connection. Those before it still get their answers."""
        self._deaf = True
        cycle, handled = self.cycle, self.downstream
        known = not self._in_head  # to the application
        if known and cycle.response_started:
            self.cut()
            return
        request_id = self.refused(
            refusal,
            self.client[0] if self.client is not None else "",
            self.headers if self.headers and not self._whole else [],
            handled.id if handled is not None and known and not self.pipeline else "",
        )
        if known:
            if self.pipeline:
                self.pipeline.popleft()
                cycle = self.pipeline[0][0] if self.pipeline else cast(Downstream, handled).cycle
            else:
                cycle.response_started = cycle.response_complete = True
                # If its handler has not begun, this is how it learns what the request is called.
                cycle.scope["headers"].insert(0, (b"x-request-id", request_id.encode()))  # type: ignore[attr-defined]
                if handled is not None:
                    handled.refused = refusal.status, refusal.code
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
            b"%bcontent-type: application/json\r\nx-request-id: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (STATUS_LINE[refusal.status], request_id.encode(), len(body), body)
        )
        self._whole = False
        self.end()
