"""Options of the cache of replies."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.config.kinds import Bytes, Flag, Name, Seconds
from gateway.config.section import Section


class ReplyCache(Section):
    """Answers a request again with the reply that an equal one got; see docs/reply-cache.md."""

    models: tuple[Name, ...] | None = Field(default=None, min_length=1)
    """The models whose replies are kept. Absent: all."""
    keys: tuple[Name, ...] | None = Field(default=None, min_length=1)
    """The keys whose requests it serves. Absent: all, and callers without one."""
    store: Literal["memory", "redis"] = "memory"
    """Replies are kept in the memory of each process, or in `redis` for all gateways together."""
    max_bytes: Bytes = Field(default=67108864, ge=1024, le=1 << 36)
    """Most bytes of all replies there. In memory the one that was unused longest goes first, in Redis the oldest."""
    max_entry_bytes: Bytes = Field(default=1048576, ge=256, le=1 << 30)
    """Most bytes of one reply; a larger one is not kept."""
    ttl_s: Seconds = Field(default=3600.0, gt=0, le=31536000)
    """How long a reply is served again."""
    shared: Flag = False
    """One team or key may get the reply that another one asked for. It can find out what others asked."""
