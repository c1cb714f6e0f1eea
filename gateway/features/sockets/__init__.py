"""Web sockets: each message of a client is a request, answered as a POST at the same path is.

Authentication, limits, records and metrics are those of a POST, by the configuration in force when the message comes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from gateway.auth import Principal
from gateway.config import Listen
from gateway.core.byte_budget import SMALL, Held, Shared
from gateway.core.errors import Busy, GatewayError, Kind
from gateway.core.http import Headers
from gateway.core.messages import Op
from gateway.core.ports import CountedConnection, Socket, SocketSession, StoredTexts
from gateway.features import Built, Parts
from gateway.kernel.call import Call
from gateway.kernel.client import Scope
from gateway.kernel.feature import Feature, Step
from gateway.kernel.internal_request import InternalRequest
from gateway.kernel.serving import Endpoint, run
from gateway.offload import offload
from gateway.wire.bulk import is_heavy

# Clients expect it, and reconnect.
_LONGEST_S, _LIMIT = 3600.0, "websocket_connection_limit_reached"
_MOST_LANES, _MOST_WAITING = 8, 32
_DONE, _RESTART, _TRY_AGAIN = 1000, 1012, 1013
# These are for the handshake alone. An id is that of one request.
_HANDSHAKE = (b"connection", b"upgrade", b"content-type", b"content-encoding", b"x-request-id")


class LastResponses:
    """The last response of each lane of one web socket, for the requests after it. A response that has no room in
    memory is not kept: its client sends the whole conversation then. A client may name any
    number of lanes: the last ones are kept."""

    def __init__(self, room: Callable[[], Held], most_bytes: int) -> None:
        self._room = room
        self._most_bytes = most_bytes
        self._texts: dict[str, tuple[str, str, bytes, Held]] = {}

    def keep(self, lane: str, owner: str, name: str, text: bytes) -> None:
        """Instead of what the lane had."""
        self._remove(lane)
        if len(self._texts) == _MOST_LANES:
            self._remove(next(iter(self._texts)))
        room = self._room()
        if len(text) <= self._most_bytes and room.resize(len(text)):
            self._texts[lane] = owner, name, text, room

    def find(self, owner: str, name: str) -> bytes | None:
        return next((text for one, own, text, _ in self._texts.values() if (one, own) == (owner, name)), None)

    def forget(self, names: Iterable[str]) -> None:
        for lane in [lane for lane, (_, name, *_) in self._texts.items() if name in names]:
            self._remove(lane)

    def close(self) -> None:
        for lane in list(self._texts):
            self._remove(lane)

    def _remove(self, lane: str) -> None:
        if lane in self._texts:
            self._texts.pop(lane)[3].resize(0)


class _Both:
    """The texts that a connection keeps, before those that are stored for all. referred: names that were asked for."""

    referred: Iterable[str] = ()

    def __init__(self, last: LastResponses, store: StoredTexts | None) -> None:
        self._last = last
        self._store = store

    async def size(self, owners: Sequence[str], names: Iterable[str]) -> int:
        found = {name: self._last.find(owners[0], name) for name in names}
        more = [name for name, text in found.items() if text is None]
        stored = await self._store.size(owners, more) if self._store is not None and more else 0
        return stored + sum(len(text) for text in found.values() if text is not None)

    async def get(self, owners: Sequence[str], names: Iterable[str]) -> dict[str, bytes | None]:
        self.referred = names
        found = {name: self._last.find(owners[0], name) for name in names}
        more = [name for name, text in found.items() if text is None]
        return found | (await self._store.get(owners, more) if self._store is not None and more else {})


class _Message(Feature):
    """One message as a request. Its response is kept for the next one, stored or not."""

    _answered: Op | None = None
    _texts: _Both | None = None

    def __init__(self, last: LastResponses, lane: str) -> None:
        self._last = last
        self._lane = lane

    def around_receive(self, inner: Step) -> Step:
        def receive(call: Call) -> Awaitable[None]:
            call.request.message = True
            call.request.stored = {}
            call.request.lasts = call.store is not None
            call.store = self._texts = _Both(self._last, call.store)
            return inner(call)

        return receive

    def around_answer(self, inner: Step) -> Step:
        def answer(call: Call) -> Awaitable[None]:
            self._answered = call.op
            return inner(call)

        return answer

    def keep(self, call: Call) -> None:
        """Called when it is over. The connection forgets what a failed request went on from: its client sends the whole
        conversation then."""
        op = self._answered
        if op is not None and op.to_store:
            self._last.keep(self._lane, call.principal.tenant, *next(iter(op.to_store.items())))
        elif call.record.outcome != "cancelled" and self._texts is not None:
            self._last.forget(self._texts.referred)


class _Exchange(InternalRequest):
    """The plain ASGI of one request: its body is the message, its reply becomes messages."""

    def __init__(self, message: bytes, session: _Session, lane: str) -> None:
        super().__init__(message)
        self._session = session
        self._lane = lane
        self._status = 0
        self._headers: Headers = []
        self._rest = b""
        self.ended = False

    async def send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], message["headers"]
            return
        self.ended = not message.get("more_body", False)
        self._rest += message.get("body", b"")
        wire, socket = self._session.wire, self._session.socket
        if self._status == 200:
            *frames, self._rest = self._rest.split(b"\n\n")
            await socket.send(wire.events(frames, self._lane))
        elif self.ended:
            await socket.send([wire.refusal(self._status, self._headers, self._rest, self._lane)])


class _Session:
    """One web socket: its lanes, each with the messages that wait for the one under way."""

    def __init__(self, sockets: Sockets, endpoint: Endpoint, scope: Scope, socket: Socket, owner: str) -> None:
        assert endpoint.dialect.socket is not None
        self.wire = endpoint.dialect.socket
        self.socket = socket
        self._sockets = sockets
        self._endpoint = endpoint
        runtime = endpoint.runtime
        self.owner = owner
        self._last = LastResponses(lambda: Held(runtime.budgets.sessions, owner), runtime.max_body_bytes)
        headers = [one for one in scope["headers"] if one[0] not in _HANDSHAKE and not one[0].startswith(b"sec-")]
        headers.append((b"content-type", b"application/json"))
        self._scope: dict[str, Any] = {**scope, "method": "POST", "headers": headers}
        self._lanes: dict[str, deque[bytes]] = {}
        self._exchanges: set[_Exchange] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._clock = asyncio.get_running_loop().time
        self._since = self._ends = self._clock()
        self._ends += _LONGEST_S

    async def run(self) -> None:
        try:
            while (message := await self._next()) is not None:
                self._since = self._clock()
                lane = ""
                try:
                    find = self.wire.lane
                    lane = await offload(find, message) if is_heavy(message) else find(message)
                    self._take(message, lane)
                except GatewayError as error:
                    await self._refuse(error, lane)
        finally:
            self.socket.close(_DONE, "")
            for exchange in self._exchanges:
                exchange.leave()
            if self._tasks:
                await asyncio.wait(self._tasks)
            self._last.close()
            self._sockets.left(self)

    async def _next(self) -> bytes | None:
        """The next message; None once the client is gone, or has been idle for too long."""
        while True:
            now = self._clock()
            ends = min(self._since + self._sockets.idle_s, self._ends)
            if not self._lanes and ends <= now:
                self.socket.close(_DONE, "idle for too long" if now < self._ends else "open for too long")
            try:
                async with asyncio.timeout(max(ends - now, 1.0)):
                    return await self.socket.receive()
            except TimeoutError:
                pass

    def _take(self, message: bytes, lane: str) -> None:
        """Answers it, or lets it wait. Raises GatewayError if it cannot be taken."""
        if self._clock() >= self._ends:
            text = "this web socket has reached its limit of 60 minutes: open another one"
            raise GatewayError(Kind.BAD_REQUEST, text, code=_LIMIT)
        waiting = self._lanes.get(lane)
        if waiting is not None:
            self._check_waiting(len(message))
        if waiting is None and len(self._lanes) >= _MOST_LANES:
            text = f"no more than {_MOST_LANES} lanes may run on one web socket"
            raise GatewayError(Kind.BAD_REQUEST, text, param="stream_id", code="websocket_stream_limit_reached")
        if waiting is not None:
            waiting.append(message)
            return
        self._lanes[lane] = waiting = deque((message,))
        task = asyncio.get_running_loop().create_task(self._answer_all(lane, waiting))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_waiting(self, size: int) -> None:
        """Raises Busy if a message of so many bytes may not wait. The messages that wait have passed no limit
        yet: together they have fewer bytes than a request may hold without room of its own."""
        waits = [len(message) for waiting in self._lanes.values() for message in waiting]
        if len(waits) >= _MOST_WAITING or sum(waits) + size > SMALL:
            text = f"no more than {_MOST_WAITING} messages, and {SMALL} bytes of them, may wait on one web socket"
            raise Busy(text, "too_many_messages", 1.0)

    async def _answer_all(self, lane: str, waiting: deque[bytes]) -> None:
        try:
            while waiting:
                message = waiting.popleft()
                if self._sockets.over is not None:
                    await self._refuse(self._sockets.over, lane)
                elif not self.socket.gone:
                    await self._answer(message, lane)
        finally:
            del self._lanes[lane]
            self._since = self._clock()
            if self._sockets.draining:
                self.drain()

    async def _answer(self, message: bytes, lane: str) -> None:
        endpoint = self._sockets.endpoints.get(self._scope["path"])
        if endpoint is None:  # since a reload there are none here
            self.socket.close(_RESTART, "web sockets are not served here any more")
            return
        length = (b"content-length", b"%d" % len(message))
        scope = {**self._scope, "headers": [*self._scope["headers"], length]}
        exchange = _Exchange(message, self, lane)
        self._exchanges.add(exchange)
        layer = _Message(self._last, lane)
        call = endpoint.call(scope, exchange.receive, exchange.send, layer)
        try:
            await run(call)
        finally:
            self._exchanges.discard(exchange)
            layer.keep(call)
        if not exchange.ended:
            await self._refuse(GatewayError(Kind.INTERNAL, "the response was cut off"), lane)

    async def _refuse(self, error: GatewayError, lane: str) -> None:
        response, _ = self._endpoint.dialect.refuse(error, None, None)
        await self.socket.send([self.wire.refusal(response.status, response.headers, response.body, lane)])
        if error.code == _LIMIT and not self._lanes:
            self.socket.close(_DONE, "open for too long")

    def drain(self) -> None:
        """Closes it, unless a response is under way: then behind that."""
        if not self._lanes:
            self.socket.close(_RESTART, "the gateway is shutting down")


class Sockets:
    """The web sockets that are open. connected: called with who opens one, and the connection; raises GatewayError if
    that caller may open no more.

    endpoints  the POST that reads the messages, by path
    idle_s     for so many seconds one may be open without a response under way
    over       what each message gets that is not under way yet, once the gateway waits for none any more
    """

    def __init__(self, connected: Callable[[Principal, CountedConnection], None]) -> None:
        self._connected = connected
        self.endpoints: Mapping[str, Endpoint] = {}
        self.idle_s = 0.0
        self._slots = Shared()
        self.over: GatewayError | None = None
        self.draining = False
        self._open: set[_Session] = set()

    def __len__(self) -> int:
        return len(self._open)

    def configure(self, listen: Listen) -> None:
        self.idle_s = listen.socket_idle_s
        self._slots.limit, self._slots.share = listen.max_sockets, listen.caller_share

    def opens(self, scope: Scope, connection: CountedConnection) -> tuple[SocketSession, Held] | None:
        """As `core.ports.OpensSockets`. A caller who may not have one, or is not known, gets the answer to a GET."""
        endpoint = self.endpoints.get(scope["path"])
        if endpoint is None:
            return None
        runtime = endpoint.runtime
        try:
            pending = runtime.callers.identify(scope["headers"], endpoint.dialect.name, scope)
            if pending.prove is not None:  # a signature is one request's
                return None
            self._connected(pending.principal, connection)
        except GatewayError:
            return None
        owner = runtime.owner(pending.principal, scope)
        if not self._slots.has_room(owner):
            return None

        def session(socket: Socket) -> Coroutine[Any, Any, None]:
            opened = _Session(self, endpoint, scope, socket, owner)
            if not self._slots.take(1, owner):  # others have begun since it had room
                return _refuse(socket)
            self._open.add(opened)
            return opened.run()

        return session, Held(runtime.body_budget, owner)

    def left(self, session: _Session) -> None:
        self._open.discard(session)
        self._slots.release(1, session.owner)

    def drain(self) -> None:
        """From now on each closes when no response of its is under way."""
        self.draining = True
        for session in list(self._open):
            session.drain()


async def _refuse(socket: Socket) -> None:
    socket.close(_TRY_AGAIN, "as many web sockets as may be are open")


def build(parts: Parts) -> Built:
    sockets: Sockets | None = parts.earlier_services.get("sockets")
    if sockets is None:
        sockets = Sockets(parts.offers.connected)
    parts.offers.sockets = sockets
    return Built(service=sockets, take_effect=partial(sockets.configure, parts.config.listen), drain=sockets.drain)
