"""`application/vnd.amazon.eventstream`: frames to bytes, and bytes to frames.

A frame is big-endian: total length u32, length of the headers u32, CRC-32 of those eight bytes, headers, payload,
CRC-32 of everything before it. A header is: length of its name u8, name, type u8, value. The only type used here is 7:
a u16 length and text. Sources: the Amazon event stream encoding specification; botocore 1.44 `eventstream.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct as Layout
from struct import unpack_from
from zlib import crc32

from msgspec import Struct

from gateway.core.errors import GatewayError, Kind

MEDIA_TYPE = b"application/vnd.amazon.eventstream"
# Both limits are from the specification. botocore refuses larger frames.
MAX_PAYLOAD = 24 * 1024 * 1024
MAX_HEADERS = 128 * 1024

_TEXT = 7
_PRELUDE = 12
_FRONTS = 1024
_lengths = Layout(">II").pack
_checksum = Layout(">I").pack


class Frame(Struct):
    """One frame, its headers as text."""

    headers: dict[str, str]
    payload: bytes


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


class Reader:
    """Takes blocks cut anywhere and returns whole frames. Raises GatewayError(UPSTREAM) for a wrong checksum, an
    impossible length, or a header that is not text."""

    def __init__(self) -> None:
        self._tail = bytearray()

    def feed(self, block: bytes) -> list[Frame]:
        self._tail += block
        frames = []
        while len(self._tail) >= _PRELUDE:
            total, headers, checksum = unpack_from(">III", self._tail)
            if crc32(self._tail[:8]) != checksum:
                raise _broken("its checksum does not match")
            if headers > MAX_HEADERS or not 0 <= total - headers - _PRELUDE - 4 <= MAX_PAYLOAD:
                raise _broken("its length cannot be")
            if len(self._tail) < total:
                break
            whole = bytes(self._tail[:total])
            del self._tail[:total]
            if crc32(whole[:-4]) != int.from_bytes(whole[-4:], "big"):
                raise _broken("its checksum does not match")
            start = _PRELUDE + headers
            frames.append(Frame(_read_headers(whole[_PRELUDE:start]), whole[start:-4]))
        return frames

    def eof(self) -> list[Frame]:
        """Raises GatewayError(TRUNCATED) when the stream ends inside a frame."""
        if self._tail:
            raise GatewayError(Kind.TRUNCATED, "the event stream ended inside a frame", code="upstream_truncated")
        return []


def _read_headers(encoded: bytes) -> dict[str, str]:
    headers = {}
    at = 0
    try:
        while at < len(encoded):
            end = at + 1 + encoded[at]
            name, kind = encoded[at + 1 : end], encoded[end]
            length = int.from_bytes(encoded[end + 1 : end + 3], "big")
            at = end + 3 + length
            if kind != _TEXT or at > len(encoded):
                raise _broken("it has a header that is not text")
            headers[name.decode()] = encoded[end + 3 : at].decode()
    except (IndexError, UnicodeDecodeError):
        raise _broken("its headers are not whole") from None
    return headers


def _broken(why: str) -> GatewayError:
    return GatewayError(Kind.UPSTREAM, f"the event stream holds a broken frame: {why}", code="upstream_malformed")
