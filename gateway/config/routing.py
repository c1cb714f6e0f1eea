"""Options for choosing the worker of a request, for waiting for one, and for another model that gets it."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import Field

from gateway.config.kinds import Bytes, Flag, HeaderName, Name, Seconds, Share, Whole, WorkerUrl
from gateway.config.section import Section
from gateway.core.http import Headers

Policy = Literal["prefix", "least_tokens", "power_of_two", "least_busy", "round_robin"]


class KvEvents(Section):
    """The ports at which vLLM publishes the content of its prefix cache (`--kv-events-config`), for the policy
    `prefix`."""

    port: Whole = Field(default=5557, ge=1, le=65535)
    """Port of its `endpoint`, at the worker's host."""
    replay_port: Whole | None = Field(default=None, ge=1, le=65535)
    """Port of its `replay_endpoint`. Absent: events that were missed, such as those before the gateway's start, stay
    unknown."""


class WorkerOptions(Section):
    """The differences of one worker."""

    weight: Share = Field(default=1.0, ge=0.01, le=100)
    """Its speed beside the others of its model: 2 takes twice the load."""
    capacity: Whole | None = Field(default=None, ge=1)
    """Most requests at once on this worker. Absent: the model's `max_in_flight`."""
    kv_events: KvEvents | None = None
    """Its own ports. Absent: those of the model's."""


class Prefill(Section):
    """Workers that compute prompts for the workers of a model, which then only generate."""

    workers: tuple[WorkerUrl, ...] = Field(min_length=1, max_length=1000)
    """Base addresses of vLLM engines with a KV connector; none of the model's `workers`."""
    min_tokens: Whole = Field(default=0, ge=0, le=10_000_000)
    """Prompts that are shorter, by estimate, are computed where their reply is generated."""


class Queue(Section):
    """Waiting while no worker of a model is free; see docs/reliability.md."""

    max_waiting: Whole = Field(default=1000, ge=0, le=1000000)
    """Most requests that wait, for each model."""
    max_bytes: Bytes = Field(default=1 << 28, ge=1024, le=1 << 40)
    """Most bytes of their bodies; one alone may be larger."""
    timeout_s: Seconds = Field(default=600.0, gt=0, le=86400)
    """Longest wait; then the request is refused, or at once where its wait is expected to be longer."""
    cold_start_s: Seconds = Field(default=0.0, ge=0, le=86400)
    """Longest wait of a request while no worker could serve its model, such as in a fleet scaled to zero. 0: refused at
    once."""
    learn_capacity: Flag = True
    """If a worker has neither `max_in_flight` nor `capacity`: take it for full while its engine reports that requests
    wait. Needs `routing.scrape_s`."""


class Routing(Section):
    """How workers are chosen; see docs/routing.md."""

    FEATURES = {"explain": "tracing"}

    session_headers: tuple[HeaderName, ...] = Field(
        default=("x-session-id", "x-claude-code-session-id", "session-id", "x-amzn-sagemaker-prefix-aware-id"),
        max_length=20,
    )
    """Request headers that name a session: with the policy `prefix` all its requests go to one worker. Empty: none."""
    scrape_s: Seconds = Field(default=2.0, ge=0, le=3600)
    """Between two readings of an engine's `/metrics`, which show the load from others. After two failed readings only
    the gateway's own requests count. 0: never."""
    load_header: Flag = False
    """Ask engines for their load in the head of each whole reply, too (`endpoint-load-metrics`): fresher than
    `/metrics`, at a small cost to vLLM."""
    explain: Literal["never", "asked", "always"] = "asked"
    """Replies that name worker, attempts, wait and reason in `x-dragoman-*` headers: none, those to requests with
    `x-dragoman-explain`, or all."""


Reason = Literal["unavailable", "overloaded", "transient", "account", "context_length"]
"""Why a fallback is asked: no worker could answer; all are busy or refuse for now; the prompt is too long."""


class SplitRule(Section):
    """Requests of this model that another model answers instead. The first rule that takes a request counts."""

    model: Name
    """The other model, or an alias of it."""
    share: Share = Field(default=1.0, gt=0, le=1)
    """Part of the requests that the rule is for. The shares add up in order."""
    keys: tuple[Name, ...] | None = Field(default=None, min_length=1)
    """Only requests of these keys. Absent: of all."""
    headers: dict[str, str] = {}
    """Only requests with all of these headers, each with exactly this value."""

    @cached_property
    def wanted(self) -> tuple[frozenset[str], frozenset[tuple[bytes, bytes]]]:
        """`keys` and `headers` in the form in which requests are compared with them."""
        headers = ((name.lower().encode(), value.encode()) for name, value in self.headers.items())
        return frozenset(self.keys or ()), frozenset(headers)

    def matches(self, headers: Headers, key: str) -> bool:
        """Whether the rule is for a request of `key` with `headers`."""
        keys, wanted = self.wanted
        return (self.keys is None or key in keys) and (not wanted or wanted.issubset(headers))


class Mirror(Section):
    """Copies of requests for another model, whose replies are dropped."""

    model: Name
    """The model that gets copies, or an alias of it."""
    share: Share = Field(default=1.0, gt=0, le=1)
    """Part of the requests, drawn by chance."""
    max_in_flight: Whole = Field(default=16, ge=1, le=10000)
    """Most copies under way at once; further ones are left out."""
