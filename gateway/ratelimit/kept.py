"""Sums that were seen of budgets, in a folder: they outlive all gateways together.

Each process has a file of its own there, which it writes whole or not at all. A start reads the files of all processes
that ever wrote: by those sums a store that has lost its counters restores them (see `spent`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import msgspec

Seen = dict[bytes, tuple[int, int]]
"""Counter -> its birth, and the sum that it had."""

_MOST_FILES = 100
"""Files that a start reads, the newest first; the others it removes."""
_decode = msgspec.msgpack.Decoder(Seen).decode


class Kept:
    """The file of this process in `folder`. on_change: called with the class of the error if the folder cannot be read,
    or the file written, and with "" once it is written; once each time."""

    def __init__(self, folder: Path, on_change: Callable[[str], None]) -> None:
        self.folder = folder
        self._on_change = on_change
        self._file: Path | None = None
        self._lock = -1  # held while this process lives, so that no other takes its file
        self._failing = False

    def read(self) -> Seen:
        """The sums in all files; of one in several files the newest birth, and then the largest. A file that cannot be
        read is left out: a start must not fail for it."""
        found: Seen = {}
        files: list[tuple[float, Path]] = []
        try:
            self._claim()
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):  # another process may have removed it
                        if entry.name.endswith(".spent"):
                            files.append((entry.stat().st_mtime, Path(entry)))
        except OSError as error:
            self._fails(error)
        for number, (_, file) in enumerate(sorted(files, reverse=True)):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                if number >= _MOST_FILES:
                    _remove(file)
                    continue
                for key, seen in _decode(file.read_bytes()).items():
                    found[key] = max(found.get(key, seen), seen)
        return found

    def _fails(self, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            self._on_change(type(error).__name__)

    async def write(self, seen: Mapping[bytes, tuple[int, int]]) -> bool:
        """Returns whether it is written."""
        try:
            await asyncio.to_thread(self._write, msgspec.msgpack.encode(seen))
        except OSError as error:
            self._fails(error)
            return False
        if self._failing:
            self._failing = False
            self._on_change("")
        return True

    def _write(self, content: bytes) -> None:
        file = self._claim()
        new = file.with_suffix(".new")
        new.write_bytes(content)
        new.replace(file)

    def _claim(self) -> Path:
        """The first file of this machine that no other process has. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = count()
        while self._file is None:
            file = self.folder / f"{socket.gethostname()}-{next(number)}.spent"
            lock = os.open(file.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(lock)
                if not isinstance(error, BlockingIOError):
                    raise
            else:
                self._file, self._lock = file, lock
        return self._file

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove(file: Path) -> None:
    """Removes a file, and its lock unless a process holds that. Raises OSError."""
    file.unlink()
    with file.with_suffix(".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(lock.name)
