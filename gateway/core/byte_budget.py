"""A bound on the memory that large request bodies take."""

from __future__ import annotations

import sys

from gateway.core.errors import GatewayError, Kind

SMALL = 1 << 16
"""Bytes. Bodies up to this size are not counted: nearly all are so small, and the bound on connections bounds them."""


class ByteBudget:
    """The bytes that large request bodies may take together; shared by all requests.

    limit     bytes of bodies as they arrive. Copies of a body, such as the worker's request, are not counted and
              come on top
    reserved  how many of them are taken
    """

    __slots__ = ("limit", "reserved")

    def __init__(self, limit: int = sys.maxsize) -> None:
        self.limit = limit
        self.reserved = 0

    def reserve(self, size: int) -> None:
        """Takes `size` bytes. Raises GatewayError(OVERLOADED), and takes nothing, if fewer are left."""
        if not self.take(size):
            message = "too many large requests are under way"
            raise GatewayError(Kind.OVERLOADED, message, code="no_room_for_body", retry_after=1.0)

    def take(self, size: int) -> bool:
        """Takes `size` bytes; False, and takes nothing, if fewer are left."""
        if self.reserved + size > self.limit:
            return False
        self.reserved += size
        return True

    def release(self, size: int) -> None:
        """Gives `size` bytes back."""
        self.reserved -= size
