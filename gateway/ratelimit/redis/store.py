"""Counters shared by replicas, in Redis (6.2 and later) or Valkey: single, behind Sentinel, or a Cluster.

See `gateway.ratelimit.redis.batcher` for batching, deadlines and the breaker, `gateway.redis` for connecting, and
`docs/limits.md` for setting a server up.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from asyncio import Task
from collections import deque
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from gateway.config import Redis
from gateway.light_task import Promise
from gateway.ratelimit.model import Plan, Settlement, Verdict
from gateway.ratelimit.plan import Layout
from gateway.ratelimit.redis.batcher import Batcher, OnAnswer, Replica
from gateway.ratelimit.redis.codec import ADMIT, LOOK, RENEW, RESET, SETTLE
from gateway.ratelimit.redis.reasons import Unsent
from gateway.redis import Connection, Refused, Servers
from gateway.redis.connection import begin, frame

SCRIPT = files(__package__).joinpath("admit.lua").read_text(encoding="utf-8")

_HEARTBEATS_KEPT = 3.5
"""A replica counts as gone after missing three heartbeats."""


class RedisStore:
    """Counters in Redis. heartbeat: seconds between two calls of `beat`; expected: replicas to assume before the first
    heartbeat was answered. Tests that need their own clock replace `script`."""

    def __init__(
        self,
        settings: Redis,
        *,
        layout: Layout | None = None,
        expected: int = 1,
        heartbeat: float = 5.0,
        script: str = SCRIPT,
    ) -> None:
        self.layout = layout or Layout()
        self.up = False
        self.reason = "not started"
        self.replicas = max(expected, 1)
        self.changed: Callable[[bool, str], None] | None = None
        self._settings = settings
        self._heartbeat = heartbeat
        self._script = script.encode()
        self._sha = hashlib.sha1(self._script, usedforsecurity=False).hexdigest().encode()
        self._me = secrets.token_hex(6)
        self._servers: Servers | None = None
        self._batchers: list[Batcher] = []
        self._links: list[_Link] = []
        self._started = False

    def admit(self, plan: Plan, costs: Sequence[int], lease: str) -> Promise[Verdict]:
        answer: Promise[Any] = self._batchers[plan.tag].ask(ADMIT, plan, costs, lease)
        return answer  # the codec checked that it is a verdict

    def settle(self, plan: Plan, lease: str, settlements: Sequence[Settlement], needed: bool = True) -> None:
        self._batchers[plan.tag].post(SETTLE, plan, settlements, lease, needed)

    def renew(self, leases: Sequence[tuple[str, Plan]]) -> None:
        for lease, plan in leases:
            self._batchers[plan.tag].post(RENEW, plan, plan.slots, lease)

    async def look(self, plan: Plan) -> Verdict:
        verdict = await self._batchers[plan.tag].ask(LOOK, plan, ())
        assert isinstance(verdict, Verdict)
        return verdict

    async def reset(self, plan: Plan) -> None:
        await self._batchers[plan.tag].ask(RESET, plan, ())

    async def start(self, lease_ttl: float) -> None:
        self._servers = servers = Servers(self._settings)
        for tag in range(self.layout.partitions):
            key = self.layout.key(tag, "replicas")
            beat_ttl = _HEARTBEATS_KEPT * self._heartbeat
            link = _Link(servers, key, self._script, self._sha)
            self._links.append(link)
            me = Replica(key, self._me, round(beat_ttl * 1_000_000), round(lease_ttl * 1_000_000))
            self._batchers.append(Batcher(link, me, self._settings.timeout_s, self._batcher_changed))
        await asyncio.gather(*(batcher.start() for batcher in self._batchers))
        self._started = True
        self._batcher_changed()

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


class _Link:
    """The calls of one hash slot, on one connection that is opened when a call needs it. Implements batcher.Link."""

    def __init__(self, servers: Servers, key: bytes, script: bytes, sha: bytes) -> None:
        self._servers = servers
        self._key = key
        self._script = script
        self._sha = sha
        self._connection: Connection | None = None
        self._connecting: Task[None] | None = None
        self._tasks: set[Task[None]] = set()  # attempts to connect, also those given up
        self._calls: deque[tuple[Sequence[bytes], bytes, OnAnswer]] = deque()
        self._framed_keys: Sequence[bytes] | None = None
        self._framed = b""

    def call(self, keys: Sequence[bytes], payload: bytes, answered: OnAnswer) -> None:
        self._calls.append((keys, payload, answered))
        if self._connection is not None:
            self._connection.write(self._frame(keys, payload))
        elif self._connecting is None:
            self._connecting = task = asyncio.get_running_loop().create_task(self._connect())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _frame(self, keys: Sequence[bytes], payload: bytes) -> bytes:
        """The call. All but its payload is kept for the next, which is mostly about the same keys."""
        if keys != self._framed_keys:
            self._framed_keys = keys
            self._framed = begin((b"EVALSHA", self._sha, b"%d" % len(keys), *keys), 1)
        return b"%b$%d\r\n%b\r\n" % (self._framed, len(payload), payload)

    async def close(self) -> None:
        """As `drop`; returns when no attempt to connect is running."""
        self.drop()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def drop(self) -> None:
        self._calls.clear()
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def _connect(self) -> None:
        mine = asyncio.current_task()
        try:
            made = await self._servers.open(self._key, self._answered, self._lost)
        except Exception as error:
            if self._connecting is mine:
                self._connecting = None
                unsent = Unsent()
                unsent.__cause__ = error
                self._lost(unsent)
            return
        if self._connecting is not mine:  # dropped meanwhile
            made.close()
            return
        self._connecting, self._connection = None, made
        for keys, payload, _ in self._calls:
            made.write(self._frame(keys, payload))

    def _answered(self, answer: bytes | Refused) -> None:
        if not self._calls:  # nobody asked
            return
        call = self._calls.popleft()
        if isinstance(answer, Refused):
            if str(answer).startswith("NOSCRIPT") and self._connection is not None:
                # It did not run, so this is not a retry. Its answer comes after those of the calls under way.
                keys, payload, _ = call
                self._calls.append(call)
                self._connection.write(frame((b"EVAL", self._script, b"%d" % len(keys), *keys, payload)))
                return
            self.drop()  # a healthy primary does not answer so: the next call connects again
        call[2](answer)

    def _lost(self, why: Exception) -> None:
        self._connection = None
        if self._calls:
            answered = self._calls[0][2]
            self._calls.clear()
            answered(why)


__all__ = ["SCRIPT", "RedisStore"]
