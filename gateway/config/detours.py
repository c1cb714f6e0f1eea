"""Options by which another model than the one that a request names gets it, or a copy of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.config.kinds import Name, Share, Whole
from gateway.config.section import Section

Reason = Literal["unavailable", "overloaded", "context_length"]
"""Why a fallback is asked: no worker could answer; all are busy or refuse for now; the prompt is too long."""


class SplitRule(Section):
    """Requests of this model that another model answers instead. The first rule that takes a request counts."""

    model: Name = Field(description="The other model, or an alias of it.")
    share: Share = Field(
        default=1.0, gt=0, le=1, description="Part of the requests that the rule is for. The shares add up in order."
    )
    keys: tuple[Name, ...] | None = Field(
        default=None, min_length=1, description="Only requests of these keys. Absent: of all."
    )
    headers: dict[str, str] = Field(
        default={}, description="Only requests with all of these headers, each with exactly this value."
    )


class Mirror(Section):
    """Copies of requests for another model, whose replies are dropped."""

    model: Name = Field(description="The model that gets copies, or an alias of it.")
    share: Share = Field(default=1.0, gt=0, le=1, description="Part of the requests, drawn by chance.")
    max_in_flight: Whole = Field(
        default=16, ge=1, le=10000, description="Most copies under way at once; further ones are left out."
    )
