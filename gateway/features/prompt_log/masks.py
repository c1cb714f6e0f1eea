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
# No key has such a character: those that stand least likely in one first.
_BREAKS = tuple(map(re.compile, (r"[\s\"',]", r"[^A-Za-z0-9_.+/=~-]", r"[+/=~]")))


class TooLong(Exception):
    """The texts of one request took too long to mask."""


Spans = Callable[[str, Callable[[], None]], Iterator[tuple[int, int]]]
"""Returns where matches are in a text, by their begins; calls the function often, which raises TooLong."""


class _Mask(NamedTuple):
    name: str
    spans: Spans


def _matches(pattern: re.Pattern[str]) -> Spans:
    def spans(text: str, look: Callable[[], None]) -> Iterator[tuple[int, int]]:
        begin = 0
        while begin < len(text):
            look()
            end = begin + _WINDOW
            found = pattern.search(text, begin, end + MOST_WIDTH + 1)
            if found is None or found.start() >= end:
                begin = end
            else:
                yield found.span()
                begin = found.end()

    return spans


_DIGITS = re.compile(r"[0-9](?:[ -]?[0-9]){12,}")
_CARD = range(13, 20)
_DOUBLED = tuple(sum(divmod(2 * digit, 10)) for digit in range(10))


def _cards(text: str, look: Callable[[], None]) -> Iterator[tuple[int, int]]:
    """Card numbers, by Luhn's checksum (ISO/IEC 7812-1). Other numbers may stand beside one, as a day or a code does.
    So each group of digits is taken for its first, and for its last."""
    for run in _DIGITS.finditer(text):
        look()
        positions = [position for position, character in enumerate(run[0], run.start()) if character not in " -"]
        # Each second digit from the last one is doubled. The sums up to a position, for a last one of either parity.
        sums: tuple[list[int], list[int]] = ([0], [0])
        for count, position in enumerate(positions):
            digit = int(text[position])
            sums[count % 2].append(sums[count % 2][-1] + digit)
            sums[1 - count % 2].append(sums[1 - count % 2][-1] + _DOUBLED[digit])
        last = len(positions) - 1
        for first, position in enumerate(positions):
            if first and positions[first - 1] == position - 1:
                continue
            if not first % _WINDOW:
                look()
            for end in range(first + _CARD.start, min(first + _CARD.stop, last + 2)):
                upto = sums[(end - 1) % 2]
                whole = end > last or positions[end] > positions[end - 1] + 1
                if whole and (upto[end] - upto[first]) % 10 == 0:
                    yield position, positions[end - 1] + 1


_BUILT_IN = {
    # Text of any length may stand before and behind an address without a gap.
    "email": _Mask(
        "email",
        _matches(re.compile(r"[A-Za-z0-9._%+-]{1,64}+@[A-Za-z0-9-]{1,48}+(?:\.[A-Za-z0-9-]{1,32}+){1,4}")),
    ),
    "card": _Mask("card", _cards),
}


class Masks:
    """known: the gateway's keys."""

    def __init__(self, options: PromptLog, known: KnownKeys) -> None:
        self._known = known
        self._masks = [_BUILT_IN[name] for name in options.mask]
        self._masks += [_Mask(name, _matches(re.compile(pattern))) for name, pattern in options.patterns.items()]

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
            text = "".join(self._replaced(mask.name, text, mask.spans(text, self._look)))
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

    def _replaced(self, name: str, text: str, spans: Iterator[tuple[int, int]]) -> Iterator[str]:
        done = 0
        for start, end in spans:
            if start >= done:
                self.count += 1
                yield text[done:start]
                yield f"[{name}]"
            done = max(done, end)
        yield text[done:]

    def _look(self) -> None:
        if time.thread_time() > self._until:
            raise TooLong
