"""The options of traces."""

from __future__ import annotations

from pydantic import Field

from gateway.config.kinds import CollectorUrl, Name, Share
from gateway.config.section import Section


class Tracing(Section):
    """Traces by OpenTelemetry; needs the extra `tracing`."""

    endpoint: CollectorUrl = Field(
        description="Where a collector takes OTLP over HTTP, such as `http://127.0.0.1:4318`; without a path it is"
        " `/v1/traces`."
    )
    sample: Share = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Share of requests that are recorded, of those whose client names no trace; else the client's trace"
        " says whether it is recorded.",
    )
    service: Name = Field(default="dragoman", description="What the gateway is called in traces.")
    headers: dict[str, str] = Field(
        default={}, repr=False, description="Extra headers to the collector, such as one with a key."
    )
