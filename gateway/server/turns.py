"""Fair turns: a client that sends more than is parsed at once waits, and the others are served in between."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.server.connection import ClientConnection


class Turns:
    """The connections of one server that have unparsed bytes.

    One of them is served in each turn of the event loop, the one that waited longest. However many there are, the
    loop's turns stay short.
    """

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
