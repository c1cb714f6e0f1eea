"""The folder that holds the bytes of files and results.

    DIRECTORY/XX/ID            a file, whole; XX are the last two characters of ID
    DIRECTORY/XX/ID.part       one that is being written
    DIRECTORY/XX/ID.N.lines    what the gateway that held the lease number N has done of the batch ID (`progress`)

A file has its name once its bytes are on the disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, cast

from gateway.features.batches.storage import Sink

_PART, _LINES, _PROBE = ".part", ".lines", ".probe-"
# A part that nobody has written to for so long belongs to an upload that has ended.
_DEAD_S = 86_400.0
_OURS = re.compile(r"(file-|batch_|msgbatch_)[0-9a-f]{28}(\.input|\.[0-9]+\.lines)?(\.part)?\Z")


class Directory:
    """Implements storage.Storage."""

    held = 0

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def path_of(self, id_: str) -> Path:
        return self._path / id_.partition(".")[0][-2:] / id_

    def check(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        probe = self._path / f"{_PROBE}{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()

    def begin(self, id_: str) -> Sink:
        path = self.path_of(id_)
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(f"{path}{_PART}", "wb")

    def keep(self, id_: str, file: Sink) -> int:
        path, opened = self.path_of(id_), cast("BinaryIO", file)
        opened.flush()
        os.fsync(opened.fileno())
        size = opened.tell()
        opened.close()
        os.replace(f"{path}{_PART}", path)
        return size

    def drop(self, id_: str, file: Sink, *, alone: bool = True) -> None:
        file.close()
        Path(f"{self.path_of(id_)}{_PART}").unlink(missing_ok=True)

    def link(self, id_: str, other: str) -> None:
        path = self.path_of(other)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(self.path_of(id_), path)
        except OSError:
            shutil.copyfile(self.path_of(id_), path)

    def open(self, id_: str) -> BinaryIO:
        return open(self.path_of(id_), "rb")

    def lost(self, id_: str) -> bool:
        # If its folder is there, the volume is.
        path = self.path_of(id_)
        return path.parent.is_dir() and not path.exists()

    def remove(self, ids: Iterable[str]) -> None:
        for id_ in ids:
            self.path_of(id_).unlink(missing_ok=True)
            for one in self.progress(id_):
                one.unlink(missing_ok=True)

    # -- what was done of a batch -----------------------------------------------------------------------------------

    def append_to(self, id_: str, lease: int) -> Sink:
        path = self.path_of(id_)
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(f"{path}.{lease}{_LINES}", "ab", buffering=0)

    def progress(self, id_: str) -> list[Path]:
        """The notes of all holders of the lease, the first one first."""
        path = self.path_of(id_)
        return sorted(path.parent.glob(f"{path.name}.*{_LINES}"), key=lambda one: int(one.name.split(".")[1]))

    def noted(self, id_: str) -> Iterator[bytes]:
        for path in self.progress(id_):
            with open(path, "rb") as file:
                yield from file

    # -- leftovers --------------------------------------------------------------------------------------------------

    def old(self, keep_s: float) -> Mapping[str, str]:
        now, found = time.time(), {}
        ours = [one for one in self._path.glob("??/*") if _OURS.match(one.name) and one == self.path_of(one.name)]
        for path in (*ours, *self._path.glob(f"{_PROBE}*")):
            age = _DEAD_S if path.suffix == _PART or path.name.startswith(_PROBE) else keep_s + _DEAD_S
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < now - age:
                    found[str(path)] = path.name.partition(".")[0]
        return found

    def discard(self, paths: Iterable[str]) -> None:
        for path in paths:
            Path(path).unlink(missing_ok=True)
