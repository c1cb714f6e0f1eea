"""A dialect whose replies a feature takes, too, as they are written.

A feature puts one in the place of a call's dialect. It has no passthrough lanes: bytes are not events. All else is the
dialect's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from gateway.core.events import Event
from gateway.core.messages import Citation, ServerCall
from gateway.core.ports import Dialect, ServerToolWriter, StreamWriter


class TeeDialect:
    """A subclass overrides `write` or `writer`. `write` may run in a thread, and a guard may have a reply written
    again."""

    passthrough: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dialect, name)


class TeeWriter:
    """Writes one stream. A subclass gets each event by `take` once it is written. Implements
    core.ports.ServerToolWriter if `writer` does."""

    def __init__(self, writer: StreamWriter) -> None:
        self.headers, self.clean_end, self.keepalive = writer.headers, writer.clean_end, writer.keepalive
        self._writer = writer

    @property
    def buffered_bytes(self) -> int:
        return self._writer.buffered_bytes

    def write(self, event: Event) -> bytes:
        out = self._writer.write(event)
        self.take(event)
        return out

    def take(self, event: Event) -> None:
        raise NotImplementedError

    # Only of a dialect whose requests have such tools.

    @property
    def _tool_writer(self) -> ServerToolWriter:
        return cast("ServerToolWriter", self._writer)

    def called(self, call: ServerCall) -> bytes:
        return self._tool_writer.called(call)

    def returned(self, call: ServerCall) -> bytes:
        return self._tool_writer.returned(call)

    def cite(self, index: int, citations: Sequence[Citation]) -> None:
        self._tool_writer.cite(index, citations)
