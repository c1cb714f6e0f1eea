"""Takes keys and what an operator wants masked out of texts. A mask knows forms and not meanings: a name, an address or
a number in words stays."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gateway.auth import KnownKeys
from gateway.config.prompt_log import PromptLog
from gateway.config.prompt_log_checks import MOST_WIDTH

_WINDOW = 512
"""Characters in which a match may begin before the time is looked at: one search holds the interpreter."""
_LONGEST_S = 0.25
_SHORTEST_CARD = 13
_KEYS = 16_000
"""Characters that are searched for keys at once."""
# No key has such a character: those that stand least likely in one first.
_BREAKS = tuple(map(re.compile, (r"[\s\"',]", r"[^A-Za-z0-9_.+/=~-]", r"[+/=~]")))


class TooLong(Exception):
    """The texts of one request took too long to mask."""


class _Mask(NamedTuple):
    """covers: how many characters of a match are what the mask is for; 0 for none. overlap: a match may begin within
    another one."""

    name: str
    pattern: re.Pattern[str]
    covers: Callable[[str], int] = len
    overlap: bool = False


_DOUBLED = tuple(sum(divmod(2 * digit, 10)) for digit in range(10))


def _card(text: str) -> int:
    """Characters of the longest card number that begins here, by Luhn's checksum (ISO/IEC 7812-1); 0 for none. Other
    numbers may follow it, as a day or a code does."""
    end = count = even = odd = 0
    for place, character in enumerate(text, 1):
        if not "0" <= character <= "9":
            continue
        digit, count = ord(character) - ord("0"), count + 1
        # Each second digit from the last one is doubled: of an even count those that stand first, third, ...
        even, odd = (even + _DOUBLED[digit], odd + digit) if count % 2 else (even + digit, odd + _DOUBLED[digit])
        whole = count >= _SHORTEST_CARD and not text[place : place + 1].isdigit()
        if whole and (odd if count % 2 else even) % 10 == 0:
            end = place
    return end


_BUILT_IN = {
    "email": _Mask(
        "email",
        # Text of any length may stand before and behind an address without a gap.
        re.compile(r"[A-Za-z0-9._%+-]{1,64}+@[A-Za-z0-9-]{1,48}+(?:\.[A-Za-z0-9-]{1,32}+){1,4}"),
    ),
    "card": _Mask("card", re.compile(r"(?<![0-9])[0-9](?:[ -]?[0-9]){12,18}(?![0-9])"), _card, True),
}


class Masks:
    """known: the gateway's keys."""

    def __init__(self, options: PromptLog, known: KnownKeys) -> None:
        self._known = known
        self._masks = [_BUILT_IN[name] for name in options.mask]
        self._masks += [_Mask(name, re.compile(pattern)) for name, pattern in options.patterns.items()]

    def begin(self) -> Masking:
        """For the texts of one request."""
        return Masking(self._known, self._masks)


class Masking:
    """count: how many texts were masked so far."""

    def __init__(self, known: KnownKeys, masks: list[_Mask]) -> None:
        self.count = 0
        self._known = known
        self._masks = masks
        self._until = time.thread_time() + _LONGEST_S

    def masked(self, text: str) -> str:
        """`text` with `***` for each key, and the name of the mask in brackets for each of its matches. Raises
        TooLong."""
        text = "".join(self._without_keys(text))
        for mask in self._masks:
            text = "".join(self._replaced(mask, text))
        return text

    def _without_keys(self, text: str) -> Iterator[str]:
        begin = 0
        while begin < len(text):
            self._look()
            end = begin + _KEYS
            if end < len(text):  # no key is split
                ends = (
                    max((found.end() for found in one.finditer(text, end - 1000, end)), default=0) for one in _BREAKS
                )
                end = next(filter(None, ends), end)
            piece = text[begin:end]
            masked = self._known.masked(piece, [])
            self.count += piece != masked
            yield masked
            begin = end

    def _replaced(self, mask: _Mask, text: str) -> Iterator[str]:
        done = begin = 0
        while begin < len(text):
            self._look()
            end = begin + _WINDOW
            found = mask.pattern.search(text, begin, end + MOST_WIDTH + 1)
            if found is None or found.start() >= end:
                begin = end
                continue
            start, covered = found.start(), mask.covers(found[0])
            begin = start + 1 if mask.overlap else found.end()
            if covered and start >= done:
                self.count += 1
                yield text[done:start]
                yield f"[{mask.name}]"
            done = max(done, start + covered) if covered else done
        yield text[done:]

    def _look(self) -> None:
        if time.thread_time() > self._until:
            raise TooLong
