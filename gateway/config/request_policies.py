"""Options of policies on requests."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gateway.config.kinds import Name, Number
from gateway.config.section import Section

Subject = Literal["key", "team", "model"]
Preset = Literal["openai-reasoning"]


class RequestPolicy(Section):
    """Changes requests before a worker gets them; see docs/request-policies.md. Members are named as in OpenAI's API,
    and are meant in every dialect."""

    ANY_OF = ("preset", "defaults", "force", "caps", "drop", "rename", "system", "headers", "pass_headers")

    match: dict[Subject, tuple[str, ...]] = {}
    """Applies only to requests of one of these keys and of these teams, and for one of these models. Empty: to all."""
    preset: Preset | None = None
    """Drops and renames for a family of models, which come with the product."""
    defaults: dict[str, Any] = {}
    """Members with values, for requests that lack them."""
    force: dict[str, Any] = {}
    """Members with values, whatever the request has."""
    caps: dict[str, Number] = {}
    """Members with the most that a request may ask for. Without `max_tokens` a request asks for more than any."""
    over_cap: Literal["lower", "refuse"] = "lower"
    """A request that asks for more is lowered, which `x-dragoman-policy` names, or gets a 400."""
    drop: tuple[str, ...] = ()
    """Members that are taken from requests, and named in `x-dragoman-dropped`."""
    rename: dict[str, str] = {}
    """Members that workers know by another name: `{max_tokens: max_completion_tokens}`."""
    system: str | None = Field(default=None, min_length=1, max_length=1 << 20)
    """A system message in front of every chat."""
    headers: dict[str, str] = Field(default={}, repr=False)
    """Headers that workers get."""
    pass_headers: tuple[str, ...] = ()
    """The client's own headers that workers get."""


RequestPolicies = dict[Name, RequestPolicy]
