"""Objects of a bucket with a line of JSON for each request: named, and bounded in bytes and age, as files are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import obstore

from gateway.bucket import asked, store_of
from gateway.config import Bucket
from gateway.core.http import Headers
from gateway.features.prompt_log.entry import Line
from gateway.features.prompt_log.files import PARTS, Lost, encoded, new_name, surplus

_LONGEST_S = 60.0
_OBJECT = 1 << 20
"""Bytes from which on lines are sent, and do not wait for others."""
_TIDY_S = 3600.0
_MOST_KEYS = 1000


class Objects:
    """Implements writer.Sink. An object cannot be appended to: lines wait for others, for a minute at most.

    keep_s, most: as of `files.Files`."""

    def __init__(self, options: Bucket, keep_s: float, most: int, clock: Callable[[], float] = time.time) -> None:
        self._store = store_of(options)
        self._keep_s = keep_s
        self._looks_s = min(_TIDY_S, keep_s / 8)
        self._most = most
        self._clock = clock
        self._waiting: list[bytes] = []
        self._size = self._sent = 0
        self._begun = self._tidied = 0.0

    def write(self, entries: Sequence[tuple[Line, Headers]]) -> int:
        sent = 0
        for data in encoded(entries):
            if not self._waiting:
                self._begun = self._clock()
            self._waiting.append(data)
            self._size += len(data)
            if self._size >= min(_OBJECT, self._most // PARTS):
                sent += self._send()
        return sent

    def tidy(self) -> int:
        now, sent = self._clock(), 0
        if self._waiting and now - self._begun >= min(_LONGEST_S, self._keep_s / 2):
            sent = self._send()
        if now - self._tidied >= self._looks_s or self._sent >= self._most // PARTS:
            self._tidied, self._sent = now, 0
            self._delete()
        return sent

    def close(self) -> int:
        return self._send() if self._waiting else 0

    def _send(self) -> int:
        """Returns how many lines were sent. Raises Lost."""
        lines, self._waiting, self._size = self._waiting, [], 0
        try:
            with asked():
                obstore.put(self._store, new_name(self._begun), b"".join(lines), use_multipart=False)
        except OSError as error:
            raise Lost(len(lines), str(error)) from None
        self._sent += sum(map(len, lines))
        return len(lines)

    def _delete(self) -> None:
        with asked():
            found = [
                (one["path"], one["size"]) for some in obstore.list(self._store, chunk_size=_MOST_KEYS) for one in some
            ]
            oldest = self._clock() - self._keep_s + self._looks_s
            old = list(surplus(found, oldest, self._most - self._most // PARTS))
            if old:
                obstore.delete(self._store, old)
