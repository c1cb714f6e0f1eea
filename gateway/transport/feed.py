"""Sends the body of an upload to a worker: it is fetched as fast as the worker takes it, a slice at a time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gateway.core.errors import GatewayError, Kind
from gateway.core.upload import Body

if TYPE_CHECKING:
    from gateway.transport.connection import WorkerConnection

SLICE_BYTES = 256 * 1024
"""The most bytes of one upload that are in memory on their way to a worker, beside the socket's own buffer."""


class Feed:
    """The rest of one body."""

    __slots__ = ("_connection", "_fetching", "_left", "_source")

    def __init__(self, connection: WorkerConnection, body: Body) -> None:
        self._connection = connection
        self._left = deque(body.pieces)
        self._source = body.source
        self._fetching = False

    def go_on(self) -> None:
        """Sends what the worker takes now."""
        connection = self._connection
        while self._left and not self._fetching and not connection.write_paused:
            piece = self._left.popleft()
            if isinstance(piece, bytes):
                connection.send_more(piece)
                continue
            start, size = piece
            if size > SLICE_BYTES:
                self._left.appendleft((start + SLICE_BYTES, size - SLICE_BYTES))
            self._fetching = True
            self._source.fetch(start, min(size, SLICE_BYTES), self._fetched)
        if not self._left and not self._fetching:
            connection.fed(self)

    def _fetched(self, data: bytes | None) -> None:
        self._fetching = False
        connection = self._connection
        if not connection.feeds(self):
            return  # the exchange is over
        if data is None:
            connection.fail(lost())
            return
        connection.send_more(data)
        self.go_on()


def lost() -> GatewayError:
    """The error of a request whose upload is gone."""
    return GatewayError(Kind.INTERNAL, "the upload could not be read from its temporary file", code="upload_lost")
