"""A bucket of a service that speaks S3's protocol, for the bytes of files and results.

    ID                    a file, whole
    ID.lines/LEASE.PART   what the gateway that held the lease number LEASE has noted of the batch ID (`noted`)

All of it is below the prefix of the bucket. Nothing can be appended to an object: notes are parts, each with a name of
its own, so that a write that comes late changes nothing. As long as a part is small, the next one begins with what it
holds, and replaces it.
"""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, cast

import obstore
from obstore.store import S3Store

from gateway.bucket import asked, store_of
from gateway.config import Bucket as Options
from gateway.features.batches.storage import Sink

_PROBE = ".probe"
_READ = 1 << 18
_WRITE = 8 << 20
"""Bytes of a part of an upload, of which a file has 10,000 at most. Two are in memory."""
_NOTES = 1 << 18
"""A part of notes that is larger gets no more."""
_MOST_KEYS = 1000
_LEAD_S = 86_400.0
_OURS = re.compile(r"(?P<id>(file-|batch_|msgbatch_)[0-9a-f]{28})(\.input|\.lines/[0-9]+\.[0-9]+)?\Z")


class Bucket:
    """Implements storage.Storage."""

    held = 2 * _WRITE

    def __init__(self, options: Options) -> None:
        self._store = store_of(options)

    def check(self) -> None:
        with asked():
            obstore.put(self._store, _PROBE, b"")
            obstore.delete(self._store, [_PROBE])

    def begin(self, id_: str) -> Sink:
        return _Upload(self._store, id_)

    def keep(self, id_: str, file: Sink) -> int:
        file.close()
        return file.tell()

    def drop(self, id_: str, file: Sink, *, alone: bool = True) -> None:
        """An upload of several parts is made whole and deleted, as the parts would be hidden and charged for; but that
        would take away what another gateway has written. Nothing of a smaller one was sent."""
        if alone and file.tell() > _WRITE:
            with contextlib.suppress(OSError):
                file.close()
                self.discard([id_])

    def link(self, id_: str, other: str) -> None:
        with asked():
            obstore.copy(self._store, id_, other)

    def open(self, id_: str) -> BinaryIO:
        with asked():
            blocks = iter(obstore.get(self._store, id_).stream(min_chunk_size=_READ))
        return cast("BinaryIO", io.BufferedReader(_Download(blocks), _READ))

    def lost(self, id_: str) -> bool:
        with asked():
            try:
                obstore.head(self._store, id_)
            except FileNotFoundError:
                self._parts(id_)  # raises if it is the bucket that is not there
                return True
        return False

    def remove(self, ids: Iterable[str]) -> None:
        for id_ in ids:
            self.discard([id_, *self._parts(id_)])

    def append_to(self, id_: str, lease: int) -> Sink:
        return _Notebook(self._store, f"{id_}.lines/{lease}")

    def noted(self, id_: str) -> Iterator[bytes]:
        for path in self._parts(id_):
            with asked():
                text = bytes(obstore.get(self._store, path).bytes())
            yield from io.BytesIO(text)

    def old(self, keep_s: float) -> Mapping[str, str]:
        before, found = time.time() - keep_s - _LEAD_S, {}
        with asked():
            for some in obstore.list(self._store, chunk_size=_MOST_KEYS):
                for one in some:
                    match = _OURS.match(one["path"])
                    if match is not None and one["last_modified"].timestamp() < before:
                        found[one["path"]] = match["id"]
        return found

    def discard(self, paths: Iterable[str]) -> None:
        with asked():
            obstore.delete(self._store, list(paths))

    def _parts(self, id_: str) -> list[str]:
        """The notes of a batch, in the order in which they were written."""
        with asked():
            found = [one["path"] for some in obstore.list(self._store, f"{id_}.lines") for one in some]
        return sorted(found, key=lambda one: [int(number) for number in one.rpartition("/")[2].split(".")])


class _Upload:
    """A file that goes to the bucket as it is written."""

    def __init__(self, store: S3Store, path: str) -> None:
        self._file = obstore.open_writer(store, path, buffer_size=_WRITE, max_concurrency=1)
        self._size = 0

    def write(self, data: bytes, /) -> int:
        with asked():
            self._size += len(data)
            written: int = self._file.write(data)  # Any for a type checker without the package
            return written

    def tell(self) -> int:
        return self._size

    def close(self) -> None:
        with asked():
            self._file.close()


class _Download(io.RawIOBase):
    """An object as it comes. It comes no faster than it is read, and may break off if that takes hours: a batch that
    reads it is left then, and taken again."""

    def __init__(self, blocks: Iterator[Any]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._rest:
            with asked():
                self._rest = memoryview(next(self._blocks, b""))
        count = min(len(self._rest), len(buffer))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


class _Notebook:
    """The notes of one holder of a lease. Written by one thread at a time."""

    def __init__(self, store: S3Store, path: str) -> None:
        self._store = store
        self._path = path
        self._parts = 0
        self._text = b""
        self._last: str | None = None

    def write(self, data: bytes, /) -> None:
        """The notes are in the bucket once it returns."""
        last, text = self._last, self._text + data
        self._parts += 1  # a name is never used twice: a write that failed may come yet
        path = f"{self._path}.{self._parts}"
        with asked():
            obstore.put(self._store, path, text, use_multipart=False)
        full = len(text) >= _NOTES
        self._last, self._text = (None, b"") if full else (path, text)
        if last is not None:
            with contextlib.suppress(OSError), asked():  # what is there twice counts once
                obstore.delete(self._store, [last])

    def tell(self) -> int:
        return len(self._text)

    def close(self) -> None:
        """Nothing is left to write."""
