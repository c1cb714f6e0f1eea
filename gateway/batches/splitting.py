"""The requests in the body of a batch of Anthropic's API, one after the other, as the body comes.

The body is `{"requests": [{...}, ...]}` and may be hundreds of megabytes. Nothing of it is kept but the request that is
being read. The items are not read here: their ends are found by their brackets and strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.core.errors import GatewayError, Kind

# The bytes that matter outside of a string, and in one.
_OUTSIDE = re.compile(rb'["{}\[\]]')
_INSIDE = re.compile(rb'["\\]')
_HEAD = re.compile(rb'\s*\{\s*"requests"\s*:\s*\[')
_TAIL = re.compile(rb"\s*\}\s*\Z")
_GAP = re.compile(rb"\s*,?\s*")
_MOST_HEAD = 1024


class Splitter:
    """most: bytes of one request. Raises GatewayError: BAD_REQUEST, TOO_LARGE."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rest = bytearray()
        self._at = 0  # all before it in `_rest` was looked at
        self._state = "head"
        self._depth = 0
        self._in_string = False
        self._first = True

    def feed(self, block: bytes) -> Iterator[bytes]:
        """The requests that are whole by now. Use all of them before the next block."""
        self._rest += block
        if self._state == "head":
            found = _HEAD.match(self._rest)
            if found is None:
                if len(self._rest) > _MOST_HEAD:
                    raise _wrong()
                return
            del self._rest[: found.end()]
            self._state = "between"
        while self._state in ("between", "item"):
            if self._state == "between" and not self._begin():
                return
            if self._state == "item":
                end = self._end()
                if end is None:
                    if len(self._rest) > self._most:
                        raise _too_large(self._most)
                    return
                if end > self._most:
                    raise _too_large(self._most)
                item = bytes(self._rest[:end])
                del self._rest[:end]
                self._at, self._state, self._first = 0, "between", False
                yield item
        if self._state == "tail" and len(self._rest) > _MOST_HEAD:
            raise _wrong()

    def end(self) -> None:
        """The body has ended. Raises GatewayError unless it was whole."""
        if self._state != "tail" or not _TAIL.match(self._rest):
            raise _wrong()

    def _begin(self) -> bool:
        """Whether there is more to do: an item begins, or the list is over."""
        found = _GAP.match(self._rest)
        assert found is not None  # it matches nothing, too
        if found.end() == len(self._rest):
            if len(self._rest) > _MOST_HEAD:
                raise _wrong()
            return False
        comma, next_ = b"," in found[0], self._rest[found.end()]
        if next_ == ord("]") and not comma:
            del self._rest[: found.end() + 1]
            self._state = "tail"
        elif next_ == ord("{") and comma != self._first:
            del self._rest[: found.end()]
            self._state, self._at, self._depth, self._in_string = "item", 0, 0, False
        else:
            raise _wrong()
        return True

    def _end(self) -> int | None:
        """The end of the item with which the rest begins; None if it has not come yet."""
        rest, at = self._rest, self._at
        while True:
            found = (_INSIDE if self._in_string else _OUTSIDE).search(rest, at)
            if found is None:
                self._at = len(rest)
                return None
            at, byte = found.end(), found[0]
            if byte == b"\\":
                if at == len(rest):
                    self._at = at - 1
                    return None
                at += 1
            elif byte == b'"':
                self._in_string = not self._in_string
            elif byte in b"{[":
                self._depth += 1
            else:
                self._depth -= 1
                if not self._depth:
                    return at


def _wrong() -> GatewayError:
    message = 'the request body must be {"requests": [...]}, a list of objects and nothing else'
    return GatewayError(Kind.BAD_REQUEST, message, param="requests")


def _too_large(most: int) -> GatewayError:
    return GatewayError(Kind.TOO_LARGE, f"one of the requests has more than {most} bytes", param="requests")
