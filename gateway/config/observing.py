"""The options of what the gateway tells of itself: its log, metrics and traces."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.config.kinds import Address, Flag, Name, Share, Url
from gateway.config.section import Section


class Log(Section):
    """What is written to standard output."""

    requests: Flag = Field(default=True, description="One record a request.")
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="Least level that is written. `debug` says of every request to which worker it went and what came"
        " of it, and what every probe found.",
    )
    format: Literal["auto", "json", "console"] = Field(
        default="auto",
        description="One JSON object a line, or lines for people to read. `auto`: for people if standard output is a"
        " terminal.",
    )
    dangerously_log_prompts: Flag = Field(
        default=False,
        description="Write the body of every request into the log, at level `info`: prompts, and all else that clients"
        " say. Whoever reads the log reads them. Not for production.",
    )


class Metrics(Section):
    """Figures for Prometheus."""

    enabled: Flag = Field(default=True, description="Serve `/metrics`.")
    listen: Address | None = Field(
        default=None,
        description="`host:port` of their own, for `/metrics`, `/livez` and `/readyz`; then `/metrics` is nowhere else."
        " Absent: where clients call, for everybody who can.",
    )
    genai: Flag = Field(
        default=False,
        description="Show requests, first tokens and token usage under OpenTelemetry's names (`gen_ai_*`) too.",
    )


class Tracing(Section):
    """Traces by OpenTelemetry; needs the extra `tracing`."""

    endpoint: Url = Field(
        description="Where a collector takes OTLP over HTTP, such as `http://127.0.0.1:4318/v1/traces`."
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
