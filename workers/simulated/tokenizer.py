"""A tokenizer without a vocabulary: the same in every process, and counted in constant time.

A token is a run of up to four ASCII characters, or one character outside ASCII. Text is cut from its start, so equal
prefixes give equal tokens, as the prefix cache needs it.
"""

from __future__ import annotations

import re

CHARS = 4
_PIECE = re.compile(r"[\x00-\x7f]{1,4}|[^\x00-\x7f]")


def split(text: str) -> list[str]:
    """The pieces of `text`, one a token; joined they are `text` again."""
    return _PIECE.findall(text)


def count(text: str) -> int:
    """How many tokens `text` has, without making them when it is ASCII."""
    return (len(text) + CHARS - 1) // CHARS if text.isascii() else len(_PIECE.findall(text))
