"""A tokenizer without a vocabulary: reversible, the same in every process, and counted in constant time.

A token is a run of up to four ASCII characters, or one character outside ASCII. Its id holds the characters themselves:

* 1 to 4 ASCII characters: a leading 1 bit, then 7 bits a character (so 128..255, 2**14.., 2**21.., 2**28..);
* another character: 2**22 + its code point.

Ids fit in 31 bits. Ids below 128 are special (`EOS` ends a reply) and decode to nothing, as do ids that no text has.
Text is cut from its start, so equal prefixes give equal tokens, which is what the prefix cache needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

EOS = 2
CHARS = 4
_WIDE = 1 << 22
_PIECE = re.compile(r"[\x00-\x7f]{1,4}|[^\x00-\x7f]")
_LENGTH = {8: 1, 15: 2, 22: 3, 29: 4}


def split(text: str) -> list[str]:
    """The pieces of `text`, one a token; joined they are `text` again."""
    if text.isascii():
        return [text[i : i + CHARS] for i in range(0, len(text), CHARS)]
    return _PIECE.findall(text)


def count(text: str) -> int:
    """How many tokens `text` has, without making them when it is ASCII."""
    if text.isascii():
        return (len(text) + CHARS - 1) // CHARS
    return len(_PIECE.findall(text))


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
