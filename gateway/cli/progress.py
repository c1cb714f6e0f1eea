"""How far a command is that takes long: one line on standard error that is written again and again, on a terminal
alone."""

from __future__ import annotations

import sys
from time import monotonic
from typing import Self

_EVERY_S = 0.1


class Progress:
    """A line for the length of a `with`, at whose end it is gone."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Replaces the line by `text`, if it was not just replaced."""
        if self._live and (now := monotonic()) >= self._next:
            self._next = now + _EVERY_S
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()

    def clear(self) -> None:
        """Takes the line away, for other text in its place."""
        if self._live and self._next:
            self._next = 0.0
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def share(done: int, whole: int) -> str:
    return f"{100 * done // whole if whole else 100} %"
