"""Traces: whether the extra `tracing` is installed, and the tracer of a running gateway.

Nothing of OpenTelemetry is imported before a configuration asks for traces.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from gateway.config import Tracing

if TYPE_CHECKING:
    from gateway.observe.spans import Spans


def installed() -> bool:
    """Whether what traces need is installed."""
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # one of its parents is not there
        return False


def tracer_of(settings: Tracing | None, before: Spans | None) -> Spans | None:
    """The tracer for `settings`: `before` if it has the same settings; None without settings."""
    if settings is None or (before is not None and before.settings == settings):
        return before if settings is not None else None
    from gateway.observe.spans import Spans, exporter

    return Spans(exporter(settings), settings)
