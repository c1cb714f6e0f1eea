"""The text of a streamed reply that its client was sent, and the seam at which another worker goes on with it."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gateway.core.byte_budget import UNOWNED, ByteBudget, Held
from gateway.core.http import Request
from gateway.core.usage import Usage

MOST = 1 << 20
"""The longest text that is retained, in characters: some 250,000 tokens."""
LOST_FROM_START = ("off", "choices")
"""Reasons for which not even the end of a complete reply is added."""
FOLD_MASK: Final = 31
"""A lane folds the text whenever the count of its output deltas has none of these bits, so after 32 at most."""
FOLD_LENGTH: Final = 128
"""Characters. Behind a longer delta a lane folds at once."""
_TAIL = 16
"""Deltas at the end of a text that are known one by one."""
_STEP = 1 << 12
"""Characters that are taken from the budget at a time. As many deltas as wait for a fold fit into one step."""


class Partial(Struct, frozen=True):
    """The part of a streamed reply that its client was sent, if it is plain text of one choice, or complete.

    text      that text
    tokens    its output deltas: a lower bound of its tokens
    finished  the worker has ended every choice: only the usage and the end mark are missing
    tail      the last deltas of `text`
    """

    text: str
    tokens: int
    finished: bool = False
    tail: tuple[str, ...] = ()

    def deltas(self, end: int) -> int:
        """How many deltas the last `end` characters of the text are in."""
        count = 0
        for text in reversed(self.tail):
            if end <= 0:
                break
            count, end = count + 1, end - len(text)
        return count


class SentText:
    """Keeps the text of one reply while that is short enough, and while a budget that all replies share has room.

    The budget counts a byte a character, and the body of the retained request. Call `close` at the end of the reply.
    room: what it holds of the budget for the request's caller

    add      takes a delta. It is a function of C, since lanes call it for each chunk of each stream. So they call
             `fold`, too: as FOLD_MASK and FOLD_LENGTH say, or behind each delta
    lost     why there is no text: "long", "memory", or what `stop` was given; None while all of it is retained
    request  the one that a worker goes on with; its body is dropped as soon as the text is lost
    """

    __slots__ = ("_held", "_recent", "_reserved", "_room", "_text", "add", "lost", "request")

    def __init__(self, room: Held) -> None:
        self.lost: str | None = None
        self._held = room
        self.request: Request | None = None
        self._reserved = 0
        self._room = 0
        self._text = StringIO()
        self._recent: list[str] = []
        self.add: Callable[[str], object] = self._recent.append

    def fold(self) -> None:
        """Joins the deltas, and takes their length from the budget. The last ones stay apart, unless they are long."""
        if self.lost is not None:
            return
        recent = self._recent
        end = len(recent) if len(recent[-1]) > FOLD_LENGTH else max(0, len(recent) - _TAIL)
        self._room -= self._text.write("".join(recent[:end]))
        del recent[:end]
        if self._room < 0:
            self._grow()

    @property
    def text(self) -> str:
        return self._text.getvalue() + "".join(self._recent)

    def keep(self, request: Request) -> bool:
        """Keeps the body of `request`, while the text is retained. If the budget has no room for it, nothing more is.
        Returns whether the body is retained."""
        if self.lost is not None:
            return False
        if not self._held.resize(self._held.size + len(request.body) + _STEP):
            self.stop("memory")
            return False
        self.request = request
        return True

    def partial(self, deltas: int, finished: bool) -> Partial | str:
        """As `Lane.partial`, after so many output deltas; finished: the worker has ended every choice."""
        if finished and self.lost not in LOST_FROM_START:
            return Partial("", deltas, finished=True)
        return self.lost or Partial(self.text, deltas, tail=tuple(self._recent))

    def stop(self, why: str) -> None:
        """Keeps nothing from now on."""
        self.lost = self.lost or why
        if self.request is not None:
            self.request.body = b""
        self._text = StringIO()
        self._recent = []
        self.add = len
        self.close()

    def close(self) -> None:
        """Gives back what it took from the budget."""
        self._held.resize(0)
        self._reserved = 0

    def _grow(self) -> None:
        step = -(self._room // _STEP) * _STEP
        if self._reserved + step > MOST:
            self.stop("long")
        elif not self._held.resize(self._held.size + step):
            self.stop("memory")
        else:
            self._reserved += step
            self._room += step


NO_TEXT = SentText(Held(ByteBudget(0), UNOWNED))
"""The text of a reply that no other worker is asked to go on with."""
NO_TEXT.stop("off")


def joined_usage(reported: Usage, before: int, again: int) -> Usage:
    """The usage of the whole reply.

    reported  by the worker that went on. Its prompt held the text that was there before
    before    output deltas of the first worker
    again     those that the second worker repeated
    """
    if reported.input is None or reported.output is None:
        return reported
    output = before + reported.output - again
    prompt = max(0, reported.input + reported.output - output)
    cached = None if reported.cached is None else min(reported.cached, prompt)
    return replace(reported, input=prompt, output=output, cached=cached)


def without_prefix(text: str, repeated: str) -> tuple[str, str]:
    """(`text` without what it repeats, what is still to be repeated)."""
    shorter = min(len(text), len(repeated))
    same = next((at for at in range(shorter) if text[at] != repeated[at]), shorter)
    return text[same:], repeated[same:] if same == len(text) else ""
