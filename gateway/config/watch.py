"""Files that change without anybody telling us: the secrets that Kubernetes mounts, whose keys come and go."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

Stamp = tuple[int, int, int] | None
"""What tells one version of a file from another; None while it cannot be seen."""


class Watch:
    """Looks at what the file system says of files, never into them."""

    def __init__(self, files: Iterable[str] = ()) -> None:
        self._taken = {name: _stamp(name) for name in files}
        self._seen = self._taken

    def changed(self) -> bool:
        """Whether they are not what they were when last taken up, and have been still since the call before: one that
        is being written is left alone. True once a change."""
        seen, self._seen = self._seen, self.look()
        if self._seen == self._taken or self._seen != seen:
            return False
        self._taken = self._seen
        return True

    def look(self) -> dict[str, Stamp]:
        """What they are now; to be called before they are read, for `take`."""
        return {name: _stamp(name) for name in self._taken}

    def take(self, files: Iterable[str], looked: Mapping[str, Stamp]) -> None:
        """From now on `files`, which were read after `looked`."""
        self._taken = {name: looked[name] if name in looked else _stamp(name) for name in files}
        self._seen = self._taken


def _stamp(name: str) -> Stamp:
    try:
        found = os.stat(name)  # of what a link leads to: Kubernetes turns links round
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
