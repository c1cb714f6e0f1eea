"""The replies that all gateways of a deployment keep in Redis.

No request fails by Redis, and none waits for it longer than `redis.timeout_s`. A reply that is read there may be
damaged, another version's or another caller's: it has a digest over all that it is kept for, and is ignored without.
"""

from __future__ import annotations

import asyncio
import contextlib
from hashlib import sha256
from importlib.metadata import version
from typing import Any, Final

from gateway.config import Redis
from gateway.features.reply_cache.entries import ENTRY, Entries
from gateway.light_task import OneTimeEvent
from gateway.observe.log import Log
from gateway.observe.metrics import Metrics
from gateway.offload import offload
from gateway.redis import connect
from gateway.wire.bulk import is_large

MOST_CALLS: Final = 48
"""Reads, and likewise writes, that wait for Redis at once: redis-py opens 100 connections at most. While Redis is
silent no further request waits for it."""
_DIGEST = 32
# KEYS[1]  the names of the replies, by when they end (Unix ms)
# KEYS[2]  their bytes by name, and those of `all`
# KEYS[3]  the reply; ARGV[1]: its name; ARGV[2]: what of a reply's key stands before its name
# ARGV[3]  the reply; ARGV[4]: ms until it ends; ARGV[5]: most bytes of all; ARGV[6]: bytes of one beside its text
#
# Those that end first go first: other keys than KEYS, in the same hash slot. One call drops a thousand at most.
_PUT = """
local ends, sizes, name, most = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[5])
local clock = redis.call('TIME')
local now, size = clock[1] * 1000 + math.floor(clock[2] / 1000), #ARGV[3] + tonumber(ARGV[6])
local held = tonumber(redis.call('HGET', sizes, 'all') or 0)
local function drop(one)
  held = held - tonumber(redis.call('HGET', sizes, one) or 0)
  redis.call('ZREM', ends, one)
  redis.call('HDEL', sizes, one)
  redis.call('DEL', ARGV[2] .. one)
end
drop(name)
for _ = 1, 1000 do
  local first = redis.call('ZRANGE', ends, 0, 0, 'WITHSCORES')
  if not first[1] then
    redis.call('DEL', sizes)
    held = 0
    break
  end
  if held + size <= most and tonumber(first[2]) > now then break end
  drop(first[1])
end
local fits = held + size <= most
if fits then
  redis.call('SET', KEYS[3], ARGV[3], 'PX', ARGV[4])
  redis.call('ZADD', ends, string.format('%.0f', now + ARGV[4]), name)
  redis.call('HSET', sizes, name, size)
  held = held + size
end
redis.call('HSET', sizes, 'all', string.format('%.0f', held))
for _, key in ipairs({ends, sizes}) do
  -- Replies that another gateway keeps for longer stay counted.
  if redis.call('PTTL', key) < tonumber(ARGV[4]) then redis.call('PEXPIRE', key, ARGV[4]) end
end
return fits and 1 or 0
"""


class RedisEntries(Entries):
    """reads, writes  calls to Redis under way

    In this process are the replies that are being recorded or written. `bytes` are theirs."""

    def __init__(self, redis: Redis, log: Log, metrics: Metrics) -> None:
        super().__init__()
        self._client: Any = connect(redis)
        self._wait_s, self._call_s = redis.timeout_s, redis.call_s
        self._base = f"{{{redis.namespace}-replies}}:"
        self._mark = f"dragoman {version('dragoman')}\n".encode()
        self._log, self._metrics = log, metrics
        self.reads: set[asyncio.Task[bytes | None]] = set()
        self.writes: set[asyncio.Task[None]] = set()
        self._known: set[str] = set()  # troubles that were logged
        for call in ("read", "late", "write", "entry"):
            metrics.cache_errors.labels(call)  # dashboards see an increase only from a value that was read before

    async def find(self, key: bytes, owner: str) -> bytes | None:
        """As `Entries.find`. None as well if Redis does not answer in time."""
        if len(self.reads) >= MOST_CALLS:
            self._metrics.cache_errors.labels("late").inc()
            return None
        loop, over = asyncio.get_running_loop(), OneTimeEvent()
        read = loop.create_task(self._read(key, owner))  # a request runs outside of tasks, and time-outs need one
        self.reads.add(read)

        def ended(_: object) -> None:
            self.reads.discard(read)
            over.set()

        read.add_done_callback(ended)
        timer = loop.call_later(self._wait_s, over.set)
        try:
            await over
        finally:
            timer.cancel()
        if read.done():
            return read.result()
        self._metrics.cache_errors.labels("late").inc()
        return None

    async def _read(self, key: bytes, owner: str) -> bytes | None:
        most = len(self._mark) + _DIGEST + self.max_entry_bytes
        try:
            async with asyncio.timeout(self._call_s):
                found: bytes = await self._client.getrange(self._base + "reply:" + key.hex(), 0, most)
        except Exception as error:  # whatever the server or the network does, a worker is asked
            self._failed("read", error)
            return None
        self._worked("read")
        if not found:
            return None
        if len(found) > most:
            self._ignore("larger than max_entry_bytes")
        elif not found.startswith(self._mark):
            self._ignore("not of this version")
        else:
            entry = found[len(self._mark) + _DIGEST :]
            digest = await self._digest(key, owner, entry)
            if found[len(self._mark) : len(self._mark) + _DIGEST] == digest:
                return entry
            self._ignore("damaged")
        return None

    async def _digest(self, key: bytes, owner: str, entry: bytes) -> bytes:
        """Binds the reply to this version, its request and its owner."""

        def digest() -> bytes:
            about = self._mark + key + sha256(owner.encode()).digest()
            return sha256(about + sha256(entry).digest()).digest()

        return await offload(digest) if is_large(entry) else digest()

    def put(self, key: bytes, owner: str, entry: bytes) -> bool:
        room = len(entry) + ENTRY
        if len(entry) > self.max_entry_bytes or not self.take(room):
            return False
        if len(self.writes) >= MOST_CALLS:
            self.give_back(room)
            self._metrics.cache_errors.labels("write").inc()
            return True  # those that wait for it may have it all the same
        write = asyncio.get_running_loop().create_task(self._write(key, owner, entry))
        self.writes.add(write)

        def ended(_: object) -> None:
            self.writes.discard(write)
            self.give_back(room)
            self._metrics.cache_bytes.set(self.bytes)

        write.add_done_callback(ended)
        return True

    async def _write(self, key: bytes, owner: str, entry: bytes) -> None:
        name, base = key.hex(), self._base + "reply:"
        bounds = (max(1, round(self.ttl_s * 1000)), self.max_bytes, ENTRY)
        try:
            text = self._mark + await self._digest(key, owner, entry) + entry
            keys = (self._base + "ends", self._base + "sizes", base + name)
            async with asyncio.timeout(self._call_s):
                await self._client.eval(_PUT, len(keys), *keys, name, base, text, *bounds)
        except Exception as error:  # whatever the server or the network does, requests go on
            self._failed("write", error)
        else:
            self._worked("write")

    def refuse(self, key: bytes) -> None:
        self._ignore("not readable")

    def _failed(self, call: str, error: Exception) -> None:
        self._metrics.cache_errors.labels(call).inc()
        if call not in self._known:
            self._known.add(call)
            self._log.event("warning", "reply cache failing", call=call, reason=type(error).__name__)

    def _worked(self, call: str) -> None:
        if call in self._known:
            self._known.discard(call)
            self._log.event("info", "reply cache works again", call=call)

    def _ignore(self, why: str) -> None:
        """A worker is asked, whose reply takes the place of this one."""
        self._metrics.cache_errors.labels("entry").inc()
        if why not in self._known:
            self._known.add(why)
            self._log.event("warning", "kept reply ignored", reason=why)

    async def close(self) -> None:
        calls = [*self.reads, *self.writes]
        if calls:
            await asyncio.wait(calls)
        with contextlib.suppress(Exception):
            await self._client.aclose()
