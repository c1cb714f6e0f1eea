"""How many bytes of large request bodies may be here at once."""

from __future__ import annotations

import sys

from gateway.core.errors import GatewayError, Kind

SMALL = 1 << 16
"""A body of no more bytes is not counted: nearly all are, and connections bound them."""


class ByteBudget:
    """Shared by all requests. `most` and `held` are bytes of bodies as they came; what is made of one is held beside
    it: its text, and what is sent to the worker."""

    __slots__ = ("limit", "reserved")

    def __init__(self, limit: int = sys.maxsize) -> None:
        self.limit = limit
        self.reserved = 0

    def reserve(self, size: int) -> None:
        """Raises GatewayError(OVERLOADED) where so many bytes more have no room."""
        if self.reserved + size > self.limit:
            raise GatewayError(
                Kind.OVERLOADED, "too many large requests are under way", code="no_room_for_body", retry_after=1.0
            )
        self.reserved += size

    def release(self, size: int) -> None:
        """Gives back what was taken."""
        self.reserved -= size
