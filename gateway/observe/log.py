"""Structured logging: one JSON object a line on standard output, one record a request.

Lines are handed over in batches to a thread of their own, so that a slow reader of our output never stalls the event
loop; when it is so slow that the backlog is full, lines are dropped and counted.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from typing import Any, BinaryIO

import msgspec

from gateway.core.ports import Record

encode = msgspec.json.Encoder().encode
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_BACKLOG = 100_000  # lines
_BATCH_S = 0.05


class Log:
    """level is the least level written; requests False leaves the per-request records out."""

    def __init__(self, level: str = "info", requests: bool = True, out: BinaryIO | None = None) -> None:
        self.requests = requests
        self.lost = 0
        self._level = LEVELS[level]
        self._out = out if out is not None else sys.stdout.buffer
        self._lines: list[bytes] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def configure(self, level: str, requests: bool) -> None:
        self._level = LEVELS[level]
        self.requests = requests

    def request(self, record: Record) -> None:
        if self.requests and self._level <= 20:
            record.time = _now()
            self._put(encode(record) + b"\n")

    def event(self, level: str, message: str, **fields: Any) -> None:
        """An event of the gateway itself; fields must be JSON-able and free of secrets."""
        if LEVELS[level] >= self._level:
            self._put(encode({"time": _now(), "level": level, "event": message, **fields}) + b"\n")

    def bug(self, record: Record, error: BaseException) -> None:
        """An exception that nobody expected: where it was raised, by request id. Its text may quote a client, so it
        is left out."""
        places = [
            f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
        ]
        self.event("error", "bug", id=record.id, error=type(error).__name__, trace=places)

    def close(self) -> None:
        """Writes what is left and ends the thread."""
        self._closing.set()
        self._thread.join()

    def _put(self, line: bytes) -> None:
        with self._lock:
            if len(self._lines) < _BACKLOG:
                self._lines.append(line)
            else:
                self.lost += 1

    def flush(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
            lost, self.lost = self.lost, 0
        if lost:
            lines.append(encode({"time": _now(), "level": "error", "event": "log lines lost", "lost": lost}) + b"\n")
        if lines:
            self._out.write(b"".join(lines))
            self._out.flush()

    def _run(self) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(_BATCH_S)
            try:
                self.flush()
            except (OSError, ValueError):
                return  # nobody reads our output any more


def _now() -> float:
    return round(time.time(), 6)
