"""Counters shared by replicas, in Redis (6.2 and later) or Valkey: single, behind Sentinel, or a Cluster.

See `gateway.ratelimit.redis.batcher` for batching, deadlines and the breaker, `gateway.redis` for connecting, and
`docs/limits.md` for setting a server up.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from gateway.config import Redis
from gateway.light_task import Promise
from gateway.ratelimit.model import Plan, Settlement, Verdict
from gateway.ratelimit.plan import Layout
from gateway.ratelimit.redis.batcher import Batcher, Replica
from gateway.ratelimit.redis.codec import ADMIT, LOOK, RAISE, RENEW, RESET, SETTLE
from gateway.ratelimit.redis.link import Link
from gateway.redis import Servers

SCRIPT = files(__package__).joinpath("admit.lua").read_bytes()
_SHA = hashlib.sha1(SCRIPT, usedforsecurity=False).hexdigest().encode()

_PLENTY = 16
_HEARTBEATS_TO_EXPIRY = 3.5
"""A replica counts as gone after missing three heartbeats."""


class RedisStore:
    """Counters in Redis. heartbeat: seconds between two calls of `beat`; expected: replicas to assume before the first
    heartbeat was answered."""

    def __init__(
        self,
        settings: Redis,
        *,
        layout: Layout | None = None,
        expected: int = 1,
        heartbeat: float = 5.0,
    ) -> None:
        self.layout = layout or Layout()
        self.up = False
        self.reason = "not started"
        self.replicas = max(expected, 1)
        self.changed: Callable[[bool, str], None] | None = None
        self._settings = settings
        self._heartbeat = heartbeat
        self._me = secrets.token_hex(6)
        self._servers: Servers | None = None
        self._batchers: list[Batcher] = []
        self._links: list[Link] = []
        self._started = False

    def admit(self, plan: Plan, costs: Sequence[Any], holder: str) -> Verdict | Promise[Verdict]:
        answer: Promise[Any] = self._batchers[plan.tag].ask(ADMIT, plan, costs, holder)
        return answer  # the codec checked that it is a verdict

    def settle(
        self, plan: Plan, holder: str, settlements: Sequence[Settlement], admitted: Verdict | None = None
    ) -> None:
        needed = admitted is None or _is_scarce(plan, admitted, settlements)
        self._batchers[plan.tag].post(SETTLE, plan, settlements, holder, needed)

    def make_room(self, plan: Plan, since: int) -> bool:
        """Called when the server refuses a request, before its client learns of it. Returns whether units may have been
        given back since the server was asked, at this microsecond of the monotonic clock: then it is asked again."""
        return False

    def renew(self, holders: Sequence[tuple[str, Plan]]) -> None:
        for holder, plan in holders:
            self._batchers[plan.tag].post(RENEW, plan, plan.slots, holder)

    async def look(self, plan: Plan) -> Verdict:
        verdict = await self._batchers[plan.tag].ask(LOOK, plan, ())
        assert isinstance(verdict, Verdict)
        return verdict

    async def reset(self, plan: Plan) -> None:
        await self._batchers[plan.tag].ask(RESET, plan, ())

    async def raise_budgets(self, plan: Plan, used: Sequence[int]) -> None:
        """As that of `MemoryStore`. Raises `StoreDown`."""
        await self._batchers[plan.tag].ask(RAISE, plan, used)

    async def start(self, slot_ttl: float) -> None:
        self._servers = servers = Servers(self._settings)
        for tag in range(self.layout.partitions):
            key = self.layout.key(tag, "replicas")
            beat_ttl = _HEARTBEATS_TO_EXPIRY * self._heartbeat
            link = Link(servers, key, SCRIPT, _SHA)
            self._links.append(link)
            me = Replica(key, self._me, round(beat_ttl * 1_000_000), round(slot_ttl * 1_000_000))
            self._batchers.append(Batcher(link, me, self._settings.timeout_s, self._batcher_changed, self.make_room))
        await asyncio.gather(*(batcher.start() for batcher in self._batchers))
        self._started = True
        self._batcher_changed()

    def use(self, settings: Redis) -> None:
        """From now on calls wait as long as `settings` say, which name the same servers."""
        if settings == self._settings:
            return
        self._settings = settings
        if self._servers is not None:
            self._servers.use(settings)
        for batcher in self._batchers:
            batcher.deadlines.use(settings.timeout_s)

    async def beat(self) -> None:
        await asyncio.gather(*(batcher.beat() for batcher in self._batchers))
        self._count()

    async def flush(self) -> None:
        for batcher in self._batchers:
            await batcher.drain()

    async def close(self) -> None:
        for batcher in self._batchers:
            await batcher.close()
        self.up, self.reason = False, "closed"
        for link in self._links:
            await link.close()
        if self._servers is not None:
            await self._servers.close()
        await asyncio.sleep(0)  # a closed transport releases its socket in the loop's next turn

    def _batcher_changed(self) -> None:
        if not self._started:
            return
        down = next((batcher for batcher in self._batchers if not batcher.up), None)
        up, reason = down is None, down.reason if down is not None else ""
        self._count()
        if up != self.up or self.reason == "not started":
            self.up, self.reason = up, reason
            if self.changed is not None:
                self.changed(up, reason)

    def _count(self) -> None:
        known = [batcher.replicas for batcher in self._batchers if batcher.up]
        if known:
            self.replicas = max(known)


def _is_scarce(plan: Plan, admitted: Verdict, settlements: Sequence[Settlement]) -> bool:
    """Whether another request may soon need what is given back. None does if, when the request was admitted, each of
    the counters had half of its limit left and room for `_PLENTY` more."""
    for one in settlements:
        left = admitted.counters[one.index].remaining
        if left < _PLENTY or left * 2 < plan.shapes[one.index].limit:
            return True
    return False
