"""Options of the log of prompts and replies."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.config.batches import Bucket
from gateway.config.kinds import Bytes, Flag, Name, Seconds, Share
from gateway.config.request_policies import Subject
from gateway.config.section import Section

_DAY = 86400


class PromptRule(Section):
    """Requests whose prompts and replies are logged."""

    match: dict[Subject, tuple[str, ...]] = Field(min_length=1)
    """Requests of one of these keys and of these teams, and for one of these models."""
    sample: Share = Field(default=1.0, gt=0, le=1)
    """Share of them. The id of a request decides."""


class PromptLog(Section):
    """The log of prompts and replies that a rule names, or a key by `log_prompts_until`; see docs/prompt-log.md.
    Without a rule and such a key nothing is logged."""

    ANY_OF = ("directory", "bucket", "traces")

    rules: dict[Name, PromptRule] = {}
    """The requests, by names of your own."""
    directory: str | None = Field(default=None, pattern=r"^/", max_length=1024)
    """Absolute path of a folder for files with a line of JSON for each request."""
    bucket: Bucket | None = None
    """A bucket for the same lines, in objects."""
    keep_s: Seconds = Field(default=7.0 * _DAY, ge=60, le=3660 * _DAY)
    """Age at which a file there, or an object in the bucket, is deleted."""
    max_bytes: Bytes = Field(default=1 << 30, ge=1 << 20, le=1 << 50)
    """Most bytes of all of them; the oldest is deleted first."""
    traces: Flag = False
    """Send each as a span of the request's trace, by OpenTelemetry's conventions. Needs `tracing`."""
    max_entry_bytes: Bytes = Field(default=65536, ge=256, le=1 << 24)
    """Most bytes of the texts of one prompt, and of those of its reply; what is longer is cut off, and marked."""
    max_waiting_bytes: Bytes = Field(default=64 << 20, ge=1 << 16, le=1 << 36)
    """Most bytes of requests in the memory of one process that are under way or not written yet; beyond it none is
    logged."""
    mask: tuple[Literal["email", "card"], ...] = ("email", "card")
    """Kinds of text that are masked; keys always are."""
    patterns: dict[Name, str] = {}
    """Further texts that are masked: regular expressions by the names that stand for what they match."""
