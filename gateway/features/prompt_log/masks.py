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
_KEYS = 16_000
"""Characters that are searched for keys at once."""
_BREAKS = re.compile(r"[\s\"',]")
_DIGIT = re.compile(r"[0-9]")


class TooLong(Exception):
    """The texts of one request took too long to mask."""


class _Mask(NamedTuple):
    """holds: whether a match is what the mask is for."""

    name: str
    pattern: re.Pattern[str]
    holds: Callable[[str], bool] = lambda found: True


def _is_card(text: str) -> bool:
    """Luhn's checksum, by which card numbers are made (ISO/IEC 7812-1)."""
    digits = [int(digit) for digit in reversed(_DIGIT.findall(text))]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


_BUILT_IN = {
    "email": _Mask(
        "email",
        re.compile(
            r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,48}(?:\.[A-Za-z0-9-]{1,32}){1,4}(?![A-Za-z0-9-])"
        ),
    ),
    "card": _Mask("card", re.compile(r"(?<![0-9])[0-9](?:[ -]?[0-9]){12,18}(?![0-9])"), _is_card),
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
            if end < len(text):  # no key is split: none has such a character
                end = max((found.end() for found in _BREAKS.finditer(text, end - 1000, end)), default=end)
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
            begin = max(found.end(), found.start() + 1)
            if mask.holds(found[0]):
                self.count += 1
                yield text[done : found.start()]
                yield f"[{mask.name}]"
                done = begin
        yield text[done:]

    def _look(self) -> None:
        if time.thread_time() > self._until:
            raise TooLong
