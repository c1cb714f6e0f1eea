"""The replies that one process keeps in its memory, and the requests that wait for one."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gateway.light_task import OneTimeEvent

ENTRY: Final = 512
"""Bytes that Python or Redis keeps for a reply beside its text."""
MOST_WAITING: Final = 1000
"""Requests that wait for the reply to an equal one."""
LONGEST_WAIT_S: Final = 60.0
"""A reply may come as slowly as its own client reads it: others do not wait for that."""


class Flight:
    """A request under way whose reply may be kept. entry: the reply, once those in `waiting` may have it."""

    __slots__ = ("entry", "waiting")

    def __init__(self) -> None:
        self.entry: bytes | None = None
        self.waiting: set[OneTimeEvent] = set()


class Entries:
    """The replies that are kept in memory, within bounds, and the requests under way whose replies may be.

    bytes    of all replies that are kept, and of those that are being recorded
    cached   the replies, the one that was unused longest first, each with when it was made
    flights  the requests under way whose replies may be kept, by key
    waiting  how many wait for them
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.flights: dict[bytes, Flight] = {}
        self.max_entry_bytes = self.bytes = self.max_bytes = self.waiting = 0
        self.ttl_s = 0.0
        self.clock = clock
        self.cached: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()

    def bound(self, max_bytes: int, max_entry_bytes: int, ttl_s: float) -> None:
        """From now on these bounds hold; see `config.reply_cache`."""
        self.max_bytes, self.max_entry_bytes, self.ttl_s = max_bytes, max_entry_bytes, ttl_s
        self.take(0)

    async def find(self, key: bytes, owner: str) -> bytes | None:
        """The reply to an equal request of this owner."""
        return self.get(key)

    def get(self, key: bytes) -> bytes | None:
        found = self.cached.get(key)
        if found is None:
            return None
        if self.clock() - found[0] >= self.ttl_s:
            self.refuse(key)
            return None
        self.cached.move_to_end(key)
        return found[1]

    def put(self, key: bytes, owner: str, entry: bytes) -> bool:
        """Keeps a reply. Returns whether those that wait for it may have it."""
        self.refuse(key)
        fits = len(entry) <= self.max_entry_bytes and self.take(len(entry) + ENTRY)
        if fits:
            self.cached[key] = self.clock(), entry
        return fits

    def take(self, size: int) -> bool:
        """Takes room, from the replies that were unused longest if there is no other. Returns whether there was
        enough."""
        while self.bytes + size > self.max_bytes and self.cached:
            self.refuse(next(iter(self.cached)))
        fits = self.bytes + size <= self.max_bytes
        if fits:
            self.bytes += size
        return fits

    def give_back(self, size: int) -> None:
        self.bytes -= size

    def refuse(self, key: bytes) -> None:
        """The reply is not served again."""
        found = self.cached.pop(key, None)
        if found is not None:
            self.bytes -= len(found[1]) + ENTRY

    # -- requests under way -----------------------------------------------------------------------------------------

    @property
    def may_wait(self) -> bool:
        return self.waiting < MOST_WAITING

    def begin(self, key: bytes) -> Flight | None:
        """A request asks a worker, and equal ones may wait for its reply; None if they wait for another one's."""
        return None if key in self.flights else self.flights.setdefault(key, Flight())

    async def wait(self, key: bytes, flight: Flight) -> bytes | None:
        """Returns the reply once the request is over, or late; None if there is none for others. None waits from now on
        for one that is late."""
        over = OneTimeEvent()

        def late() -> None:
            self._forget(key, flight)
            over.set()

        flight.waiting.add(over)
        self.waiting += 1
        timer = asyncio.get_running_loop().call_later(LONGEST_WAIT_S, late)
        try:
            await over
        finally:
            timer.cancel()
            self.waiting -= 1
            flight.waiting.discard(over)
        return flight.entry

    def end(self, key: bytes, flight: Flight | None) -> None:
        """The request is over, or its reply is not kept. Idempotent."""
        if flight is not None:
            self._forget(key, flight)
            for waiting in flight.waiting:
                waiting.set()

    def _forget(self, key: bytes, flight: Flight) -> None:
        if self.flights.get(key) is flight:
            del self.flights[key]
