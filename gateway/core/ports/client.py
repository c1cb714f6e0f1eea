"""The client's side of a connection."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, MutableMapping
from typing import Any, Protocol

from gateway.core.byte_budget import Held
from gateway.core.http import Headers


class CountedConnection(Protocol):
    """One connection of a client.

    owner    the key that it is counted for, or ""
    on_lost  called once when it is lost
    """

    owner: str
    on_lost: Callable[[], None] | None


class Downstream(Protocol):
    """One HTTP/1.1 connection of a client while one request runs on it: calls beyond plain ASGI.

    The gateway's own server puts it into the request's ASGI scope. A handler that ignores it gets plain ASGI.

    gone       the client has left, or the server has ended the connection
    id         the handler's id of the request, for the server's own refusals; set by the handler
    refused    (status, code) if the server itself answered, because the body was malformed or late; else None
    on_gone    set by the handler; called at most once, when the client leaves before the response is complete
    on_pause   set by the handler; called when the client reads more slowly than the handler writes
    on_resume  set by the handler; called when the client has caught up
    """

    gone: bool
    id: str
    refused: tuple[int, str] | None
    on_gone: Callable[[], None] | None
    on_pause: Callable[[], None] | None
    on_resume: Callable[[], None] | None

    @property
    def connection(self) -> CountedConnection:
        """The same for all requests of one connection."""

    @property
    def paused(self) -> bool:
        """True between `on_pause` and `on_resume`: the client reads too slowly now."""

    def body(self) -> bytes | None:
        """The whole request body if all of it has arrived; else None, and the body comes by ASGI. Call it once."""

    def write(self, data: bytes) -> None:
        """Sends one block of a chunked response at the end of this turn of the event loop. The block is not empty; the
        head was sent by ASGI."""

    def end(self) -> None:
        """Ends the chunked response, in one write with the block before. Idempotent. A client that leaves from then on
        has had its whole response, unless the client is paused: then it has once it has caught up."""

    async def taken(self) -> None:
        """Returns when a client that was paused at `end` has caught up or left; else at once."""

    def flush(self) -> None:
        """Sends what was written now, instead of at the end of the turn."""

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Sends a whole response. Its content-length is added. Raises ValueError when a header holds a line ending."""

    def cut(self) -> None:
        """Sends what was written, then ends the connection so that the client can tell that the reply is not whole."""

    def release(self) -> None:
        """Ends the handler's use of the connection. Call it once, at the end."""


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
