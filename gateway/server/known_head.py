"""The head of a client's last request, kept so that the same head is not parsed again.

Clients send the same head with every request on a connection, but for the digits of Content-Length. Parsing it,
checking it and making a scope of it is a tenth of what a plain request costs, and more with the dozen fields that a
vendor's client adds (docs/performance.md). Bytes that are equal to those that passed every check pass them again.
"""

from __future__ import annotations

import re
from typing import Any

from gateway.config import Listen
from gateway.core.http import HEAD_CACHE, HeadCache, Headers

LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,9})\r\n", re.IGNORECASE)
_MOST_DIGITS = 9


class KnownHead:
    """One head that was parsed and found good, and belongs to a request whose connection is kept.

    listen  the bounds that it was checked against
    """

    __slots__ = ("_after", "_at", "_before", "_headers", "_scope", "listen")

    def __init__(self, before: bytes, after: bytes, at: int, scope: dict[str, Any], listen: Listen) -> None:
        self.listen = listen
        self._before = before
        self._after = after
        self._at = at
        self._headers: Headers = scope["headers"]
        self._scope = {name: value for name, value in scope.items() if name not in ("headers", "extensions")}
        self._scope[HEAD_CACHE] = scope[HEAD_CACHE] = HeadCache()

    @classmethod
    def of(cls, message: bytes, scope: dict[str, Any], listen: Listen) -> KnownHead | None:
        """The head of `message`, a whole request whose body has a Content-Length; None of any other."""
        end = message.index(b"\r\n\r\n") + 4
        length = LENGTH.search(message, 0, end - 2)
        if length is None or end + _MOST_DIGITS > listen.max_header_bytes:
            return None
        at = next(index for index, (name, _) in enumerate(scope["headers"]) if name == b"content-length")
        return cls(message[: length.start(1)], message[length.end(1) : end], at, scope, listen)

    def read(self, data: bytes) -> tuple[dict[str, Any], bytes] | None:
        """The scope and the body of `data` if that is one whole request with this head; else None."""
        before, after = self._before, self._after
        if not data.startswith(before):
            return None
        start = len(before)
        end = data.find(b"\r", start, start + _MOST_DIGITS + 1)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(after, end):
            return None
        body = data[end + len(after) :]
        if len(body) != int(digits):
            return None
        headers = self._headers.copy()
        headers[self._at] = (b"content-length", digits)
        scope = self._scope.copy()
        scope["headers"] = headers
        return scope, body
