"""A folder of files with a line of JSON for each request, bounded in bytes and age.

    prompts-BEGUN-HOST-PROCESS-NUMBER.jsonl    BEGUN in UTC: 20261129T140000Z

Several processes and machines may share a folder: each writes files of its own, and each deletes those of all.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count

from msgspec.json import Encoder

from gateway import moments
from gateway.core.http import Headers
from gateway.features.prompt_log.entry import Line

PARTS = 8
"""A file is at most such a part of what all may have."""
_NAME = re.compile(r"prompts-([0-9]{8}T[0-9]{6}Z)-[A-Za-z0-9._-]{1,64}-[0-9]+-([0-9]+)\.jsonl\Z")
_HOST = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())[:64] or "host"
_MOST_S = 3600.0
"""A file gets lines for this long at most."""
_TIDY_S = 60.0
"""Between two looks. A file that would be too old at the next one is deleted."""
_numbers = count(1)
_encoder = Encoder(enc_hook=moments.write)


class Lost(Exception):
    """So many lines could not be written, and are lost."""

    def __init__(self, lines: int, why: str) -> None:
        super().__init__(why)
        self.lines = lines


def encoded(entries: Iterable[tuple[Line, Headers]]) -> Iterator[bytes]:
    for line, _ in entries:
        yield _encoder.encode(line) + b"\n"


def new_name(now: float) -> str:
    """The name of a file that begins now, in Unix seconds. No two are alike."""
    return f"prompts-{_moment(now)}-{_HOST}-{os.getpid()}-{next(_numbers)}.jsonl"


def surplus(found: Iterable[tuple[str, int]], oldest: float, room: int) -> Iterator[str]:
    """The names of those files that began before `oldest`, in Unix seconds, and of the oldest until all others have at
    most `room` bytes. found: names with sizes; names of others than ours are passed over."""
    named = ((_NAME.match(name), name, size) for name, size in found)
    ours = sorted((match[1], int(match[2]), name, size) for match, name, size in named if match is not None)
    room -= sum(size for *_, size in ours)
    for begun, _, name, size in ours:
        if begun > _moment(oldest) and room >= 0:
            return
        room += size
        yield name


def _moment(now: float) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))


class Files:
    """Implements writer.Sink. keep_s: no line is kept for longer. most: bytes of all files; a file more for each
    further process."""

    def __init__(self, folder: str, keep_s: float, most: int, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._keep_s = keep_s
        self._most = most
        self._clock = clock
        self._lasts_s, self._looks_s = min(_MOST_S, keep_s / 2), min(_TIDY_S, keep_s / 8)
        self._file = -1
        self._size = 0
        self._begun = self._tidied = 0.0

    def write(self, entries: Sequence[tuple[Line, Headers]]) -> int:
        for data in encoded(entries):
            if self._file >= 0 and (self._size + len(data) > self._most // PARTS or not os.fstat(self._file).st_nlink):
                self.close()
            if self._file < 0:
                self._begin(len(data))
            left = memoryview(data)
            try:
                while left:
                    left = left[os.write(self._file, left) :]
            except OSError:
                with contextlib.suppress(OSError):  # the next line does not join a part of this one
                    os.ftruncate(self._file, self._size)
                raise
            self._size += len(data)
        return len(entries)

    def tidy(self) -> int:
        now = self._clock()
        if self._file >= 0 and now - self._begun >= self._lasts_s:
            self.close()
        if now - self._tidied >= self._looks_s:
            self._tidied = now
            self._delete()
        return 0

    def close(self) -> int:
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)
        return 0

    def _begin(self, size: int) -> None:
        """size: bytes of its first line."""
        os.makedirs(self._folder, 0o700, exist_ok=True)
        self._delete(size)
        self._begun, self._size = self._clock(), 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW
        self._file = os.open(os.path.join(self._folder, new_name(self._begun)), flags, 0o600)

    def _delete(self, size: int = 0) -> None:
        """Leaves room for one more file, which may have a line of so many bytes."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            found = [(one.name, one.stat(follow_symlinks=False).st_size) for one in entries if one.is_file()]
            oldest = self._clock() - self._keep_s + self._looks_s
            for name in surplus(found, oldest, self._most - max(size, self._most // PARTS)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._folder, name))
