"""`application/vnd.amazon.eventstream`: frames to bytes.

A frame is big-endian: total length u32, length of the headers u32, CRC-32 of those eight bytes, headers, payload,
CRC-32 of everything before it. A header is: length of its name u8, name, type u8, value. The only type used here is 7:
a u16 length and text. Sources: the Amazon event stream encoding specification; botocore 1.44 `eventstream.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct as Layout
from zlib import crc32

MEDIA_TYPE = b"application/vnd.amazon.eventstream"
_TEXT = 7
_PRELUDE = 12
_FRONTS = 1024
_lengths = Layout(">II").pack
_checksum = Layout(">I").pack


def framer(headers: Mapping[str, str]) -> Callable[[bytes], bytes]:
    """Returns a function that writes a payload as a frame with `headers`, which are encoded only once."""
    encoded = b"".join(_header(name, value) for name, value in headers.items())
    length = len(encoded)
    around = _PRELUDE + length + 4
    # The bytes before the payload depend only on its length, and the chunks of a stream have few different lengths.
    fronts: dict[int, tuple[bytes, int]] = {}

    def front(size: int) -> tuple[bytes, int]:
        lengths = _lengths(around + size, length)
        before = lengths + _checksum(crc32(lengths)) + encoded
        if len(fronts) >= _FRONTS:
            fronts.clear()
        found = fronts[size] = (before, crc32(before))
        return found

    def frame(payload: bytes) -> bytes:
        before, checksum = fronts.get(len(payload)) or front(len(payload))
        return before + payload + _checksum(crc32(payload, checksum))

    return frame


def _header(name: str, value: str) -> bytes:
    name_bytes, value_bytes = name.encode(), value.encode()
    return b"%c%b%c%b%b" % (len(name_bytes), name_bytes, _TEXT, len(value_bytes).to_bytes(2, "big"), value_bytes)
