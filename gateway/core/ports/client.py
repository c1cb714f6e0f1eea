"""The client's side of a connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from typing import Any, Protocol

from gateway.core.byte_budget import Held
from gateway.core.http import Headers


class CountedConnection(Protocol):
    """One connection of a client.

    owner    the key that it is counted for, or ""
    on_lost  called once, with the owner, when it is lost
    """

    owner: str
    on_lost: Callable[[str], None] | None


class Client(Protocol):
    """A client's connection while one request runs on it.

    The gateway's own server puts it into the request's ASGI scope, for HTTP/1.1. A handler that ignores it has plain
    ASGI; for other servers the kernel makes one of that (`kernel.client.AsgiClient`).

    direct     the native relay may write to it
    id         the handler's id of the request, for the server's own refusals; set by the handler
    gone       the client has left, or the server has ended the connection
    started    the response head is out
    refused    (status, code) if the server itself answered, because the body was malformed or late; else None
    connection  the same for all requests of one connection; None if the server does not name it
    room       of the budget of bodies, while the request holds some of it
    disk       of that of uploads, likewise
    """

    direct: bool
    id: str
    gone: bool
    started: bool
    room: Held | None
    disk: Held | None

    @property
    def refused(self) -> tuple[int, str] | None: ...
    @property
    def connection(self) -> CountedConnection | None: ...

    # -- the request

    def body(self) -> bytes | None:
        """The whole request body if all of it has arrived; else None, and the body comes by `receive`. Call it once."""

    async def receive(self) -> MutableMapping[str, Any]:
        """ASGI's."""

    def watch(self, on_gone: Callable[[], None]) -> None:
        """From now on, `on_gone` is called at most once, when the client leaves before the response is complete. Only
        after the body was read."""

    # -- a whole response

    def respond(self, status: int, headers: Headers, body: bytes) -> Awaitable[None]:
        """Sends a whole response, once it is awaited or before. Its content-length is added. Raises ValueError, before
        anything is sent, when a header holds a line ending."""

    # -- a streamed response

    async def start(self, status: int, headers: Headers) -> None:
        """Sends the head."""

    def flow(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """From now on, `pause` is called when the client reads slower than we write, and `resume` when it has caught
        up."""

    def write(self, data: bytes) -> None:
        """Sends a block, which is not empty, after `start`, at the end of this turn of the event loop. The block may be
        buffered until `carry`, `finish` or `cut`."""

    def end(self) -> None:
        """Ends the response with what was written last, in one write. Idempotent; `finish` must still follow. A client
        that leaves from then on has had its whole response, unless it reads too slowly now: then it has once it has
        caught up."""

    def carry(self, until: Any) -> Awaitable[None]:
        """Carries what is written to the client, once it is awaited, until `until`, a `OneTimeEvent`, has
        happened."""

    async def finish(self, data: bytes) -> None:
        """Sends `data` and ends the response in order, unless it has ended."""

    async def send_block(self, data: bytes, more: bool) -> None:
        """Sends a part of the response, as fast as the client reads; more: others follow. In place of `write` and
        `finish`."""

    async def cut(self, data: bytes) -> None:
        """Sends `data`, then ends the connection so that the client can tell that the reply is not whole."""

    def close(self) -> None:
        """Lets go of the connection. Called once, at the end."""


class Socket(Protocol):
    """One web socket of a client. Bytes are whole messages of text; a client's binary ones are the same.

    gone  it is closed, or closing: nothing more is sent or received
    """

    @property
    def gone(self) -> bool: ...

    async def receive(self) -> bytes | None:
        """The client's next message; None once it is gone. Until it is called again no further message is read, and
        the one before keeps its room."""

    async def send(self, messages: Iterable[bytes]) -> None:
        """Waits while the client reads too slowly. A message to one that is gone is dropped."""

    def close(self, code: int, reason: str) -> None:
        """Ends it in order. code: of RFC 6455. Idempotent."""


SocketSession = Callable[[Socket], Coroutine[Any, Any, None]]
"""Runs on a web socket from its handshake until it is gone."""

OpensSockets = Callable[[MutableMapping[str, Any], CountedConnection], tuple[SocketSession, Held] | None]
"""Called with the ASGI scope of a GET that asks for a web socket, and its connection. Returns what runs on it, and the
room for its large messages; None if the request must be answered as HTTP."""
