"""Server-sent events: bytes to frames (WHATWG HTML §9.2.6, "interpreting an event stream"), and frames to bytes.

Works on bytes only, so lines end at CR, LF and CRLF, never at U+2028 or U+0085.
"""

from __future__ import annotations

from msgspec import Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers

MAX_FRAME = 8 * 1024 * 1024
# The most lines of an event above _FEW_BYTES. Events of servers have a few; a million takes half a second.
_MOST_LINES = 4096
_FEW_BYTES = 1 << 16
_BOM = b"\xef\xbb\xbf"
_KEEPALIVES = frozenset({b"ping", b"keepalive", b"keep-alive", b"heartbeat"})
"""Types of events by which servers keep a stream alive."""


class Frame(Struct):
    """One dispatched event: `data` lines joined by LF; `event` is b"" for the default type."""

    data: bytes
    event: bytes = b""

    @property
    def silent(self) -> bool:
        """True for an event that only keeps the stream alive: by its type, without data, or with a comment as data."""
        data = self.data
        if data[:1] == b"{" and not self.event:
            return False  # nearly every event
        return not data.strip() or data[:1] == b":" or self.event in _KEEPALIVES


class Reader:
    """Takes blocks cut anywhere and returns whole frames. An unfinished frame at the end is never returned, as the
    standard requires. Raises GatewayError(UPSTREAM) if one frame exceeds `max_frame` bytes, or has too many lines.

    idle: nothing is buffered, so the next block begins a frame.
    """

    __slots__ = ("_at_start", "_cr", "_max", "_tail", "idle")

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.idle = False
        self._tail = bytearray()
        self._cr = False
        self._at_start = True
        self._max = max_frame

    def feed(self, block: bytes) -> list[Frame]:
        # Nearly every block of a real stream consists of whole single-line frames: one split, no copy.
        # (Searching for a byte by its number is several times faster than for a bytes object of length one.)
        if self.idle and block.endswith(b"\n\n") and 13 not in block:
            frames = []
            for piece in block[:-2].split(b"\n\n"):
                if piece.startswith(b"data: ") and 10 not in piece:
                    frames.append(Frame(piece[6:]))
                else:
                    self._parse(piece, frames)
            return frames
        return self._feed_slow(block)

    def _feed_slow(self, block: bytes) -> list[Frame]:
        if self._at_start:
            block = bytes(self._tail) + block
            self._tail.clear()
            if len(block) < 3 and _BOM.startswith(block):
                self._tail += block
                return []
            self._at_start = False
            block = block.removeprefix(_BOM)
        if self._cr and block:
            self._cr = False
            block = block.removeprefix(b"\n")
        if 13 in block:
            self._cr = block.endswith(b"\r")
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        searched = len(self._tail)
        self._tail += block
        frames: list[Frame] = []
        start = 0
        search = max(0, searched - 1)
        while (end := self._tail.find(b"\n\n", search)) >= 0:
            self._parse(bytes(self._tail[start:end]), frames)
            start = search = end + 2
        if start:
            del self._tail[:start]
        if len(self._tail) > self._max:
            raise self._malformed("that never ends")
        self.idle = not (self._tail or self._cr or self._at_start)
        return frames

    def _malformed(self, what: str) -> GatewayError:
        self._tail.clear()  # the error's traceback may keep this reader for a while
        return GatewayError(Kind.UPSTREAM, f"the worker sent an event {what}", code="upstream_malformed")

    def _parse(self, piece: bytes, frames: list[Frame]) -> None:
        if len(piece) > _FEW_BYTES and piece.count(b"\n") >= _MOST_LINES:
            del piece  # likewise
            raise self._malformed("of too many lines")
        data: list[bytes] = []
        event = b""
        for line in piece.split(b"\n"):
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                data.append(value)
            elif name == b"event":
                event = value
        if data:
            frames.append(Frame(b"\n".join(data), event))


def frame(data: bytes, event: bytes = b"") -> bytes:
    """One frame as bytes, with LF only and exactly one space: azure-ai-inference rejects anything else. `data` must be
    one line."""
    if event:
        return b"event: " + event + b"\ndata: " + data + b"\n\n"
    return b"data: " + data + b"\n\n"


# A bare newline between events is the only keep-alive that works with every measured client: SSE comments raise an
# error in azure-ai-inference 1.0.0b9 and friendli-client 1.5.8.
KEEPALIVE = b"\n"
# X-Accel-Buffering tells an nginx in front to pass chunks on without buffering.
HEADERS: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
DONE = b"data: [DONE]\n\n"
