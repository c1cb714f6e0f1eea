"""Uploads: bodies of type multipart/form-data. Texts are in memory; files stay where the body was put."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import unpack_from
from typing import Protocol

from msgspec import Struct

_CODED_BYTES_S = 40_000
"""320 kbit/s: the most of MP3, and above what speech has in other codecs."""
_MOST_BYTES_S = 192_000 * 8 * 4
"""Samples have no more: 192 kHz, 8 channels, 32 bits."""
_SAMPLES = frozenset({1, 3, 6, 7, 0xFFFE})
"""Formats of a WAVE file that are samples: PCM, floats, A-law, mu-law, and the extensible form of these."""
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


def seconds_of(file: File) -> float:
    """How long a file of sound lasts: a WAVE file of samples by those members of its header that make it longest, since
    all are the client's word; any other file by its size."""
    head = file.head
    rate, at = _CODED_BYTES_S, 12
    while head[:4] == b"RIFF" and head[8:12] == b"WAVE" and at + 24 <= len(head):
        size = int.from_bytes(head[at + 4 : at + 8], "little")
        if head[at : at + 4] == b"fmt ":
            kind, channels, samples, stated, block, bits = unpack_from("<HHIIHH", head, at + 8)
            if kind in _SAMPLES:
                rate = min(stated, samples * block, samples * channels * -(-bits // 8), _MOST_BYTES_S) or rate
            break
        at += 8 + size + size % 2
    return file.size / rate
