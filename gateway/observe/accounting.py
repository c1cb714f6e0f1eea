"""Every request's record to a Redis stream, for a billing job. No request waits for it, and its backlog is bounded.

Written in batches by a task of its own. A batch that fails is tried again until the backlog is full; then the oldest
records are lost and counted. A batch whose answer was lost may be written twice: a reader recognises such records by
`id` and `time`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from gateway import moments
from gateway.background import cancel_tasks
from gateway.core.key_kind import KeyKind
from gateway.core.ports import RequestRecord
from gateway.core.written import Moment

KEY_KINDS = (KeyKind("NAMESPACE:STREAM"),)  # STREAM is `accounting.redis_stream`
_BATCH = 500
_BACKLOG = 50_000
_EVERY_S = 0.2
_TIMEOUT_S = 2.0
_encode = msgspec.json.Encoder(enc_hook=moments.write).encode


class Counts(msgspec.Struct):
    """Records so far."""

    written: int = 0
    lost: int = 0


class AccountingStream:
    """The entries have one field, `record`: the JSON of the log's request record.

    client      of redis-py (asyncio); `close` closes it
    max_length  about how many entries the stream keeps
    on_change   called with "failing" and the error's class, and with "writing" once it goes on; once each time
    counts      those of the streams before, which this one continues
    successor   writes what waits once this one has closed
    """

    def __init__(
        self,
        name: str,
        max_length: int,
        client: Any,
        on_change: Callable[[str, str], None] = lambda state, reason: None,
        counts: Counts | None = None,
    ) -> None:
        self.counts = counts or Counts()
        self.successor: AccountingStream | None = None
        self._failing = False
        self._on_change = on_change
        self._name = name
        self._max_length = max_length
        self._client = client
        self._waiting: deque[bytes] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._closing = False

    def add(self, record: RequestRecord) -> None:
        record.time = record.time or Moment(time.time())
        self._waiting.append(_encode(record))
        self._begin()

    def _begin(self) -> None:
        self._bound()
        if self._writer is None and self._waiting:
            self._writer = asyncio.get_running_loop().create_task(self._write())

    def _bound(self) -> None:
        while len(self._waiting) > _BACKLOG:
            self._waiting.popleft()
            self.counts.lost += 1

    async def _write(self) -> None:
        try:
            while self._waiting and not self._closing:
                await asyncio.sleep(_EVERY_S)
                while self._waiting and not self._closing and await self._one_batch():
                    pass
        finally:
            self._writer = None

    async def _one_batch(self) -> bool:
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH))]
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                pipeline = self._client.pipeline(transaction=False)
                for record in batch:
                    pipeline.xadd(self._name, {"record": record}, maxlen=self._max_length, approximate=True)
                await pipeline.execute()
        except asyncio.CancelledError:
            self._waiting.extendleft(reversed(batch))
            raise
        except Exception as error:  # whatever the server or the network does, records wait and requests go on
            if not self._failing:
                self._failing = True
                self._on_change("failing", type(error).__name__)
            self._waiting.extendleft(reversed(batch))
            self._bound()
            return False
        self.counts.written += len(batch)
        if self._failing:
            self._failing = False
            self._on_change("writing", "")
        return True

    async def close(self) -> None:
        """Writes what is left if the server takes it now, or hands it over."""
        self._closing = (
            True  # redis-py may swallow the cancellation: it calls wait_for, which does so before Python 3.12
        )
        await cancel_tasks(self._writer)
        if (later := self.successor) is not None and not later._closing:
            later._waiting.extendleft(reversed(self._waiting))
            later._begin()
        else:
            while self._waiting and await self._one_batch():
                pass
            self.counts.lost += len(self._waiting)
        with contextlib.suppress(Exception):
            await self._client.aclose()
