"""Reading the files that a configuration is made of."""

from __future__ import annotations

import errno
import os
import stat


def read_file(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """The first `most_bytes` of a regular file, or of what a link leads to.

    Anything else could keep the reader waiting for ever (a FIFO) or never end (a device), and is refused.
    Raises OSError, and ValueError for a name that cannot be one.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read(most_bytes)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def why(error: OSError | ValueError) -> str:
    """Why a file could not be opened, without its name. A ValueError is about the name itself."""
    return (error.strerror or "unknown error") if isinstance(error, OSError) else "its name holds impossible characters"
