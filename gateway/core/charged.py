"""The tokens that a request is charged, by its record: limits and prices agree on them."""

from __future__ import annotations

from math import ceil
from typing import Literal

from gateway.core.errors import GatewayError, Kind
from gateway.core.ports import RequestRecord
from gateway.core.usage import Usage

Outcome = Literal["finished", "failed", "cancelled", "unserved"]
"""How an admitted request ended. "unserved": nothing answered it, or it will come again; everything is returned."""

_OUTCOMES: dict[str, Outcome] = {"ok": "finished", "refused": "failed", "failed": "failed", "cancelled": "cancelled"}

YIELDED = "yielded"
"""The code of a request of a batch that gave its place to others: it comes again, and is charged then."""

_UNSEEN = frozenset(["deadline_exceeded", Kind.TIMEOUT.value, "upstream_too_large"])
"""Failures after which nobody knows how much a worker produced. Clients can provoke them by a long or large reply."""

_FASTEST = 1000
"""Tokens a second of one output, more than engines on GPUs produce."""

NOTHING = Usage(0, 0)


def outcome_of(record: RequestRecord) -> Outcome:
    answered = record.attempts or record.cache == "hit"
    return _OUTCOMES[record.outcome] if answered and record.code != YIELDED else "unserved"


def used(record: RequestRecord, prompt: int) -> Usage | None:
    """The tokens to charge for a request that a worker was picked for; None is unknown. prompt: its estimate.

    If the client of a plain reply leaves, or the reply takes too long or is too large, nobody knows what the worker
    produced. Limits then keep the reservation, and may charge more; otherwise clients could avoid every limit
    this way. A stream is relayed as it is produced, so one that its client left before the first token is charged its
    prompt. Any other failure without output costs nothing.
    """
    usage = record.usage
    if usage is not None and usage.output:
        return usage  # nearly every one
    outcome = outcome_of(record)
    if outcome == "failed" and (usage is None or not (usage.output or usage.images)):
        return None if record.code in _UNSEEN else NOTHING
    if usage is None or (usage.input is None and usage.output is None):
        return Usage(prompt, 0) if outcome == "cancelled" and record.stream else None
    return usage


def is_unseen(error: GatewayError) -> bool:
    """Whether nobody knows how much a worker has produced that failed by `error`."""
    return (error.code or error.kind.value) in _UNSEEN


def produced_at_most(choices: int, seconds: float) -> int:
    """Tokens that a worker can produce of so many outputs in `seconds`. It stops when the request ends."""
    return choices * ceil(seconds * _FASTEST)
