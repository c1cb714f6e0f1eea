"""Keeps the reply that a dialect writes, for the log of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from gateway.core.events import Event
from gateway.core.http import Response
from gateway.core.lifecycle import Reply, WholeReply
from gateway.core.messages import Citation, Generate, Op, ServerCall
from gateway.core.ports import Dialect, ServerToolWriter, StreamWriter
from gateway.features.prompt_log.entry import Entry, ReplyTexts, whole_texts


class Recording:
    """A dialect whose replies an entry takes. It has no passthrough lanes: bytes are not events. All else is the
    dialect's own."""

    passthrough: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, dialect: Dialect, entry: Entry) -> None:
        self._dialect = dialect
        self._entry = entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dialect, name)

    def write(self, reply: WholeReply, op: Op) -> Response:
        """May run in a thread. A guard may have it written again."""
        if isinstance(reply, Reply):
            self._entry.reply = whole_texts(reply, self._entry.most)  # before the dialect, which may change it
        return self._dialect.write(reply, op)

    def writer(self, op: Generate) -> StreamWriter:
        return _Writer(self._dialect.writer(op), self._entry)


class _Writer:
    """Writes one stream, and takes its texts. Implements core.ports.ServerToolWriter if `writer` does. The reply is
    that of the writer which wrote last: a worker may fail before its client has seen anything."""

    def __init__(self, writer: StreamWriter, entry: Entry) -> None:
        self.headers, self.clean_end, self.keepalive = writer.headers, writer.clean_end, writer.keepalive
        self._writer = writer
        self._entry = entry
        self._texts = ReplyTexts(entry.most)

    @property
    def buffered_bytes(self) -> int:
        return self._writer.buffered_bytes

    def write(self, event: Event) -> bytes:
        out = self._writer.write(event)
        self._entry.reply = self._texts
        self._texts.take(event)
        return out

    @property
    def _tool_writer(self) -> ServerToolWriter:
        return cast("ServerToolWriter", self._writer)  # no other dialect's requests have such tools

    def called(self, call: ServerCall) -> bytes:
        return self._tool_writer.called(call)

    def returned(self, call: ServerCall) -> bytes:
        return self._tool_writer.returned(call)

    def cite(self, index: int, citations: Sequence[Citation]) -> None:
        self._tool_writer.cite(index, citations)
