"""One client connection: how long it may take over what, when it is read, and how it ends."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, cast

from uvicorn import Config
from uvicorn.server import ServerState

from gateway.config import Listen
from gateway.core.byte_budget import UNOWNED
from gateway.core.http import JSON_TYPE, Headers
from gateway.core.ports import OpensSockets
from gateway.light_task import LoopRound
from gateway.server.cycle import RequestCycle
from gateway.server.head import response_head
from gateway.server.refusal import HttpError, RefusalHeaders
from gateway.server.slots import Slots

# Past this much unsent data the transport pauses the writer; small, since each stream may hold as much.
_WRITE_HIGH_BYTES = 65536
# Past this much of a body that the application has not taken, no more is read from the socket.
_BODY_HIGH_BYTES = 65536
# Bytes behind a request under way that are read, unparsed, before reading stops. A disconnect shows up only on reads,
# so they go on behind a running request. One read more than this may be held: at most 256 KB on uvloop.
_AHEAD_BYTES = 65536
# The loop goes on reading the same socket within one turn while reads are as large as its buffer (256,000 bytes). From
# this size on the connection waits for the next turn.
LARGE_READ_BYTES = 131072
# A pause after each large read of what is thrown away, so that a client cannot keep the loop at it: some 25 MB/s.
_IGNORED_PAUSE_S = 0.01
# How long what a client still sends is thrown away after the last answer. Closing a socket with unread data resets the
# connection, and may take that answer with it.
_LINGER_S = 10.0
_RESET = struct.pack("ii", 1, 0)


class Part(Enum):
    """Which part of a message the next byte belongs to. SKIPPED is the rest of a body whose request is answered."""

    BETWEEN = 0
    HEAD = 1
    BODY = 2
    SKIPPED = 3


# Members of an Enum are slow to look up in its class.
BETWEEN, HEAD, BODY, SKIPPED = Part


class Turns:
    """Fair turns: the connections of one server that have unparsed bytes. A client that sends more than is parsed at
    once waits: in each turn of the event loop one connection is served, the one that waited longest. However many
    there are, the loop's turns stay short."""

    def __init__(self) -> None:
        self._waiting: deque[ClientConnection] = deque()

    def add(self, connection: ClientConnection, loop: asyncio.AbstractEventLoop) -> None:
        """Queues `connection`, which must not be queued already."""
        if not self._waiting:
            loop.call_soon(self._serve, loop)
        self._waiting.append(connection)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        connection = self._waiting.popleft()
        if self._waiting:
            loop.call_soon(self._serve, loop)
        connection.take_turn()  # parses a bounded part, and may call `add` again


class ClientConnection(asyncio.Protocol):
    """A connection without its reader of requests: deadlines, back-pressure and endings.

    At most one request is under way. Bytes behind it stay unparsed until it is answered, and until the client has
    taken enough of the answers before.

    listen, refused, opens, turns, slots and draining belong to the class, see `protocol_class`. A changed listen holds
    for open connections, too. turns has those with unparsed bytes. draining says that every answer is the last of its
    connection.

    The constructor's arguments are those with which uvicorn makes the protocol that `Config.http` names.

    keep_alive_s  seconds that the connection may be idle
    running       the request under way, until its response is complete
    write_paused  the client reads more slowly than we write
    owner, on_lost  see `core.ports.CountedConnection`
    """

    # A kilobyte less: the instances' dicts would share no keys, because there are more than 30. In one object: a plain
    # request reads or sets them 33 times, and through a second one each access takes 2 ns more, as in the transport.
    __slots__ = (
        "__weakref__", "_body_chunked", "_body_left", "_body_since", "_body_size", "_deadline", "_discarding", "_ended",
        "_idle", "_ignored", "_part", "_pausing", "_queued", "_reading", "_slot_owner", "_stall", "_timer", "_timer_at",
        "_unparsed", "_writable", "app", "client", "connections", "headers", "keep_alive_s", "loop", "loop_round",
        "on_lost", "owner", "running", "server", "tasks", "transport", "write_paused",
    )  # fmt: skip

    listen: Listen
    turns: Turns
    slots: Slots
    refused: RefusalHeaders
    opens: OpensSockets
    draining = False
    transport: asyncio.Transport

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self.app = getattr(config.loaded_app, "direct", config.loaded_app)
        self.keep_alive_s: float = config.timeout_keep_alive
        self.loop = _loop or asyncio.get_running_loop()
        self.loop_round = LoopRound.for_loop(self.loop)
        self.connections: set[Any] = server_state.connections
        self.tasks: set[Any] = server_state.tasks  # uvicorn counts and cancels them: tasks, light ones too
        self._slot_owner: str | None = None  # who its slot is counted to
        self.owner = ""
        self.on_lost: Callable[[str], None] | None = None
        self.client: tuple[str, int] | None = None
        self.server: tuple[str, int] | None = None
        self.running: RequestCycle | None = None
        self.write_paused = False
        self.headers: Headers = []  # of the request whose head is being read, or was read last
        # The message that arrives.
        self._part = BETWEEN
        self._body_left = 0  # bytes of the arriving body that its content-length still promises
        self._body_chunked = False
        self._body_since = 0.0  # 0: nothing of a body is late
        self._body_size = 0
        # Reads and writes.
        self._unparsed = bytearray()  # read and not parsed
        self._queued = False  # in `turns`
        self._reading = True
        self._pausing = False  # no reads before the next turn of the loop
        self._writable: asyncio.Future[None] | None = None
        # The deadline: one timer, which is moved only to come earlier.
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._stall: asyncio.TimerHandle | None = None
        # The end.
        self._idle = False
        self._discarding = False  # nothing that still arrives matters
        self._ignored = 0  # bytes that arrived since
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport = cast("asyncio.Transport", transport)
        self.connections.add(self)
        self.client = _address(transport.get_extra_info("peername"))
        self.server = _address(transport.get_extra_info("sockname"))
        transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        self._slot_owner = self.slots.enter(self.listen, self.client[0] if self.client is not None else UNOWNED)
        if self._slot_owner is None:
            self._refuse(HttpError(503, "overloaded", "too many connections"))
            return
        self._watch(self.listen.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        if self._slot_owner is not None:
            self.slots.release(1, self._slot_owner)
            self._slot_owner = None
        if self.on_lost is not None:
            self.on_lost(self.owner)
        for timer in (self._timer, self._stall):
            if timer is not None:
                timer.cancel()
        self._discarding = True
        self._unparsed.clear()
        self._leave()
        self._let_write()

    def shutdown(self) -> None:
        """Called by uvicorn when it closes: the request under way is the connection's last."""
        if self.running is None:
            self.transport.close()
        else:
            self.running.keep_alive = False

    def _leave(self) -> None:
        """Notifies the request under way that its client waits for it no longer."""
        running, self.running = self.running, None
        if running is not None and not running.gone:
            running.gone = True
            running.wake()
            if running.on_gone is not None and not running.complete:
                running.on_gone()

    # -- back-pressure ----------------------------------------------------------------------------------------------

    def steer_reading(self) -> None:
        """Reads on, or stops. Parses what was read and not parsed, unless that has to wait."""
        running = self.running
        between = self._part is BETWEEN
        # Behind a request under way nothing is parsed, and nothing is answered while earlier answers are not read.
        if self._unparsed and not self._queued and not (between and (running is not None or self.write_paused)):
            self._queued = True
            self.turns.add(self, self.loop)
        reading = self._discarding or (
            len(self._unparsed) <= _AHEAD_BYTES
            and not self._queued
            and (running is None or between or running.body_bytes <= _BODY_HIGH_BYTES)
        )
        if (reading and not self._pausing) is not self._reading and not self.transport.is_closing():
            self._reading = not self._reading
            if self._reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def leave_reading(self) -> None:
        """Another protocol alone steers the transport from now on."""
        self._reading, self._pausing = True, False

    def take_turn(self) -> None:
        """Called by `turns`: parses a part of what was read and not parsed."""
        raise NotImplementedError

    def rest(self) -> None:
        """A response has begun that may last long: lets go of what only the next request needs."""
        raise NotImplementedError

    def _pause_a_turn(self) -> None:
        """No more is read in this turn of the loop, and for a while if it is thrown away."""
        if not self._pausing:
            self._pausing = True
            if self._discarding or self._part is SKIPPED:
                self.loop.call_later(_IGNORED_PAUSE_S, self._turn_over)
            else:
                self.loop.call_soon(self._turn_over)

    def _turn_over(self) -> None:
        self._pausing = False
        self.steer_reading()

    def pause_writing(self) -> None:
        self.write_paused = True
        if self._stall is None:
            self._stall = self.loop.call_later(self.listen.write_idle_s, self._drop)
        if self.running is not None and self.running.on_pause is not None:
            self.running.on_pause()

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        self._let_write()
        if self.running is not None:
            self.running.caught_up()
        self.steer_reading()

    def _let_write(self) -> None:
        self.write_paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    async def writable(self) -> None:
        """Returns when the client has caught up, or has left."""
        while self.write_paused:
            self._writable = self.loop.create_future()
            await self._writable

    # -- responses --------------------------------------------------------------------------------------------------

    @property
    def reusable(self) -> bool:
        """Whether the connection can serve on after a response that is sent now. The rest of a body that nobody wants
        is skipped where its length is known and not too large. It is never parsed."""
        if self._part is not BODY or self.running is None:
            return True
        return not self._body_chunked and not self.running.awaits_100 and self._body_left <= self._most_ignored

    @property
    def _most_ignored(self) -> int:
        return 2 * self.listen.max_body_bytes

    def answered(self, cycle: RequestCycle) -> None:
        """The response of the request under way is complete."""
        self.running = None
        if self.transport.is_closing():
            return
        if not cycle.keep_alive:
            self.end()
            return
        if self._part is BODY:
            self._part = SKIPPED
        elif not self._unparsed:
            self._become_idle()
            if self._reading:
                return
        self.steer_reading()

    def _become_idle(self) -> None:
        """Nothing is under way: the connection may be kept for a while."""
        self._idle = True
        self._watch(self.keep_alive_s)

    # -- endings ----------------------------------------------------------------------------------------------------

    def _drop(self) -> None:
        """Ends a connection whose client reads nothing, by a reset: otherwise the kernel keeps what it has to send, for
        minutes and megabytes each."""
        raw = self.transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def cut(self) -> None:
        """Closes after what was written, or by a reset when the client does not read it."""
        self._discarding = True
        self._unparsed.clear()
        self.transport.close()
        if self._stall is None:
            self._stall = self.loop.call_later(self.listen.write_idle_s, self._drop)

    def end(self) -> None:
        """Closes after the last answer, in a way that lets a client that is still sending read it."""
        if (self._part is BETWEEN and not self._unparsed) or not self.transport.can_write_eof():
            self.cut()
            return
        self._discarding = self._ended = True
        self._unparsed.clear()
        self.transport.write_eof()
        self.steer_reading()
        self._unwatch()
        self._arm(_LINGER_S)

    def _ignore(self, size: int) -> None:
        """`size` bytes have come that do not matter. Reads go on for a while, see _LINGER_S."""
        self._ignored += size
        if self._ignored > self._most_ignored:
            self.transport.abort()

    def _refuse(self, refusal: HttpError) -> None:
        """Answers the request that is arriving, and ends the connection."""
        self._discarding = True
        self._unparsed.clear()
        running = self.running
        if running is not None and running.started:
            self.cut()
            return
        own = self.refused(
            refusal,
            self.client[0] if self.client is not None else "",
            self.headers if self._part is not BETWEEN else [],
            running.id if running is not None else "",
        )
        if running is not None:
            running.started = running.complete = True
            # If its handler has not begun, this is how it learns what the request is called.
            running.scope["headers"].insert(0, own[0])
            running.refused = refusal.status, refusal.code
            self._leave()
        kind = "invalid_request_error" if refusal.status < 500 else "server_error"
        error = {"message": refusal.message, "type": kind, "param": None, "code": refusal.code}
        body = json.dumps({"error": error}).encode()
        headers = [
            JSON_TYPE,
            *own,
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        self.transport.write(response_head(refusal.status, headers) + body)
        self._part = HEAD  # the client may be still sending, whatever it is
        self.end()

    # -- deadlines --------------------------------------------------------------------------------------------------

    def _watch(self, seconds: float) -> None:
        """Sets the deadline. There is at most one timer a connection, moved only to come earlier; it looks at the
        newest deadline when it fires."""
        self._deadline = self.loop.time() + seconds
        if self._timer is None or self._deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._arm(seconds)

    def _unwatch(self) -> None:
        """There is no deadline: no timer is kept for one, either."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch_body(self, size: int) -> None:
        """`size` bytes more of a body have come, and it is not whole. No pause may be too long, nor the whole too slow:
        otherwise a byte a minute holds a connection for ever."""
        listen, now = self.listen, self.loop.time()
        if not self._body_since:
            self._body_since, self._body_size = now, 0
        self._body_size += size
        left = listen.body_timeout_s
        if listen.min_body_rate_bytes:
            left = min(left, self._body_since - now + left + self._body_size / listen.min_body_rate_bytes)
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
        elif self._idle or self._part in (BETWEEN, SKIPPED):
            self.transport.close()  # there is no request to answer
        elif self._part is BODY and not self._reading:
            self._body_since = 0.0  # the client is not late: reading is paused
            self._watch_body(0)
        else:
            self._refuse(HttpError(408, "request_timeout", "the request took too long to arrive"))


def _address(name: Any) -> tuple[str, int] | None:
    """Host and port of a socket's name; None of one that has no such name."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
