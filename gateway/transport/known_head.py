"""The head of a worker's last whole reply, kept so that the same head is not parsed again: see `server.known_head`.

A worker sends the same head with every whole reply, but for the digits of Content-Length and the time in Date. Bytes
that are equal to those that passed every check pass them again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic

from gateway.core.http import Headers

_HOLES = re.compile(rb"\r\n(content-length|date): *([!-~][ -~]*)(?=\r\n)", re.IGNORECASE)
_VALUES = {b"content-length": rb"([0-9]{1,8})", b"date": rb"([!-~][ -~]{27}[!-~])"}
_FRAMED = ([b"content-length"], [b"content-length", b"date"])
_NOTHING = re.compile(rb"(?!)").match
_LONGEST = 2048
"""The longest head that is learnt: its pattern is compiled on the event loop."""
_LESSONS, _LESSON_S = 8, 10.0
"""The most heads of one worker that are learnt at once, and the seconds until one more may be: heads that differ from
reply to reply, as by an id, are left to the parser."""


class KnownHead:
    """The head of one worker's whole replies with status 200, whose connection is kept. learnt: there is one."""

    __slots__ = ("_fields", "_headers", "_learnt_at", "_length", "_lessons", "_match", "learnt")

    def __init__(self) -> None:
        self.learnt = False
        self._lessons, self._learnt_at = float(_LESSONS), 0.0
        self._match: Callable[[bytes], re.Match[bytes] | None] = _NOTHING
        self._headers: Headers = []
        self._length = 0  # which hole is that of Content-Length
        self._fields: list[tuple[int, bytes, int]] = []  # of each hole: its index in the headers, name and number

    def learn(self, data: bytes, headers: Headers) -> None:
        """Keeps the head of `data`, one whole reply that was parsed as `headers`, if a Content-Length frames it."""
        end, now = data.find(b"\r\n\r\n") + 4, monotonic()
        lessons = min(_LESSONS, self._lessons + (now - self._learnt_at) / _LESSON_S) - 1
        if end > _LONGEST or lessons < 0:
            return
        holes = list(_HOLES.finditer(data, 0, end))
        found = [hole[1].lower() for hole in holes]
        names = [name for name, _ in headers]
        if sorted(found) not in _FRAMED or not set(names).issuperset(found):
            return
        pattern, at = b"", 0
        for name, hole in zip(found, holes, strict=True):
            pattern += re.escape(data[at : hole.start(2)]) + _VALUES[name]
            at = hole.end(2)
        self._fields = [(names.index(name), name, number) for number, name in enumerate(found, 1)]
        self._length = found.index(b"content-length") + 1
        self._match = re.compile(pattern + re.escape(data[at:end])).match
        self._headers = headers.copy()
        # An interim reply before it, say, is not what the parser reported.
        self.learnt = self.read(data) == (headers, data[end:])
        self._lessons, self._learnt_at = lessons, now

    def read(self, data: bytes) -> tuple[Headers, bytes] | None:
        """The headers and the body of `data` if that is one whole reply with the head that was learnt; else None."""
        found = self._match(data)
        if found is None:
            return None
        body = data[found.end() :]
        if len(body) != int(found[self._length]):
            return None
        headers = self._headers.copy()
        for index, name, number in self._fields:
            headers[index] = (name, found[number])
        return headers, body
