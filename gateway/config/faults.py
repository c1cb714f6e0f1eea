"""What is wrong with a configuration, as a person needs it: where, which key, what."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

Path = tuple[str | int, ...]
"""Where a value sits in the configuration: mapping keys and list indices from the root."""

ENVIRONMENT = "environment"
"""What faults call the environment, where a file's name would be."""

WHOLE = "(file)"
"""The key of a fault that concerns a file as a whole."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]+\Z")
# Our own keys, and what the best known services hand out: pasted where a name belongs, they must not reach a log.
_SECRET = re.compile(r"\b(dgm_|sk-|hf_|flp_)[A-Za-z0-9_-]{12,}")


def shown(path: Path) -> str:
    """The dotted form of `path`; a name with other characters than letters, digits, _ and - is quoted."""
    parts = [str(part) if isinstance(part, int) or _PLAIN.match(part) else f'"{part}"' for part in path]
    return ".".join(parts)


def masked(text: str) -> str:
    """`text` on one line and fit for a terminal, with whatever looks like a key replaced."""
    text = "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))
    return _SECRET.sub(lambda found: found[1] + "***", text)


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One thing that is wrong. Its text is `file:line: key: message`, and it never holds a secret.

    file  as it was given to `load`, or "environment"
    line  from 1; 0 where there are no lines
    key   dotted path in the file, the variable's name in the environment, "(file)" for the file itself
    """

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        return masked(f"{self.file}:{self.line}: {self.key}: {self.message}")


class ConfigError(Exception):
    """A configuration that cannot be used. `faults` holds all that was found, in the order of the files' lines."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = list(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


@dataclass(frozen=True, slots=True)
class Position:
    """Where a value was written: what a `Fault` about it says before its message."""

    file: str
    line: int
    key: str
    inner: str = ""  # dotted path within a variable's JSON

    def fault(self, message: str) -> Fault:
        return Fault(self.file, self.line, self.key, f"{self.inner} {message}" if self.inner else message)


Positions = dict[Path, Position]


def locate(positions: Positions, path: Path) -> Position:
    """The position of `path`. A value that is written nowhere is at the line of what should hold it."""
    if path in positions:
        return positions[path]
    for length in range(len(path) - 1, -1, -1):
        holder = positions.get(path[:length])
        if holder is not None:
            missing = shown(path[length:])
            if holder.file == ENVIRONMENT:
                return Position(holder.file, 0, holder.key, f"{holder.inner}.{missing}" if holder.inner else missing)
            return Position(holder.file, holder.line, missing if holder.key == WHOLE else f"{holder.key}.{missing}")
    return Position("(default)", 0, shown(path))
