"""When each key was used last, by any gateway. No request waits for it: a use is noted in memory, and what was noted is
written every few seconds, each key at most once a minute."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from itertools import islice

from gateway.auth.key_store import KeyStore, StoreDown
from gateway.background import cancel_tasks, keep_running

_EVERY_S = 5.0
_RETRY_S = 60.0
_AT_ONCE = 1000
"""Keys of one call to Redis."""


class LastUsed:
    """log: called with a level, an event and facts. clock: Unix seconds."""

    def __init__(self, store: KeyStore, log: Callable[..., None], clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._log = log
        self._clock = clock
        self._minute = 0.0
        self._noted: set[str] = set()  # in this minute
        self._waiting: dict[str, float] = {}
        self._writing: asyncio.Task[None] | None = None
        self._failing = False

    def note(self, key: str) -> None:
        """A request of the key `key` has ended; "" where nobody was known. Tokens of a provider are not keys."""
        now = self._clock()
        if (minute := now // 60) != self._minute:
            self._minute, self._noted = minute, set()
        if key in self._noted or not key or key.startswith("jwt:"):
            return
        self._noted.add(key)
        self._waiting[key] = now
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def of(self, keys: Collection[str]) -> Mapping[str, float]:
        """Unix seconds by key, of those that were used. Nothing while Redis does not answer."""
        try:
            return await self._store.last_used(keys) if keys else {}
        except StoreDown:
            return {}

    async def _write(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(_RETRY_S if self._failing else _EVERY_S)
                with keep_running("last uses of keys"):
                    await self._send()
        finally:
            self._writing = None

    async def _send(self) -> None:
        some = dict(islice(self._waiting.items(), _AT_ONCE))
        try:
            await self._store.used(some)
        except StoreDown as down:  # what was noted waits
            if not self._failing:
                self._log("warning", "last uses of keys not written", reason=str(down))
            self._failing = True
            return
        self._failing = False
        for key, moment in some.items():
            if self._waiting[key] == moment:
                del self._waiting[key]

    async def close(self) -> None:
        """Writes what is left if the server takes it now."""
        await cancel_tasks(self._writing)
        while self._waiting:
            before = len(self._waiting)
            with contextlib.suppress(Exception):
                await self._send()
            if len(self._waiting) == before:
                return
