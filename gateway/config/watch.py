"""Notices that files have changed, such as the secrets that Kubernetes mounts and replaces without a signal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

Stamp = tuple[int, int, int] | None
"""Modification time in ns, inode and size; None while the file cannot be found."""


class Watch:
    """Compares time, inode and size of files. Their contents are not read."""

    def __init__(self, files: Iterable[str] = ()) -> None:
        self._taken = {name: _stamp(name) for name in files}
        self._observed = self._taken

    def changed(self) -> bool:
        """True once for each change, on the second call that finds the same new state: a file that is still being
        written is left alone."""
        before, self._observed = self._observed, self.look()
        if self._observed == self._taken or self._observed != before:
            return False
        self._taken = self._observed
        return True

    def look(self) -> dict[str, Stamp]:
        """The state of the files now. Call it before reading them, and pass the result to `take`."""
        return {name: _stamp(name) for name in self._taken}

    def take(self, files: Iterable[str], looked: Mapping[str, Stamp]) -> None:
        """Watches `files` from now on, which were read after `looked`."""
        self._taken = {name: looked[name] if name in looked else _stamp(name) for name in files}
        self._observed = self._taken


def _stamp(name: str) -> Stamp:
    try:
        found = os.stat(name)  # follows links: Kubernetes replaces the link, not the file
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
