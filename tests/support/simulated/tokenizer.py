"""The tokenizer, and its reversible ids.

An id holds the characters of its token: for ASCII a leading 1 bit, then 7 bits a character (so 128..255, 2**14..,
2**21.., 2**28..); for another character 2**22 + its code point. Ids fit in 31 bits. Ids below 128 are special (`EOS`
ends a reply) and decode to nothing, as do ids that no text has.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from workers.simulated.tokenizer import CHARS, count, split

__all__ = ["CHARS", "EOS", "count", "decode", "encode", "piece", "split", "token_id"]

EOS = 2
_WIDE = 1 << 22
_LENGTH = {8: 1, 15: 2, 22: 3, 29: 4}


@lru_cache(maxsize=8192)
def token_id(piece: str) -> int:
    """The id of one piece as `split` makes them."""
    if len(piece) == 1 and ord(piece) > 127:
        return _WIDE + ord(piece)
    value = 1
    for byte in piece.encode("ascii"):
        value = value << 7 | byte
    return value


def encode(text: str) -> list[int]:
    """Text to token ids."""
    return [token_id(piece) for piece in split(text)]


@lru_cache(maxsize=8192)
def piece(token: int) -> str:
    """The text of one token; empty for special ids and for ids that no text has."""
    if _WIDE <= token < _WIDE + 0x110000:
        return chr(token - _WIDE)
    length = _LENGTH.get(token.bit_length())
    if length is None or token < 128:
        return ""
    return "".join(chr(token >> 7 * (length - 1 - i) & 127) for i in range(length))


def decode(tokens: Iterable[int]) -> str:
    """Token ids to text."""
    return "".join(map(piece, tokens))
