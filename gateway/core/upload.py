"""Uploads: bodies of type multipart/form-data. Texts are in memory; files stay where the body was put."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

Fetched = Callable[[bytes | None], None]
"""Takes bytes of a file; None if they cannot be had any more."""


class Source(Protocol):
    """The place of the files of one upload, one behind the other."""

    @property
    def whole(self) -> bytes | None:
        """All of it, if it is in memory."""

    def fetch(self, start: int, size: int, then: Fetched) -> None:
        """Reads `size` bytes from `start` on, in a thread. Calls `then` in the event loop."""

    def close(self) -> None:
        """Frees the place. Idempotent. A fetch under way still ends."""


class InMemory:
    """The source of a small upload."""

    def __init__(self, data: bytes = b"") -> None:
        self.whole = data

    def fetch(self, start: int, size: int, then: Fetched) -> None:
        then(self.whole[start : start + size])

    def close(self) -> None: ...


class File(Struct, frozen=True):
    """One file of an upload.

    field  its name in the form; filename and content_type are the client's, cleaned
    start, size  where it is in the source
    head   its first bytes, a few hundred
    """

    field: str
    filename: str
    content_type: str
    start: int
    size: int
    head: bytes = b""


class Form(Struct, frozen=True):
    """The parts of an upload. fields: texts by name, in their order; a name may come again."""

    fields: Sequence[tuple[str, str]]
    files: Sequence[File]
    source: Source

    def values(self, name: str) -> list[str]:
        """The texts of this name."""
        return [value for key, value in self.fields if key == name]


class Body(Struct, frozen=True):
    """The body of a worker's request, too large to be in memory. pieces: bytes, or (start, size) in the source."""

    pieces: tuple[bytes | tuple[int, int], ...]
    source: Source

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(len(piece) if isinstance(piece, bytes) else piece[1] for piece in self.pieces)


def wave_seconds(file: File) -> float | None:
    """How long a WAVE file lasts, by its header; None for any other file. The header is the client's own word."""
    head = file.head
    at = 12
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return None
    while at + 8 <= len(head):
        size = int.from_bytes(head[at + 4 : at + 8], "little")
        if head[at : at + 4] == b"fmt " and at + 20 <= len(head):
            rate = int.from_bytes(head[at + 16 : at + 20], "little")
            return file.size / rate if rate else None
        at += 8 + size + size % 2
    return None
