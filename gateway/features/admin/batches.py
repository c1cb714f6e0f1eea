"""Batches as admins see them. The package `batches` keeps them; this one knows of it by `Batches` alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, Protocol

from msgspec import Struct


class Batches(Protocol):
    """The batches of all tenants. Each method raises GatewayError if Redis does not answer. wanted: whether those of
    this team are. A batch has the members of `BatchView`, with times in Unix seconds."""

    async def page(
        self, wanted: Callable[[str | None], bool], status: str | None, most: int, after: str | None
    ) -> tuple[list[dict[str, Any]], str | None]: ...

    async def batch(self, id_: str, wanted: Callable[[str | None], bool]) -> dict[str, Any] | None: ...

    async def cancel(self, id_: str, by: str) -> None: ...


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
