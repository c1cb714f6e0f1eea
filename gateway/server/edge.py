"""What a client may do to the server, and what it is told when it does more."""

from __future__ import annotations

from msgspec import Struct


class Edge(Struct, frozen=True):
    """What a client may send and hold open: seconds and bytes, as in configuration `listen`."""

    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    write_idle_s: float = 60.0
    max_header_bytes: int = 32768
    max_header_count: int = 100
    max_body_bytes: int = 33554432
    max_connections: int = 10000


class Refusal(Exception):
    """A request that never reaches the application. Its answer is in OpenAI's shape, since no dialect is chosen yet."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
