"""Response heads: status lines, the Date field, and the check that no field can forge a line."""

from __future__ import annotations

import time
from email.utils import formatdate
from http import HTTPStatus

from gateway.core.http import Headers


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}".encode()


_STATUS_LINES = {status: _status_line(status) for status in range(100, 600)}


class _Clock:
    """The Date field of the current second: formatting it costs more than the rest of a head."""

    def __init__(self) -> None:
        self._second = -1
        self._line = b""

    def line(self) -> bytes:
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._line = b"date: " + formatdate(now, usegmt=True).encode()
        return self._line


_CLOCK = _Clock()


def response_head(status: int, headers: Headers, *more: bytes) -> bytes:
    """A response head: the status line, Date, `headers`, the whole lines `more`, and the empty line.

    Raises ValueError when a field holds a line ending, KeyError when status is not in 100 to 599.
    """
    lines = [_STATUS_LINES[status], _CLOCK.line(), *map(b": ".join, headers), *more]
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    if head.count(b"\n") != len(lines) + 1 or head.count(b"\r") != len(lines) + 1:
        raise ValueError("a response header holds a line ending")
    return head
