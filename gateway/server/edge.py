"""The server's bounds on what clients send and hold open, and the errors for exceeding them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from gateway.core.http import Headers


class Edge(Struct, frozen=True):
    """Bounds on what a client may send and hold open, in seconds and bytes, as in the configuration's `listen`.

    A body may take body_timeout_s plus its size divided by min_body_rate_bytes per second (0: no bound).
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
    """A request that is refused before the application. Its answer has OpenAI's form: no dialect is chosen yet."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


Refused = Callable[[HttpError, str, Headers, str], Headers]
"""Called for every refusal with (the refusal, the client's address, the headers received so far, the request id from a
handler or ""). Returns headers for the answer; the first is `x-request-id`."""
