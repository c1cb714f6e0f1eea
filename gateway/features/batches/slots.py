"""Slots for lines of batches, which all batches of a process share."""

from __future__ import annotations

import asyncio
from collections import Counter, deque


class Slots:
    """So many lines may be at workers at once. A slot that becomes free goes to the tenant that has the fewest, of
    those with lines that wait; the lines of a tenant get theirs in order."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # in the order in which tenants came

    async def take(self, tenant: str) -> None:
        """Returns once the tenant has one more: `give` returns it."""
        if self._free:
            self._free -= 1
            self._held[tenant] += 1
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(future)
        try:
            await future
        except BaseException:
            if future.done() and not future.cancelled():
                self.give(tenant)
            else:
                self._leave(tenant, future)
            raise

    def give(self, tenant: str) -> None:
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        if not self._waiting:
            self._free += 1
            return
        least = min(self._waiting, key=self._held.__getitem__)
        future = self._waiting[least][0]
        self._leave(least, future)
        self._held[least] += 1
        future.set_result(None)

    def _leave(self, tenant: str, future: asyncio.Future[None]) -> None:
        waiting = self._waiting.pop(tenant)
        waiting.remove(future)
        if waiting:  # behind the tenants that have as few
            self._waiting[tenant] = waiting
