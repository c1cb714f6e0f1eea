"""The folder that holds the bytes of files and results. Every function here blocks: call it in a thread.

    DIRECTORY/XX/ID            a file, whole; XX are the last two characters of ID
    DIRECTORY/XX/ID.part       one that is being written
    DIRECTORY/XX/ID.N.lines    what the gateway that held the lease number N has done of the batch ID (`progress`)

A file has its name once its bytes are on the disk. Names are ids that this room has made, never a client's words.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

_PART, _LINES, _PROBE = ".part", ".lines", ".probe-"
_BLOCK = 1 << 18
# A part that nobody has written to for so long belongs to an upload that has ended.
_DEAD_S = 86_400.0
_OURS = re.compile(r"(file-|batch_|msgbatch_)[0-9a-f]{28}(\.input|\.[0-9]+\.lines)?(\.part)?\Z")


class Line(NamedTuple):
    """A line of a file without its end. number: from 1; text: its bytes, or None if there are too many."""

    number: int
    text: bytes | None


class Directory:
    """Raises OSError everywhere."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def place(self, id_: str) -> Path:
        return self._path / id_.partition(".")[0][-2:] / id_

    def check(self) -> None:
        """Raises OSError if nothing can be written there."""
        self._path.mkdir(parents=True, exist_ok=True)
        probe = self._path / f"{_PROBE}{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()

    def begin(self, id_: str) -> BinaryIO:
        """A new file to write to: `keep` or `drop` ends it."""
        place = self.place(id_)
        place.parent.mkdir(parents=True, exist_ok=True)
        return open(f"{place}{_PART}", "wb")

    def keep(self, id_: str, file: BinaryIO) -> int:
        """The file is whole: it has its name from now on. Returns its bytes."""
        place = self.place(id_)
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
        file.close()
        os.replace(f"{place}{_PART}", place)
        return size

    def drop(self, id_: str, file: BinaryIO) -> None:
        """Removes the file, which is not wanted."""
        file.close()
        Path(f"{self.place(id_)}{_PART}").unlink(missing_ok=True)

    def link(self, id_: str, other: str) -> None:
        """Gives a file another name, too, or copies it if the folder cannot do that."""
        place = self.place(other)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(self.place(id_), place)
        except OSError:
            shutil.copyfile(self.place(id_), place)

    def open(self, id_: str) -> BinaryIO:
        return open(self.place(id_), "rb")

    def lost(self, id_: str) -> bool:
        """Whether the file is gone for good: its folder is there, so the volume is."""
        place = self.place(id_)
        return place.parent.is_dir() and not place.exists()

    def remove(self, ids: Iterable[str]) -> None:
        """Removes these files, and what was done of batches with these ids."""
        for id_ in ids:
            self.place(id_).unlink(missing_ok=True)
            for one in self.progress(id_):
                one.unlink(missing_ok=True)

    # -- what was done of a batch -----------------------------------------------------------------------------------

    def append_to(self, id_: str, lease: int) -> BinaryIO:
        """The file in which the holder of the lease notes its work."""
        place = self.place(id_)
        place.parent.mkdir(parents=True, exist_ok=True)
        return open(f"{place}.{lease}{_LINES}", "ab", buffering=0)

    def progress(self, id_: str) -> list[Path]:
        """The notes of all holders of the lease, the first one first."""
        place = self.place(id_)
        return sorted(place.parent.glob(f"{place.name}.*{_LINES}"), key=lambda one: int(one.name.split(".")[1]))

    # -- leftovers --------------------------------------------------------------------------------------------------

    def old(self, keep_s: float) -> list[Path]:
        """Parts of uploads that have ended, and what is older than anything is kept: a gateway that died had no time to
        remove them. Only what has a name and a place that this room gives: other people's files are theirs."""
        now, found = time.time(), []
        ours = [one for one in self._path.glob("??/*") if _OURS.match(one.name) and one == self.place(one.name)]
        for place in (*ours, *self._path.glob(f"{_PROBE}*")):
            age = _DEAD_S if place.suffix == _PART or place.name.startswith(_PROBE) else keep_s + _DEAD_S
            with contextlib.suppress(FileNotFoundError):
                if place.stat().st_mtime < now - age:
                    found.append(place)
        return found


def lines(file: BinaryIO, first: int, most_bytes: int) -> list[Line]:
    """The next lines of `file`, of which the first has the number `first`: about 256 KiB of them; none at its end. A
    blank one has an empty text."""
    found: list[Line] = []
    size = 0
    while size < _BLOCK:
        text = file.readline(most_bytes + 2)
        if not text:
            break
        size += len(text)
        if len(text.rstrip(b"\r\n")) > most_bytes:
            while text and not text.endswith(b"\n"):
                text = file.readline(_BLOCK)
            found.append(Line(first, None))
        else:
            found.append(Line(first, text.strip()))
        first += 1
    return found


def blocks(file: BinaryIO) -> Iterator[bytes]:
    """The rest of `file`."""
    while block := file.read(_BLOCK):
        yield block
