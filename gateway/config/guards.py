"""Options of guards: services that are asked about requests and replies."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.config.kinds import Bytes, Flag, Name, Seconds, ServiceUrl, Whole
from gateway.config.section import Section


class Guard(Section):
    """A service that is asked about requests, replies, or both; see docs/guards.md."""

    url: ServiceUrl
    """Its address, which takes a POST."""
    headers: dict[str, str] = Field(default={}, repr=False)
    """Extra headers to it, such as one with a key."""
    before: Flag = True
    """Ask it about requests, before a worker gets them."""
    after: Literal["never", "whole", "windows"] = "never"
    """Ask it about replies: of the `whole` one, before the client gets any of it, or of a stream in `windows`."""
    window_chars: Whole = Field(default=400, ge=20, le=1 << 20)
    """Characters of a stream that it is shown together."""
    overlap_chars: Whole = Field(default=40, ge=0, le=1 << 16)
    """Characters at the end of a window that the client gets only once they were shown again, with the next one. Fewer
    than `window_chars`."""
    models: tuple[Name, ...] | None = Field(default=None, min_length=1)
    """The models that it guards. Absent: all."""
    keys: tuple[Name, ...] | None = Field(default=None, min_length=1)
    """The keys that it guards. Absent: all, and callers without one."""
    timeout_s: Seconds = Field(default=2.0, gt=0, le=600)
    """How long one answer may take."""
    max_bytes: Bytes = Field(default=1048576, ge=1024, le=1 << 26)
    """Most bytes of a question, and of an answer."""
    on_failure: Literal["closed", "open"] = "closed"
    """Without a right answer in time: refuse the request or reply, or let it through."""
