"""Structured logging: one JSON object a line on standard output, or a line to be read by people, one record a request.

A thread of its own writes the lines in batches, so that a slow reader of the output never stalls the event loop. While
the output takes nothing (the reader is slow, the disk is full), lines wait. When _BACKLOG of them wait, further ones
are dropped and counted. As soon as the output takes lines again, it gets those that waited, and how many were lost.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from gateway import moments
from gateway.core.ports import RequestRecord
from gateway.core.written import Moment

_encode_lines = msgspec.json.Encoder(enc_hook=moments.write).encode_lines
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_BACKLOG = 100_000  # lines
_MOST_WAITING_BYTES = 64 << 20  # of prompts among them
_RATION = 10  # lines a second
_MOST_PROMPT_BYTES = 65536
_MOST_TEXT = 500  # of a library's message, in characters
_BATCH_S = 0.05
_now = time.time
# How long the end of the process waits for a reader of our output who has stopped reading.
_LAST_WORDS_S = 2.0


class Output(Protocol):
    """A raw binary file: `write` may take less than it is given, or nothing (None)."""

    def write(self, data: bytes, /) -> int | None: ...


class _Ration(Struct):
    """Counts one event's lines in the second that began at `since` (monotonic clock): those written and those held."""

    since: float
    level: str
    written: int = 0
    held: int = 0


class Log:
    """level is the least level written; requests False leaves the per-request records out.

    lost    lines that were dropped, since the start
    writer  the thread that writes; it ends soon after `close`
    mask    takes keys out of a text; None before anything knows which texts are keys
    form    "json"; "console", for people; "auto", for people where there is no `out` and standard output is a terminal
    """

    def __init__(
        self, level: str = "info", requests: bool = True, out: Output | None = None, form: str = "auto"
    ) -> None:
        self._terminal = out is None and sys.stdout.isatty()
        self.configure(level, requests, form)
        self.lost = 0
        self.mask: Callable[[str], str] | None = None
        self._reported = 0  # of those, how many the log reports as lost
        # Not the buffered file: its lock would hang the interpreter's end while our thread is stuck in a write.
        self._out: Output = (
            out if out is not None else open(sys.stdout.fileno(), "wb", buffering=0, closefd=False)  # noqa: SIM115
        )
        self._lines: deque[RequestRecord | dict[str, Any]] = deque()
        self._waiting_bytes = 0
        # The rest of a batch that could be written in part only. It goes out first, so that no line is torn.
        self._unwritten = b""
        self._rations: dict[str, _Ration] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.writer = threading.Thread(target=self._run, name="log", daemon=True)
        self.writer.start()

    def configure(self, level: str, requests: bool, form: str = "auto") -> None:
        """From now on; see the class."""
        self._level = LEVELS[level]
        self.requests = requests and self._level <= LEVELS["info"]
        console = form == "console" or (form == "auto" and self._terminal)
        self._encode = readable if console else _encode_lines

    def masked(self, text: str) -> str:
        """`text`, which a worker wrote, with keys masked; nothing of it before anything knows which texts are keys."""
        return "" if self.mask is None else self.mask(text)

    def request(self, record: RequestRecord) -> None:
        if self.requests:
            record.time = Moment(_now())
            self._put(record)

    def event(self, level: str, message: str, **fields: Any) -> None:
        """An event of the gateway itself; fields must be JSON-able and free of secrets. A field that is None is left
        out."""
        if LEVELS[level] >= self._level:
            self._put(_line(level, message, **{name: value for name, value in fields.items() if value is not None}))

    def rationed(self, level: str, message: str, **fields: Any) -> None:
        """Like `event`, for events that strangers can cause at will. Writes at most 10 lines a second of one
        `message`, and at the end of that second one line whose `suppressed` counts the others."""
        if LEVELS[level] < self._level:
            return
        with self._lock:
            ration = self._rations.setdefault(message, _Ration(time.monotonic(), level))
            if ration.written >= _RATION:
                ration.held += 1
                return
            ration.written += 1
        self.event(level, message, **fields)

    def prompt(self, id: str, body: bytes) -> None:
        """The body of a request as it came. Called only if `log.dangerously_log_prompts` is set."""
        if self._level <= LEVELS["info"]:
            text = body[:_MOST_PROMPT_BYTES].decode("utf-8", "replace")
            line = _line("info", "prompt", id=id, bytes=len(body), body=text)
            self._put(line, sys.getsizeof(text))  # one emoji makes all its characters take 4 bytes each

    def bug(self, record: RequestRecord, error: BaseException) -> None:
        """Logs an unexpected exception: its class, where it was raised and the request's id. Its text may quote a
        client and is left out."""
        self.event("error", "bug", id=record.id, error=type(error).__name__, trace=_frames(error.__traceback__))

    @contextlib.contextmanager
    def libraries(self) -> Iterator[None]:
        """A context in which this log also gets what libraries (uvicorn, asyncio) log at level warning or above."""
        handler = _Libraries(self)
        root = logging.getLogger()
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)

    def close(self) -> None:
        """Writes what is left and ends the thread."""
        self._closing.set()
        self.writer.join(_LAST_WORDS_S)

    def _put(self, line: RequestRecord | dict[str, Any], size: int = 0) -> None:
        """Queues a line. The thread encodes many together, at half the CPU that each would take during its request.
        size: the memory of a text in it that may be large, in bytes. Only such a line, and one that is lost, needs the
        lock: `flush` takes lines one by one."""
        if not size and len(self._lines) < _BACKLOG:
            self._lines.append(line)
            return
        with self._lock:
            if len(self._lines) < _BACKLOG and self._waiting_bytes + size <= _MOST_WAITING_BYTES:
                self._lines.append(line)
                self._waiting_bytes += size
            else:
                self.lost += 1

    def flush(self) -> None:
        """Writes what waits, or as much of it as the output takes. Raises ValueError when the output is closed."""
        if not self._written(self._unwritten):
            return
        with self._lock:
            self._add_suppressed(time.monotonic())
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            self._waiting_bytes = 0
            lost, self._reported = self.lost - self._reported, self.lost
        if lost:
            lines.append(_lost(lost))
        if lines:
            self._written(self._encoded(lines))

    def _encoded(self, lines: list[RequestRecord | dict[str, Any]]) -> bytes:
        """A line that cannot be encoded (a file's name may hold any bytes) is counted as lost and the others are kept:
        whatever is in one, the log goes on."""
        encode = self._encode
        try:
            return encode(lines)
        except Exception:
            if len(lines) > 1:
                return b"".join(self._encoded([line]) for line in lines)
            with self._lock:
                self.lost += 1
                self._reported += 1
            return encode([_lost(1)])

    def _add_suppressed(self, now: float) -> None:
        for message, ration in list(self._rations.items()):
            if now - ration.since >= 1.0 or self._closing.is_set():
                del self._rations[message]
                if ration.held:
                    self._lines.append(_line(ration.level, message, suppressed=ration.held))

    def _written(self, data: bytes) -> bool:
        """Whether the output took all of `data`. The rest is kept for the next call."""
        left = memoryview(data)
        try:
            while left:
                written = self._out.write(left)  # type: ignore[arg-type]  # any buffer will do
                if written is None:  # someone made our output non-blocking
                    time.sleep(_BATCH_S)
                else:
                    left = left[written:]
        except OSError:  # a full disk, a reader that left: it may have room or a reader again
            self._unwritten = bytes(left)
            return False
        self._unwritten = b""
        return True

    def _run(self) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(_BATCH_S)
            try:
                self.flush()
            except ValueError:
                return  # the output is closed: nothing can be written any more


class _Libraries(logging.Handler):
    """Writes the first line of a library's message, without the keys in it. Its arguments are left out while there is
    no mask. Exceptions are written as in `Log.bug`."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warning"
        fields: dict[str, Any] = {"logger": record.name, "text": self._text(record)}
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            fields |= {"error": type(error).__name__, "trace": _frames(error.__traceback__)}
        self._log.event(level, "library", **fields)

    def _text(self, record: logging.LogRecord) -> str:
        text, mask = str(record.msg), self._log.mask
        if mask is not None:
            with contextlib.suppress(Exception):  # arguments that do not fit the format, or cannot be shown
                text = record.getMessage()
            text = mask(text)
        return text.partition("\n")[0][:_MOST_TEXT]


_BARE = re.compile(r"[A-Za-z0-9_./:@+,-]+\Z")


def readable(lines: list[RequestRecord | dict[str, Any]], days: bool = False) -> bytes:
    """`12:34:56.789 warning worker down  model=m`: what is null, 0 or empty is left out. Nothing in it can move a
    terminal's cursor: all but plain ASCII is escaped as in JSON. days: the date is before the time."""
    text, form = [], "%Y-%m-%d %H:%M:%S" if days else "%H:%M:%S"
    for line in lines:
        fields: dict[str, Any] = msgspec.to_builtins(line, enc_hook=float)
        moment, level, event = fields.pop("time"), fields.pop("level"), fields.pop("event")
        clock = time.strftime(form, time.localtime(moment)) + f".{int(moment * 1000) % 1000:03d}"
        shown = [f"{name}={_shown(value)}" for name, value in fields.items() if value not in (None, "", [], {}, 0)]
        text.append(f"{clock} {level:7} {json.dumps(event)[1:-1]}  {' '.join(shown)}".rstrip() + "\n")
    return "".join(text).encode()


def _line(level: str, event: str, /, **fields: Any) -> dict[str, Any]:
    return {"time": Moment(_now()), "level": level, "event": event, **fields}


def _lost(lines: int) -> dict[str, Any]:
    return _line("error", "log lines lost", lost=lines)


def _shown(value: Any) -> str:
    if isinstance(value, str) and _BARE.match(value):
        return value
    return json.dumps(value, default=str)


def _frames(trace: TracebackType | None) -> list[str]:
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(trace)]
