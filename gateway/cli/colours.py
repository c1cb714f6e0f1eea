"""Colours on a terminal: of words that name a state, in lines that are plain text otherwise.

There are none where the output is a file or a pipe, in a terminal that has none (`TERM=dumb`), and for users who set
NO_COLOR to anything (https://no-color.org).
"""

from __future__ import annotations

import re
import sys
from typing import TextIO

_BAD, _DOUBTFUL, _GOOD = "31", "33", "32"  # ANSI: red, yellow, green
_OF_STATES = {
    _BAD: ("down", "stalled", "ejected", "no worker is ready", "revoked", "expired", "failed", "error", "hole"),
    _DOUBTFUL: ("leaving", "draining", "starting", "disabled", "rotating", "refused", "cancelled", "warning"),
    _GOOD: ("ready", "valid", "ok", "good"),
}
_CODES = {state: code for code, states in _OF_STATES.items() for state in states}
# A column, a level, the value of a field, or the text behind a colon.
_STATE = re.compile(rf"(?:^|(?<=  )|(?<=: )|(?<==)|(?<=\d ))(?:{'|'.join(_CODES)})(?=[:, ]|$)")


def wanted(stream: TextIO) -> bool:
    if not stream.isatty():
        return False
    from gateway.config.environment import variable  # as some commands need nothing else of it

    return not variable("NO_COLOR") and variable("TERM") != "dumb"


def coloured(line: str, stream: TextIO | None = None) -> str:
    """`line`, a line for `stream` (standard output), with its states in colours if these are wanted there."""
    return _STATE.sub(_painted, line) if wanted(stream or sys.stdout) else line


def _painted(found: re.Match[str]) -> str:
    return f"\x1b[{_CODES[found[0]]}m{found[0]}\x1b[0m"
