"""Batches as admins see them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct


class BatchView(Struct):
    """A batch. requests: 0 until they are counted; those with a result are `succeeded` or `failed`. repeated: begun
    again after a gateway had died."""

    id: str
    api: Literal["openai", "anthropic"]
    team: str | None
    key: str
    endpoint: str
    status: str
    ended: bool
    requests: int
    succeeded: int
    failed: int
    repeated: int
    created: datetime
    expires: datetime


class BatchPage(Struct):
    """Batches, the newest first. next: `after` of the next page; null on the last. A page may be short for an admin of
    some teams, or of one status."""

    batches: list[BatchView]
    next: str | None
