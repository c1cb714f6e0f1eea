"""The batches of all tenants, for admins."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any

from gateway.features.batches.state import ENDED, BatchStore, StoredBatch

_READ, _MOST_READ = 200, 2_000
"""Batches that are read at once, and for one page: a page that wants few of them may be short."""


class Overview:
    """As `features.AllBatches`. runs: the batches that this process runs. log: called with a level, an event and
    facts."""

    def __init__(self, store: BatchStore, runs: Sized, log: Callable[..., None]) -> None:
        self._store = store
        self._runs = runs
        self._log = log

    @property
    def running(self) -> int:
        return len(self._runs)

    async def page(
        self, wanted: Callable[[str | None], bool], status: str | None, most: int, after: str | None
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Batches of teams that are `wanted`, the newest first, and the id that the next page follows, if there may be
        one. Raises GatewayError if Redis does not answer."""
        found: list[dict[str, Any]] = []
        for _ in range(_MOST_READ // _READ):
            ids = await self._store.newest(_READ, after)
            for batch in await self._store.batches(ids):
                if wanted(batch.spec.team) and status in (None, batch.status):
                    if len(found) == most:
                        return found, found[-1]["id"]
                    found.append(_described(batch))
            if len(ids) < _READ:
                return found, None
            after = ids[-1]
        return found, after

    async def batch(self, id_: str, wanted: Callable[[str | None], bool]) -> dict[str, Any] | None:
        """None if there is no such batch, or its team is not wanted. Raises GatewayError."""
        batch = await self._store.batch(id_)
        return _described(batch) if batch is not None and wanted(batch.spec.team) else None

    async def cancel(self, id_: str, by: str) -> None:
        """Asks for the end of a batch that is there and has not ended. Raises GatewayError."""
        await self._store.cancel(id_)
        self._log("info", "batch cancelled", batch=id_, by=by)


def _described(batch: StoredBatch) -> dict[str, Any]:
    """The members by which an admin sees a batch."""
    spec, state = batch.spec, batch.state
    return {
        "id": spec.id,
        "api": spec.kind,
        "team": spec.team,
        "key": spec.key,
        "endpoint": spec.endpoint,
        "status": batch.status,
        "ended": state.status in ENDED,
        "requests": state.total or spec.total,
        "succeeded": state.succeeded,
        "failed": state.failed,
        "repeated": state.repeated,
        "created": spec.created,
        "expires": spec.ends,
    }
