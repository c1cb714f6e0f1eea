"""Spans of tokens in their text, for engines that return only how their vocabulary spells each token.

Byte-level vocabularies (GPT-2, Llama 3, Qwen) show bytes as letters, those of SentencePiece (Llama 2, Mistral) a space
as `▁` and a byte as `<0x0A>`; llama.cpp returns the bytes themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Spans = tuple[tuple[int, int], ...]
"""(start, end) of each token, in characters. A special token stands nowhere: both are equal."""
_SHOWN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_LETTERS = {chr(byte): byte for byte in _SHOWN}
_LETTERS |= {chr(256 + at): byte for at, byte in enumerate(sorted({*range(256)} - {*_SHOWN}))}
"""Each byte as GPT-2's vocabulary shows it: itself if it can be seen, else a letter from U+0100 on."""
_BYTE = re.compile(r"<0x([0-9A-F]{2})>\Z")


def spans_of(text: str, pieces: Sequence[str | bytes]) -> Spans | None:
    """The spans of `pieces`, the tokens of `text` in their order. None if they are not the text, as those of a
    tokenizer that changes letters."""
    data = text.encode("utf-8", "surrogatepass")
    for spell in (_of_letters, _of_marks, _plain):
        found = _spans(data, pieces, spell)
        if found is not None:
            return found
    # SentencePiece puts a space before a text.
    found = _spans(b" " + data, pieces, _of_marks)
    return tuple([(max(0, start - 1), max(0, end - 1)) for start, end in found]) if found is not None else None


def _of_letters(piece: str) -> bytes:
    try:
        return bytes([_LETTERS[letter] for letter in piece])
    except KeyError:
        return b""


def _of_marks(piece: str) -> bytes:
    byte = _BYTE.match(piece)
    return bytes.fromhex(byte[1]) if byte else piece.replace("▁", " ").encode("utf-8", "surrogatepass")


def _plain(piece: str) -> bytes:
    return piece.encode("utf-8", "surrogatepass")


def _spans(data: bytes, pieces: Sequence[str | bytes], spell: Callable[[str], bytes]) -> Spans | None:
    found = []
    at = characters = 0  # characters that begin before `at`
    for piece in pieces:
        spelling = piece if isinstance(piece, bytes) else spell(piece)
        if not spelling or not data.startswith(spelling, at):
            found.append((characters, characters))
            continue
        # A token may begin or end within a character, which is then a part of it.
        begins = sum(byte & 0xC0 != 0x80 for byte in spelling)
        start = characters - (spelling[0] & 0xC0 == 0x80)
        at, characters = at + len(spelling), characters + begins
        found.append((start, characters))
    return tuple(found) if at == len(data) else None
