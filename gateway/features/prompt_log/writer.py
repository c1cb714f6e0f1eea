"""The thread that masks and writes what is logged of requests, and the bound on what waits for it. No request waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol

from gateway.auth import KnownKeys
from gateway.background import keep_running
from gateway.config import Tracing
from gateway.config.prompt_log import PromptLog
from gateway.core.http import Headers
from gateway.core.ports import Dialect
from gateway.features.prompt_log.entry import LONGEST_NAME, Answer, Entry, Line, Prompt
from gateway.features.prompt_log.files import Files, Lost
from gateway.features.prompt_log.masks import Masking, Masks, TooLong
from gateway.features.prompt_log.traces import Traces
from gateway.observe.log import Log
from gateway.observe.metrics import Metrics

_EVERY_S = 1.0
_BATCH = 100
_LAST_S = 5.0
_ITSELF = 4096
"""Bytes of an entry beside its texts."""


class Sink(Protocol):
    """A destination for lines. A method raises an exception if it cannot be written to now."""

    def write(self, entries: Sequence[tuple[Line, Headers]]) -> int:
        """Each line has the context of its trace, [] if that is not recorded. Returns how many were written: lines
        that wait for others are not yet. Raises Lost for lines of earlier calls, too."""

    def tidy(self) -> int:
        """Called every second, and behind each write. Returns how many lines were written now."""

    def close(self) -> int:
        """Writes what waits. Returns how many lines that were."""


class Writer:
    """Takes entries while `bytes` of those under way, and of those that wait, allow it.

    options, tracing  of the configuration that it was made for
    """

    def __init__(
        self, options: PromptLog, tracing: Tracing | None, known: KnownKeys, metrics: Metrics, log: Log
    ) -> None:
        self.options = options
        self.tracing = tracing
        self.bytes = 0
        self._masks = Masks(options, known)
        self._metrics = metrics
        self._log = log
        self._failing: set[str] = set()
        self._lock = threading.Lock()
        self._waiting: SimpleQueue[Entry | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._sinks: dict[str, Sink] = {}
        if options.directory is not None:
            self._sinks["directory"] = Files(options.directory, options.keep_s, options.max_bytes)
        if options.bucket is not None:
            from gateway.features.prompt_log.bucket import Objects  # imports an extra

            self._sinks["bucket"] = Objects(options.bucket, options.keep_s, options.max_bytes)
        if tracing is not None:
            from gateway.observe.spans import PromptSpans

            self._sinks["traces"] = Traces(PromptSpans(tracing))

    async def start(self) -> None:
        """Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="prompt-log", daemon=True)
            self._thread.start()

    def begin(self, by: str, dialect: Dialect) -> Entry | None:
        """An entry, once there is room for it; None, and the request is not logged, if there is none."""
        entry = Entry(by, dialect, self.options.max_entry_bytes)
        size = _ITSELF + 2 * entry.most
        with self._lock:
            fits = self.bytes + size <= self.options.max_waiting_bytes
            if fits:
                self.bytes += size
                entry.reserved = size
        if fits:
            return entry
        self._metrics.prompts.labels("dropped").inc()
        self._log.rationed("warning", "prompt not logged", reason="max_waiting_bytes")
        return None

    def put(self, entry: Entry) -> None:
        """The request is over."""
        self._resize(entry, min(entry.reserved, _ITSELF + entry.size))
        self._waiting.put(entry)

    def _resize(self, entry: Entry, size: int) -> None:
        with self._lock:
            self.bytes += size - entry.reserved
        entry.reserved = size
        self._metrics.prompts_waiting.set(self.bytes)

    async def close(self) -> None:
        """Writes what waits, for some seconds at most."""
        self._waiting.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _LAST_S)

    # -- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        over = False
        while not over:
            entries, over = self._next()
            with keep_running("prompt log"):
                lines = [self._line(entry) for entry in entries]
                for name, sink in self._sinks.items():
                    self._try(name, len(lines), sink.write, lines)
                    self._try(name, 0, sink.tidy)
            for entry in entries:
                self._resize(entry, 0)
        for name, sink in self._sinks.items():
            self._try(name, 0, sink.close)

    def _next(self) -> tuple[list[Entry], bool]:
        """The entries that wait, and whether they are the last; none after a second in which none came."""
        found: list[Entry] = []
        try:
            while len(found) < _BATCH:
                entry = self._waiting.get(not found, _EVERY_S)
                if entry is None:
                    return found, True
                found.append(entry)
        except Empty:
            pass
        return found, False

    def _try(self, name: str, lines: int, step: Callable[..., int], *given: object) -> None:
        """Whatever a disk or a collector does, the thread goes on. lines: how many are lost if it fails."""
        try:
            count = step(*given)
        except Exception as error:
            self._metrics.prompts.labels("failed").inc(error.lines if isinstance(error, Lost) else lines)
            if name not in self._failing:
                self._failing.add(name)
                reason = str(error) if isinstance(error, OSError | Lost) else type(error).__name__
                self._log.event("warning", "prompt log failing", to=name, reason=reason)
            return
        self._metrics.prompts.labels("written").inc(count)
        if count and name in self._failing:
            self._failing.discard(name)
            self._log.event("info", "prompt log writing", to=name)

    def _line(self, entry: Entry) -> tuple[Line, Headers]:
        line, masking = entry.line(), self._masks.begin()
        try:
            _mask(line, masking)
        except TooLong:  # no text is written that was not looked at
            line.prompt, line.reply = Prompt([], [], cut=True), line.reply and Answer([], line.reply.finish, cut=True)
            self._log.rationed("warning", "prompt not masked in time", id=line.id)
        line.masked = masking.count
        return line, entry.context


def _mask(line: Line, masking: Masking) -> None:
    """Raises TooLong."""
    line.prompt.others = [masking.masked(name)[:LONGEST_NAME] for name in line.prompt.others]
    for shown in (*line.prompt.texts, *(line.reply.texts if line.reply is not None else ())):
        shown.text = masking.masked(shown.text)
        shown.name = shown.name and masking.masked(shown.name)[:LONGEST_NAME]
