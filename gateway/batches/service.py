"""The service that a gateway has for files and batches: their APIs, and the work in the background."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

from gateway.batches.api_call import ApiEndpoint
from gateway.batches.disk import Directory
from gateway.batches.files import ROUTES as FILES
from gateway.batches.files import Files
from gateway.batches.state import BatchStore
from gateway.config import Batches
from gateway.core.background import keep_running
from gateway.core.errors import GatewayError
from gateway.core.http import Route
from gateway.core.ports import Dialect
from gateway.pipeline import Runtime

ROUTES: Mapping[str, tuple[Route, ...]] = {"openai": FILES}
"""Dialect -> the routes of its API that are served here."""

_EVERY_S = 5.0
_SWEEP_S = 3600.0


class Batching:
    """log: called with a level, an event and facts. It stays over reloads while its options do."""

    def __init__(self, options: Batches, store: BatchStore, log: Callable[..., None]) -> None:
        self.options = options
        self._store = store
        self._directory = Directory(options.directory)
        self._log = log
        self._answers = Files(options, store, self._directory).answers
        self._tasks: list[asyncio.Task[None]] = []
        self._swept_at = 0.0

    def endpoint(self, runtime: Runtime, dialect: Dialect, routes: Mapping[str, Route]) -> ApiEndpoint:
        return ApiEndpoint(runtime, dialect, routes, self._answers)

    async def start(self) -> None:
        """Raises OSError if the folder cannot be written to."""
        if not self._tasks:
            await asyncio.to_thread(self._directory.check)
            self._tasks = [asyncio.create_task(self._tidy())]

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._store.close()

    async def _tidy(self) -> None:
        while True:
            # While Redis is away, what is past stays past.
            with keep_running("files of batches"), contextlib.suppress(GatewayError):
                await self._forget()
            await asyncio.sleep(_EVERY_S)

    async def _forget(self) -> None:
        """Removes what is past its time, and from time to time what gateways that died have left."""
        for kind, id_ in await self._store.past():
            if kind == "file" and (file := await self._store.file(id_)) is not None:
                await self._store.drop_file(file)
            elif kind == "batch" and (batch := await self._store.batch(id_)) is not None:
                await self._store.drop_batch(batch.spec)
            await asyncio.to_thread(self._directory.remove, (id_,))
            await self._store.forget(kind, id_)
        now = time.monotonic()
        if now >= self._swept_at + _SWEEP_S or not self._swept_at:
            self._swept_at = now
            if found := await asyncio.to_thread(self._directory.sweep, self.options.keep_s):
                self._log("info", "leftovers of batches removed", files=found)
