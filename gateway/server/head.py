"""Response heads: status lines, the Date field, and the check that no field can forge a line."""

from __future__ import annotations

import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from gateway.core.http import Headers


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}".encode()


_STATUS_LINES = {status: _status_line(status) for status in range(100, 600)}


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    """The Date field: formatting it costs more than the rest of a head."""
    return b"date: " + formatdate(second, usegmt=True).encode()


def response_head(status: int, headers: Headers, *more: bytes) -> bytes:
    """A response head: the status line, Date, `headers`, the whole lines `more`, and the empty line.

    Raises ValueError when a field holds a line ending, KeyError when status is not in 100 to 599.
    """
    lines = [_STATUS_LINES[status], _date(int(time.time())), *map(b": ".join, headers), *more]
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    if head.count(b"\n") != len(lines) + 1 or head.count(b"\r") != len(lines) + 1:
        raise ValueError("a response header holds a line ending")
    return head
