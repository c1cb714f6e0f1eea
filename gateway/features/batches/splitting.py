"""The requests in the body of a batch of Anthropic's API, one after the other, as the body comes.

The body is `{"requests": [{...}, ...]}` and may be hundreds of megabytes. Nothing of it is kept but the request that is
being read. The items are not read here: their ends are found by their brackets and strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate, islice

from gateway.core.errors import GatewayError, Kind

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_STRINGS = re.compile(_STRING, re.DOTALL)
# All up to the string that has not ended; up to the next bracket outside of a string, too; the rest of such a string.
_OUTSIDE = re.compile(rb'(?:[^"]++|%b)*+' % _STRING, re.DOTALL)
_BEFORE = re.compile(rb'(?:[^"{}\[\]]++|%b)*+' % _STRING, re.DOTALL)
_INSIDE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_TOKEN = re.compile(rb"%b|([{}\[\]])" % _STRING, re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_STEPS = [1 if byte in b"{[" else -1 for byte in range(256)]
_SINGLY = 16
"""Brackets that are looked at one by one, as an ordinary item has few of them."""
_LEAST, _MOST = 256, 1 << 16
"""Bytes of the pieces in which the rest is looked through, which grow: few of them are behind the end of the item."""
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
        rest, at, size, singly = self._rest, self._at, _LEAST, _SINGLY
        while at < len(rest):
            if self._in_string:
                found = _INSIDE.match(rest, at)
                assert found is not None  # it matches nothing, too
                at = found.end()
                if at == len(rest) or rest[at] == ord("\\"):
                    break
                self._in_string = False
                at += 1
            if singly:
                singly -= 1
                found = _BEFORE.match(rest, at)
                assert found is not None
                at = found.end()
                if at == len(rest):
                    break
                self._in_string = rest[at] == ord('"')
                self._depth += 0 if self._in_string else _STEPS[rest[at]]
                at += 1
                if not self._depth:
                    return at
                continue
            found = _OUTSIDE.match(rest, at, at + size)
            assert found is not None
            end = self._closed(found[0])
            if end is not None:
                return at + end
            self._in_string = found.end() < min(at + size, len(rest))
            at = found.end() + self._in_string
            size = min(2 * size, _MOST)
        self._at = at
        return None

    def _closed(self, piece: bytes) -> int | None:
        """The end of the item in a piece of it, whose strings are whole; None if it does not end there."""
        if not piece.translate(None, _NO_BRACKETS):
            return None
        brackets = _STRINGS.sub(b"", piece).translate(None, _NO_BRACKETS)
        closing = brackets.count(b"}") + brackets.count(b"]")
        if self._depth > closing:
            self._depth += len(brackets) - 2 * closing
            return None
        depths = list(accumulate(map(_STEPS.__getitem__, brackets), initial=self._depth))
        if 0 not in depths[1:]:
            self._depth = depths[-1]
            return None
        found = (one.end() for one in _TOKEN.finditer(piece) if one[1])
        return next(islice(found, depths.index(0, 1) - 1, None))


def _wrong() -> GatewayError:
    message = 'the request body must be {"requests": [...]}, a list of objects and nothing else'
    return GatewayError(Kind.BAD_REQUEST, message, param="requests")


def _too_large(most: int) -> GatewayError:
    return GatewayError(Kind.TOO_LARGE, f"one of the requests has more than {most} bytes", param="requests")
