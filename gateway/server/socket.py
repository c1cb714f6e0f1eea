"""A web socket (RFC 6455) on a connection that began with HTTP: frames by `websockets`' protocol without I/O.

The bounds are those of HTTP: bytes of a message, its pace, fair turns, slow readers. Nothing is compressed, so no frame
grows. This module is imported when the first web socket opens.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from gateway.core.byte_budget import SMALL, Held
from gateway.core.http import Headers
from gateway.core.ports import SocketSession
from gateway.server.connection import BETWEEN, BODY, HEAD, LARGE_READ_BYTES, ClientConnection
from gateway.server.refusal import HttpError

# Frames cost some 10 us each, and the smallest has 6 bytes.
_PIECE_BYTES, _PIECES_A_TURN = 1024, 4
# In the middle of a large frame.
_LARGE_PIECE_BYTES = 4096
# As for bodies. Behind a message that nobody has taken so much is read, unparsed, before reading stops.
_AHEAD_BYTES = 65536
_PING_S = 20.0
_OFFERED = (b"host", b"upgrade", b"connection", b"sec-websocket-key", b"sec-websocket-version")
_LOG = logging.getLogger(__name__)


def handshake(headers: Headers, max_bytes: int) -> ServerProtocol | None:
    """The protocol that answers a GET with these headers, its answer not sent yet; None if they open no web socket.
    max_bytes: of a message."""
    protocol = ServerProtocol(max_size=max_bytes, logger=_LOG)
    lines = [b"%b: %b\r\n" % field for field in headers if field[0] in _OFFERED]
    protocol.receive_data(b"GET / HTTP/1.1\r\n%b\r\n" % b"".join(lines))
    (request,) = protocol.events_received() or (None,)
    if not isinstance(request, Request):
        return None
    response = protocol.accept(request)
    if response.status_code != 101:
        return None
    del response.headers["Date"]
    protocol.send_response(response)
    return protocol


class SocketConnection(ClientConnection):
    """Implements `core.ports.Socket`. It takes over the transport of `http`, and the slot of that among the
    connections. room: for messages of more than SMALL bytes, until `receive` is called again."""

    __slots__ = (
        "_messages", "_parts", "_ping", "_protocol", "_received", "_room", "_taken", "_taker", "listen", "slots",
        "turns",
    )  # fmt: skip

    def __init__(self, http: ClientConnection, protocol: ServerProtocol, room: Held) -> None:
        for name in ClientConnection.__slots__:
            if name != "__weakref__":
                setattr(self, name, getattr(http, name))
        self.listen, self.turns, self.slots = http.listen, http.turns, http.slots
        self._timer = None
        self._deadline = self._body_since = 0.0
        self._part = BETWEEN
        self._pausing = self._discarding = False
        self._unparsed = bytearray()
        self._protocol = protocol
        self._room = room
        self._taken = 0  # bytes of the message that was received last
        self._parts = bytearray()  # of a message in several frames
        self._messages: deque[bytes] = deque()  # whole, and not taken: those of one piece
        self._taker: asyncio.Future[None] | None = None
        self._received = True  # since the last ping
        self._ping: asyncio.TimerHandle | None = None

    def begin(self, session: SocketSession, rest: bytes) -> None:
        """Answers the handshake. rest: what has come behind it."""
        self.connections.add(self)
        self.transport.set_protocol(self)
        self._flush()
        self._ping = self.loop.call_later(_PING_S, self._send_ping)
        task = self.loop.create_task(session(self))
        self.tasks.add(task)
        task.add_done_callback(self._session_over)
        self.data_received(rest)

    def _session_over(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        bug = None if task.cancelled() else task.exception()
        if bug is not None:
            _LOG.error("a web socket's session raised an exception", exc_info=bug)
        self.close(CloseCode.INTERNAL_ERROR, "")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._ping is not None:
            self._ping.cancel()
        self._let_go()

    def shutdown(self) -> None:
        self.close(CloseCode.SERVICE_RESTART, "the server is shutting down")

    # -- core.ports.Socket ------------------------------------------------------------------------------------------

    @property
    def gone(self) -> bool:
        return self._discarding

    async def receive(self) -> bytes | None:
        if self._taken:
            self._taken = 0
            self._reserve()
        while not self._messages:
            if self._discarding:
                return None
            self._taker = self.loop.create_future()
            await self._taker
        message = self._messages.popleft()
        self._taken = len(message)
        if not self._messages and not self._discarding:
            self.steer_reading()
        return message

    async def send(self, messages: Iterable[bytes]) -> None:
        if self.write_paused:
            await self.writable()
        if not self._discarding:
            for message in messages:
                self._protocol.send_text(message)
            self._flush()

    def close(self, code: int, reason: str) -> None:
        if not self._discarding:
            self._protocol.fail(code, reason)
            self._finish()

    # -- what arrives -----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._received = True
        if len(data) >= LARGE_READ_BYTES:
            self._pause_a_turn()
        if self._discarding:
            self._ignore(len(data))
        else:
            self._unparsed += data
            if not self._queued:
                self._parse()
        self.steer_reading()

    def take_turn(self) -> None:
        self._queued = False
        if not self._discarding and not self.transport.is_closing():
            self._parse()
            self.steer_reading()

    def _parse(self) -> None:
        """Parses this turn's share, or until there is a whole message."""
        at, protocol = 0, self._protocol
        for _ in range(_PIECES_A_TURN):
            if at >= len(self._unparsed) or self._waits:
                break
            size = _PIECE_BYTES if len(protocol.reader.buffer) < _PIECE_BYTES else _LARGE_PIECE_BYTES
            protocol.receive_data(bytes(self._unparsed[at : at + size]))
            at += size
            for frame in protocol.events_received():
                if isinstance(frame, Frame):
                    self._take(frame)
            if protocol.eof_sent:  # the client closes, or broke the protocol
                self._finish()
                return
            self._flush()
        size = min(at, len(self._unparsed))
        del self._unparsed[:size]
        self._watch_message(size)
        if self._messages:
            self._wake()

    @property
    def _waits(self) -> bool:
        """Nothing is parsed: a message is not taken yet, or the client reads more slowly than we write."""
        return bool(self._messages) or self.write_paused

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CONT:
            self._parts += frame.data
            if frame.fin:
                self._messages.append(bytes(self._parts))
                self._parts = bytearray()
        elif frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            if frame.fin:
                self._messages.append(bytes(frame.data))
            else:
                self._parts += frame.data

    def _watch_message(self, size: int) -> None:
        """Sees to the message that is not whole: its pace, and its memory. size: of what has just come."""
        protocol = self._protocol
        if self._partial or protocol.current_size is not None:
            self._part = BODY
            self._watch_body(size)
        else:
            self._part = BETWEEN
            self._deadline = self._body_since = 0.0
        if not self._reserve():
            self.close(CloseCode.TRY_AGAIN_LATER, "too many large requests are under way")

    @property
    def _partial(self) -> int:
        """Bytes of the message that is not whole."""
        return len(self._protocol.reader.buffer) + len(self._parts)

    def _reserve(self) -> bool:
        """Takes room for what is held, if that is much. False if there is none."""
        held = 0 if self._discarding else self._partial + sum(map(len, self._messages)) + self._taken
        return self._room.resize(held if held > SMALL else 0)

    def steer_reading(self) -> None:
        if self._unparsed and not self._queued and not self._waits and not self._discarding:
            self._queued = True
            self.turns.add(self, self.loop)
        reading = self._discarding or (len(self._unparsed) <= _AHEAD_BYTES and not self._queued)
        if (reading and not self._pausing) is not self._reading and not self.transport.is_closing():
            self._reading = not self._reading
            if self._reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    # -- what is sent -----------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        data = b"".join(self._protocol.data_to_send())
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def _send_ping(self) -> None:
        """A client of which nothing was heard since the last ping is gone, unless it could not be heard."""
        if not self._received and self._reading and not self.write_paused:
            self._drop()
        elif not self._discarding:
            self._received = False
            self._protocol.send_ping(b"")
            self._flush()
            self._ping = self.loop.call_later(_PING_S, self._send_ping)

    # -- the end ----------------------------------------------------------------------------------------------------

    def _refuse(self, refusal: HttpError) -> None:
        self.close(CloseCode.POLICY_VIOLATION, refusal.message)

    def _finish(self) -> None:
        """The last frame is written: closes in a way that lets a client that is still sending read it."""
        self._flush()
        self._part = HEAD
        self.end()
        self._let_go()

    def _let_go(self) -> None:
        self._discarding = True
        self._messages.clear()
        self._parts = bytearray()
        self._reserve()
        self._wake()

    def _wake(self) -> None:
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)
