"""Requests under the metric names of OpenTelemetry's semantic conventions for generative AI.

Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/, spelt as its Prometheus exporters spell it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from prometheus_client.core import Metric

from gateway.core.figures import Histogram
from gateway.core.ports import RequestRecord
from gateway.observe import exposition

OPERATIONS = {"chat": "chat", "complete": "text_completion", "embed": "embeddings"}
"""Our operations in the conventions' words; others keep their name."""
PROVIDER = "dragoman"

_REQUEST = "gen_ai_server_request_duration_seconds"
_FIRST = "gen_ai_server_time_to_first_token_seconds"
_TOKEN = "gen_ai_server_time_per_output_token_seconds"
_USAGE = "gen_ai_client_token_usage"


def _error_type(record: RequestRecord) -> str:
    """One of a closed set of values; the codes of errors are not a closed set."""
    if record.outcome == "ok":
        return ""
    return str(record.status) if record.status else record.outcome


class GenAi:
    """Adds up finished requests whose model is known."""

    def __init__(self) -> None:
        self._series = {
            name: defaultdict[tuple[str, ...], Histogram](partial(exposition.new_histogram, name))
            for name in (_REQUEST, _FIRST, _TOKEN, _USAGE)
        }

    def add(self, record: RequestRecord) -> None:
        if not record.model:
            return
        labels = (OPERATIONS.get(record.operation, record.operation), PROVIDER, record.model)
        self._add(_REQUEST, (*labels, _error_type(record)), record.duration_ms / 1000, record)
        usage, first_ms = record.usage, record.time_to_first_token_ms
        if first_ms is not None:
            self._add(_FIRST, labels, first_ms / 1000, record)
            if record.outcome == "ok" and usage is not None and usage.output is not None and usage.output > 1:
                self._add(_TOKEN, labels, (record.duration_ms - first_ms) / 1000 / (usage.output - 1), record)
        if usage is not None:
            for kind, count in (("input", usage.input), ("output", usage.output)):
                if count is not None:
                    self._add(_USAGE, (*labels, kind), count, record)

    def _add(self, name: str, labels: tuple[str, ...], value: float, record: RequestRecord) -> None:
        figures = self._series[name][labels]
        if record.trace is None:
            figures.add(value)
        else:
            figures.add_traced(value, record.trace, record.time)

    def collect(self) -> Iterator[Metric]:
        for name, series in self._series.items():
            yield exposition.histogram(name, series.items())
