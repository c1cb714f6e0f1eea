"""Traces: whether the extra `tracing` is installed, and the tracer of a running gateway.

Nothing of OpenTelemetry is imported before a configuration asks for traces.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gateway.config import Tracing as TracingConfig

if TYPE_CHECKING:
    from gateway.observe.spans import Spans


def installed() -> bool:
    """Whether what traces need is installed."""
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # one of its parents is not there
        return False


class Tracing:
    """A tracer that sends to a collector, and the settings that it was made of."""

    def __init__(self, settings: TracingConfig) -> None:
        from gateway.observe.spans import Spans, exporter

        self._settings = settings
        self.tracer: Spans = Spans(exporter(settings), settings)

    @classmethod
    def follow(cls, before: Tracing | None, settings: TracingConfig | None) -> Tracing | None:
        """The tracer for `settings`: `before` if it has the same settings; None without settings."""
        if settings is None or (before is not None and before._settings == settings):
            return before if settings is not None else None
        return cls(settings)

    async def close(self) -> None:
        """Sends what is left, for a few seconds at most."""
        await asyncio.to_thread(self.tracer.close)
