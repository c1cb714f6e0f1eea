"""Content codings of request bodies, undone piece by piece: what a body expands to is bounded while it expands.

Sources: RFC 9110, section 8.4 (gzip, deflate), RFC 7932 (br), RFC 8878 and RFC 9659 (zstd, whose window is 8 MiB at
most).
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers

UNKNOWN_CODING = "unsupported_content_encoding"
"""The code of a refusal of a coding that is not served."""
SERVED = b"br, deflate, gzip, zstd"
"""The value of `accept-encoding` in such a refusal (RFC 9110, section 12.5.3)."""

# A text expands to this many times its size at most, unless it is short. Prompts expand three to ten times, and a page
# of one repeated line 30 to 100 times; a bomb does a thousand times (gzip) to a million.
_MOST_RATIO, _SHORT = 200, 1 << 22
# Bytes that a decoder gets at once, as some copy what they do not need yet; and how often it gets them for one piece.
_FEED, _MOST_FEEDS = 1 << 14, 16
# Members of one gzip body, or frames of one zstd body; empty ones cost time and expand to nothing.
_MOST_MEMBERS = 1024
_ALIASES = {b"x-gzip": "gzip"}
_WINDOW_LOG = 23


def coding_of(headers: Headers) -> str | None:
    """The coding of a body, None for none. Raises GatewayError(MEDIA_TYPE) for one that is not served, and for several
    on top of each other."""
    lines = [value for name, value in headers if name == b"content-encoding"]
    if not lines:
        return None
    named = [one for line in lines for one in line.lower().replace(b"\t", b" ").split(b",")]
    codings = [one.strip() for one in named if one.strip() not in (b"", b"identity")]
    if not codings:
        return None
    coding = _ALIASES.get(codings[0], codings[0].decode("latin-1"))
    if len(codings) > 1 or coding not in DECODERS:
        message = f"the content coding of the request body is not served; these are: {SERVED.decode()}"
        raise GatewayError(Kind.MEDIA_TYPE, message, code=UNKNOWN_CODING)
    return coding


class _Engine(Protocol):
    """One member of a coded body.

    eof          it is at its end
    needs_input  `decompress` returns nothing more without further input
    unused_data  the bytes of the input behind its end
    """

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Zlib:
    """`zlib`, which keeps what it does not need yet outside. wbits: as `zlib.decompressobj` takes it; 0 for what the
    first two bytes say, as many clients send deflate without the header that RFC 9110 asks for."""

    needs_input = True

    def __init__(self, wbits: int) -> None:
        self._head = b""
        self._inner: Any = zlib.decompressobj(wbits) if wbits else None

    @property
    def eof(self) -> bool:
        return self._inner is not None and bool(self._inner.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inner.unused_data)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        if self._inner is None:
            data = self._head + data
            if len(data) < 2:
                self._head = data
                return b""
            wrapped = data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._inner = zlib.decompressobj(zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS)
        found: bytes = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = len(found) < max_length and not self._inner.unconsumed_tail
        return found


class _Brotli:
    """Google's `brotli`, under the names of the standard library."""

    needs_input = True
    unused_data = b""

    def __init__(self) -> None:
        import brotli

        self._inner = brotli.Decompressor()

    @property
    def eof(self) -> bool:
        return bool(self._inner.is_finished())

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """May return somewhat more than `max_length` bytes."""
        found: bytes = self._inner.process(data, output_buffer_limit=max_length)
        self.needs_input = len(found) < max_length and bool(self._inner.can_accept_more_data())
        return found


def _zstd() -> _Engine:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    found: _Engine = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})
    return found


# Coding -> (what begins a member, whether there may be several, bytes of memory beside input and output).
DECODERS: dict[str, tuple[Callable[[], _Engine], bool, int]] = {
    "gzip": (lambda: _Zlib(16 + zlib.MAX_WBITS), True, 1 << 16),
    "deflate": (lambda: _Zlib(0), False, 1 << 16),
    "zstd": (_zstd, True, 1 << _WINDOW_LOG),
    "br": (_Brotli, False, 1 << 24),
}


class Decoder:
    """One coded body. `feed` what comes of it, `take` until it is `hungry`, and `end` it.

    memory  bytes that it may hold beside input and output
    """

    def __init__(self, coding: str, most: int) -> None:
        """most: bytes that the body may expand to."""
        self._begin, self._several, memory = DECODERS[coding]
        self.memory = min(memory, most)
        self._coding = coding
        self._most = most
        self._engine: _Engine = self._begin()
        self._members = 1
        self._input = b""
        self._at = 0
        self._fed = self._made = 0

    @property
    def hungry(self) -> bool:
        """`take` returns nothing more without further input."""
        return self._at >= len(self._input) and (self._engine.needs_input or self._engine.eof)

    def feed(self, block: bytes) -> None:
        """Only a hungry decoder is fed."""
        self._input, self._at = block, 0
        self._fed += len(block)

    def take(self, size: int) -> bytes:
        """The next bytes of the text: about `size`, and fewer where much input makes little text. Raises GatewayError:
        BAD_REQUEST for what the coding does not allow, TOO_LARGE for a text beyond the bounds."""
        parts, made, feeds = [], 0, 0
        while made < size and feeds < _MOST_FEEDS and not self.hungry:
            if self._engine.eof:
                self._next_member()
            data = b""
            if self._engine.needs_input:
                data = self._input[self._at : self._at + _FEED]
                self._at += len(data)
                feeds += 1
            part = self._decompress(data, size - made)
            made += len(part)
            parts.append(part)
            if self._engine.eof:
                self._at -= len(self._engine.unused_data)
        self._made += made
        if self._made > self._most:
            raise GatewayError(Kind.TOO_LARGE, f"the request body expands to more than {self._most} bytes")
        if self._made > max(_SHORT, _MOST_RATIO * self._fed):
            message = f"the request body expands to more than {_MOST_RATIO} times its size"
            raise GatewayError(Kind.TOO_LARGE, message, code="body_too_dense")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def end(self) -> None:
        """The body is over. Raises GatewayError(BAD_REQUEST) if it is cut short."""
        if not self._engine.eof:
            raise self._malformed("ends too early")

    def _decompress(self, data: bytes, most: int) -> bytes:
        try:
            return self._engine.decompress(data, most)
        except Exception as error:  # each library has an exception of its own
            raise self._malformed("is malformed") from error

    def _next_member(self) -> None:
        self._members += 1
        if not self._several or self._members > _MOST_MEMBERS:
            raise self._malformed("has bytes behind its end" if not self._several else "has too many members")
        self._engine = self._begin()

    def _malformed(self, why: str) -> GatewayError:
        message = f"the request body, by its header content-encoding {self._coding}, {why}"
        return GatewayError(Kind.BAD_REQUEST, message, code="invalid_content_encoding")
