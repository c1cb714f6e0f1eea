"""The transcript of one request of the playground: a line for each thing that a side sent or got.

The lines are JSON, one a line, and go to the page while the request runs. The bytes that are held for a page that reads
slowly, and those that are shown at all, are bounded; bytes beyond are counted only.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from typing import Literal

import msgspec
from msgspec import Struct

SHOWN_BYTES = 262144
"""Most bytes that are shown of what the client got, and as many of what workers were sent and answered."""
_LINE_BYTES = 96  # about what a line takes besides its text
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127) if chr(code) not in "\t\n\r"}

Side = Literal["client", "worker"]
_decoder = codecs.getincrementaldecoder("utf-8")
_encode = msgspec.json.Encoder().encode


class Line(Struct, omit_defaults=True):
    """One line.

    side     whose wire it is
    what     request | head | data | end
    ms       since the request began
    text     of a request its body, of data what came, of an end that is not orderly why
    unshown  at an end: bytes of this side that were left out
    """

    side: Side
    what: Literal["request", "head", "data", "end"]
    ms: int
    address: str = ""
    method: str = ""
    path: str = ""
    status: int = 0
    headers: list[tuple[str, str]] = []
    text: str = ""
    unshown: int = 0


class Transcript:
    """secrets holds what is never shown, wherever it stands; it may grow until the first worker is asked."""

    def __init__(self) -> None:
        self.secrets: list[bytes] = []
        self._began = time.monotonic()
        self._lines: list[Line] = []
        self._left: dict[Side, int] = {"client": SHOWN_BYTES, "worker": SHOWN_BYTES}
        self._unshown: dict[Side, int] = {"client": 0, "worker": 0}
        self._decoders: dict[Side, codecs.IncrementalDecoder] = {}
        self._wake = asyncio.Event()

    def request(self, address: str, method: str, path: str, body: bytes) -> None:
        """A worker is sent a request."""
        self._decoders.pop("worker", None)
        shown = self._allowed("worker", body)
        line = Line("worker", "request", self._ms(), address=address, method=method, path=path)
        line.text = shown.decode("utf-8", "backslashreplace").translate(_CONTROLS)
        self._add(line)

    def head(self, side: Side, status: int, headers: list[tuple[str, str]]) -> None:
        """A reply begins: what the client gets, or what a worker answers."""
        self._decoders[side] = _decoder("backslashreplace")
        self._add(Line(side, "head", self._ms(), status=status, headers=headers))

    def data(self, side: Side, data: bytes) -> None:
        """A piece of a reply. It joins the piece before it while the page has not taken that yet."""
        last = self._lines[-1] if self._lines else None
        joins = last is not None and last.side == side and last.what == "data"
        shown = self._allowed(side, data, 0 if joins else _LINE_BYTES)
        # Two workers may be under way at once, and one of them has ended: what the other sends is still text.
        decoder = self._decoders.get(side)
        if decoder is None:
            decoder = self._decoders[side] = _decoder("backslashreplace")
        text = decoder.decode(shown).translate(_CONTROLS)
        if not text:
            return
        if joins and last is not None:
            last.text += text
            self._wake.set()
        else:
            self._add(Line(side, "data", self._ms(), text=text))

    def end(self, side: Side, why: str = "") -> None:
        """A reply is over; why is "" when it is whole."""
        decoder = self._decoders.pop(side, None)
        rest = decoder.decode(b"", True) if decoder is not None else ""
        if rest:
            self._add(Line(side, "data", self._ms(), text=rest))
        self._add(Line(side, "end", self._ms(), text=why, unshown=self._unshown[side]))
        self._unshown[side] = 0

    async def take(self) -> bytes:
        """The lines that are new, as soon as there are some."""
        await self._wake.wait()
        return self.rest()

    def rest(self) -> bytes:
        """The lines that are new."""
        self._wake.clear()
        lines, self._lines = self._lines, []
        return b"".join(_encode(line) + b"\n" for line in lines)

    def wake(self) -> None:
        """Makes `take` return, with or without new lines."""
        self._wake.set()

    def _add(self, line: Line) -> None:
        self._lines.append(line)
        self._wake.set()

    def _allowed(self, side: Side, data: bytes, more: int = 0) -> bytes:
        for secret in self.secrets:
            data = data.replace(secret, b"...")
        room = max(0, self._left[side] - more)
        shown = data[:room]
        self._left[side] = room - len(shown)
        self._unshown[side] += len(data) - len(shown)
        return shown

    def _ms(self) -> int:
        return round((time.monotonic() - self._began) * 1000)
