"""What a client may do to the server, and what it is told when it does more."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from gateway.core.http import Headers


class Edge(Struct, frozen=True):
    """What a client may send and hold open: seconds and bytes, as in configuration `listen`.

    A body may take body_timeout_s and what its bytes take at min_body_rate_bytes a second (0: any time).
    """

    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    min_body_rate_bytes: int = 500
    write_idle_s: float = 60.0
    max_header_bytes: int = 32768
    max_header_count: int = 100
    max_body_bytes: int = 33554432
    max_connections: int = 10000


class HttpError(Exception):
    """A request that never reaches the application. Its answer is in OpenAI's shape, since no dialect is chosen yet."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


Refused = Callable[[HttpError, str, Headers, str], str]
"""Told of every refusal: (refusal, the client's address, the headers that have come, the id that a handler has given
the request or ""). Returns the id to answer with, fit for a header."""
