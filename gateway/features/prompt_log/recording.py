"""Keeps the reply that a dialect writes, for the log of prompts."""

from __future__ import annotations

from gateway.core.events import Event
from gateway.core.http import Response
from gateway.core.lifecycle import Reply, WholeReply
from gateway.core.messages import Generate, Op
from gateway.core.ports import Dialect, StreamWriter
from gateway.features.prompt_log.entry import Entry, ReplyTexts, whole_texts
from gateway.translation.tee import TeeDialect, TeeWriter


class Recording(TeeDialect):
    """A dialect whose replies an entry takes."""

    def __init__(self, dialect: Dialect, entry: Entry) -> None:
        super().__init__(dialect)
        self._entry = entry

    def write(self, reply: WholeReply, op: Op) -> Response:
        if isinstance(reply, Reply):
            self._entry.reply = whole_texts(reply, self._entry.most)  # before the dialect, which may change it
        return self._dialect.write(reply, op)

    def writer(self, op: Generate) -> StreamWriter:
        return _Writer(self._dialect.writer(op), self._entry)


class _Writer(TeeWriter):
    """The reply is that of the writer which wrote last: a worker may fail before its client has seen anything."""

    def __init__(self, writer: StreamWriter, entry: Entry) -> None:
        super().__init__(writer)
        self._entry = entry
        self._texts = ReplyTexts(entry.most)

    def take(self, event: Event) -> None:
        self._entry.reply = self._texts
        self._texts.take(event)
