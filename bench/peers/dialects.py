"""The dialects whose streams the comparison asks the gateway for, beside the worker's own."""

from __future__ import annotations

from msgspec import Struct

from bench.replies import wanted
from bench.rows import PHRASE, ROWS, Row


class Dialect(Struct, frozen=True):
    """A row's request for a stream."""

    name: str
    row: Row

    def body(self, chunks: int) -> bytes:
        """The row's request, whose prompt asks for so many chunks."""
        return self.row.body.replace(PHRASE.encode(), wanted(chunks).encode() + b" ", 1)


_STREAMS = {row.name.partition(" → ")[0]: row for row in ROWS if row.kind == "stream"}
DIALECTS = tuple(Dialect(name, row) for name, row in _STREAMS.items() if name != "openai")
