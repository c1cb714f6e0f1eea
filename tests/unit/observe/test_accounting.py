"""Accounting: what becomes of records that the server does not take (others:
tests/unit/ratelimit/test_http_redis.py)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from gateway.core.ports import RequestRecord
from gateway.observe.accounting import AccountingStream, Counts


class Lost:
    """A client, and its pipeline, whose server is lost while somebody waits for it and stays away.

    A cancellation meanwhile is swallowed, as by asyncio.wait_for before Python 3.12, which redis-py calls.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def pipeline(self, transaction: bool) -> Lost:
        return self

    def xadd(self, *_: Any, **__: Any) -> None:
        pass

    async def execute(self) -> None:
        again = self.asked.is_set()
        self.asked.set()
        if not again:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        raise ConnectionError


async def test_it_ends_although_its_writer_swallows_the_cancellation() -> None:
    client = Lost()
    stream = AccountingStream("usage", 10, client)
    stream.add(RequestRecord(id="1", dialect="openai"))
    await client.asked.wait()
    async with asyncio.timeout(30):
        await stream.close()
    assert stream.counts == Counts(0, 1)
