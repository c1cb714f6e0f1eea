"""The descriptions of files and batches in Redis, so that every gateway knows of them. TENANT is a digest.

The gateway that runs a batch has a lease. It writes the batch's state only while it has it, by a script.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from gateway.auth import Absent, Principal
from gateway.config import Batches
from gateway.core.errors import GatewayError, Kind
from gateway.core.key_kind import KeyKind

KEY_KINDS = (
    KeyKind("{NAMESPACE-batches}:file:ID"),  # a file's description as JSON
    # A hash: `spec`, what was asked for; `state`, how far it is; `cancel`, when its end was asked for; `lease`, the
    # number of the last lease.
    KeyKind("{NAMESPACE-batches}:batch:ID"),
    # The gateway that runs the batch, for as long as it says so.
    KeyKind("{NAMESPACE-batches}:holder:ID", saved=False),
    # A tenant's files, or its batches of one API: a sorted set of ids by name. An id begins with its time, so that they
    # are in order.
    KeyKind("{NAMESPACE-batches}:files:TENANT"),
    KeyKind("{NAMESPACE-batches}:openai:TENANT"),
    KeyKind("{NAMESPACE-batches}:anthropic:TENANT"),
    # A hash: tenant -> bytes of its files, and of the requests of batches that have not ended.
    KeyKind("{NAMESPACE-batches}:bytes"),
    KeyKind("{NAMESPACE-batches}:open"),  # batches that have not ended: `ID TENANT`, by the time of their creation
    KeyKind("{NAMESPACE-batches}:ends"),  # when files and batches are forgotten: `file ID` or `batch ID`
    KeyKind("{NAMESPACE-batches}:all"),  # batches: `TIME ID`, the last part of the id before the whole, in order
)
MOST_OPEN = 1000

KindOfBatch = Literal["openai", "anthropic"]
KindOfList = Literal["files", KindOfBatch]

_ADD_FILE = """
local file, list, bytes, ends = unpack(KEYS)
local text, id, tenant, size, until_, most, most_bytes = unpack(ARGV)
if most ~= '' then
  if redis.call('ZCARD', list) >= tonumber(most) then return 'files' end
  local held = tonumber(redis.call('HGET', bytes, tenant) or '0')
  if held + tonumber(size) > tonumber(most_bytes) then return 'bytes' end
end
if redis.call('EXISTS', file) == 0 then redis.call('HINCRBY', bytes, tenant, size) end
redis.call('SET', file, text)
redis.call('ZADD', list, 0, id)
redis.call('ZADD', ends, until_, 'file ' .. id)
return 'added'
"""
_DROP_FILE = """
local file, list, bytes, ends = unpack(KEYS)
local id, tenant, size = unpack(ARGV)
redis.call('ZREM', list, id)
redis.call('ZREM', ends, 'file ' .. id)
if redis.call('DEL', file) == 0 then return 0 end
if redis.call('HINCRBY', bytes, tenant, -tonumber(size)) <= 0 then redis.call('HDEL', bytes, tenant) end
return 1
"""
_CHECK_BATCHES = """
local list, open, bytes, batch = unpack(KEYS)
local tenant, most, most_stored, most_bytes, size, spec, state, id, created, timed = unpack(ARGV)
local running = 0
for _, one in ipairs(redis.call('ZRANGE', open, 0, -1)) do
  if string.sub(one, -string.len(tenant)) == tenant then running = running + 1 end
end
if running >= tonumber(most) then return 'batches' end
if redis.call('ZCARD', list) >= tonumber(most_stored) then return 'kept' end
local held = tonumber(redis.call('HGET', bytes, tenant) or '0')
if held + tonumber(size) > tonumber(most_bytes) then return 'bytes' end
"""
_ADD_BATCH = (
    _CHECK_BATCHES
    + """
redis.call('HSET', batch, 'spec', spec, 'state', state)
redis.call('ZADD', list, 0, id)
redis.call('ZADD', KEYS[5], 0, timed)
redis.call('ZADD', open, created, id .. ' ' .. tenant)
redis.call('HINCRBY', bytes, tenant, size)
"""
)
_TAKE = """
local batch, holder = unpack(KEYS)
if redis.call('EXISTS', batch) == 0 then return false end
if not redis.call('SET', holder, ARGV[1], 'NX', 'PX', ARGV[2]) then return false end
local lease = redis.call('HINCRBY', batch, 'lease', 1)
return {lease, redis.call('HGET', batch, 'spec'), redis.call('HGET', batch, 'state')}
"""
_WRITE = """
local batch, holder, open, ends, bytes = unpack(KEYS)
local mine, ms, state, ended, id, tenant, until_, size = unpack(ARGV)
if redis.call('GET', holder) ~= mine then return false end
redis.call('HSET', batch, 'state', state)
if ended == '1' then
  if redis.call('ZREM', open, id .. ' ' .. tenant) == 1 then
    if redis.call('HINCRBY', bytes, tenant, -tonumber(size)) <= 0 then redis.call('HDEL', bytes, tenant) end
  end
  redis.call('ZADD', ends, until_, 'batch ' .. id)
  redis.call('DEL', holder)
else
  redis.call('PEXPIRE', holder, ms)
end
return redis.call('HGET', batch, 'cancel') or ''
"""
_FREE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

_BATCH = ("spec", "state", "cancel")
_PREFIX: dict[KindOfList, str] = {"files": "file-", "openai": "batch_", "anthropic": "msgbatch_"}
_encode = msgspec.json.Encoder().encode


class StoredFile(Struct, omit_defaults=True):
    """A file. owner: the tenant's name; created and ends: Unix seconds."""

    id: str
    owner: str
    name: str
    purpose: str
    bytes: int
    created: float
    ends: float


class Spec(Struct, omit_defaults=True):
    """A batch as it was asked for, which never changes.

    owner     the tenant's name
    key, team  who asked: lines run for them
    identity  of that key; None if an earlier version noted it
    models    what a token allowed its bearer, if a token asked; else None
    endpoint  the path that every line calls, without a prefix
    input     the file with its lines
    ends      Unix seconds: it expires then
    total     its lines, if they were counted when it came
    bytes     of its lines
    """

    id: str
    kind: KindOfBatch
    owner: str
    key: str
    team: str | None
    models: tuple[str, ...] | None
    endpoint: str
    input: str
    window: str
    created: float
    ends: float
    metadata: dict[str, str] | None = None
    total: int = 0
    bytes: int = 0
    identity: str | None = None

    @property
    def who(self) -> Absent:
        """For whom lines run."""
        models = None if self.models is None else frozenset(self.models)
        return Absent(self.key, self.team, models, self.identity, self.owner, self.created)


class Fault(Struct, omit_defaults=True):
    """Why a batch was not begun."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelled"]
ENDED: tuple[Status, ...] = ("failed", "completed", "expired", "cancelled")


class State(Struct, omit_defaults=True):
    """How far a batch is. The counts are of lines.

    repeated  lines that were begun again because a gateway had died, or lost its lease: they may have run twice
    at        when it reached each status, in Unix seconds
    output, error  files with its results
    """

    status: Status = "validating"
    total: int = 0
    succeeded: int = 0
    failed: int = 0
    unfinished: int = 0
    repeated: int = 0
    at: dict[str, float] = {}
    output: str | None = None
    error: str | None = None
    faults: tuple[Fault, ...] = ()

    def reach(self, status: Status) -> None:
        self.status = status
        self.at.setdefault(status, time.time())


class Held(NamedTuple):
    """A batch that this gateway has the lease of."""

    spec: Spec
    state: State
    lease: int
    secret: str


class StoredBatch(NamedTuple):
    """A batch as it is stored. cancel: when its end was asked for, or None."""

    spec: Spec
    state: State
    cancel: float | None

    @property
    def status(self) -> str:
        """`cancelling` from when its end was asked for until it has ended."""
        asked = self.cancel is not None and self.state.status not in ENDED
        return "cancelling" if asked else self.state.status


class Lost(Exception):
    """Another gateway has the lease by now, or the batch is gone."""


class Full(Exception):
    """A tenant has as much as it may. what: files | bytes | batches | kept."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def new_id(prefix: str) -> str:
    """An id that sorts behind those before it."""
    return f"{prefix}{_stamp(time.time())}{secrets.token_hex(8)}"


def _stamp(seconds: float) -> str:
    return f"{round(seconds * 1000):012x}"


def made(id_: str) -> float:
    """When `new_id` made this id, in Unix seconds."""
    return int(id_[-28:-16], 16) / 1000


def tenant_of(owner: str) -> str:
    return sha256(owner.encode()).hexdigest()[:32]


class BatchStore:
    """client: of redis-py (asyncio); `close` closes it. call_s: the seconds for an answer. Every method raises
    GatewayError(OVERLOADED) if Redis does not answer."""

    def __init__(self, namespace: str, client: Any, call_s: float) -> None:
        self._base = f"{{{namespace}-batches}}:"
        self._client = client
        self._call_s = call_s

    @contextlib.asynccontextmanager
    async def _asked(self) -> AsyncIterator[Any]:
        try:
            async with asyncio.timeout(self._call_s):
                yield self._client
        except (Full, Lost):
            raise
        except Exception as error:  # whatever the server or the network does
            message = "the store of batches cannot be reached now"
            raise GatewayError(Kind.OVERLOADED, message, code="store_unavailable", retry_after=1.0) from error

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            await self._client.aclose()

    def _list(self, kind: KindOfList, owner: str) -> str:
        return f"{self._base}{kind}:{tenant_of(owner)}"

    def _file_keys(self, id_: str, owner: str) -> tuple[str, ...]:
        base = self._base
        return base + "file:" + id_, self._list("files", owner), base + "bytes", base + "ends"

    # -- files ------------------------------------------------------------------------------------------------------

    async def add_file(self, file: StoredFile, most: tuple[int, int] | None) -> None:
        """most: how many files its owner may have, and how many bytes of them; None for any. Raises Full."""
        bounds = ("", "") if most is None else most
        words = (_encode(file), file.id, tenant_of(file.owner), file.bytes, file.ends, *bounds)
        async with self._asked() as client:
            answer = await client.eval(_ADD_FILE, 4, *self._file_keys(file.id, file.owner), *words)
            if answer != b"added":
                raise Full(answer.decode())

    async def room(self, owner: str) -> tuple[int, int]:
        """How many files the owner has, and how many bytes of them."""
        async with self._asked() as client:
            held = await client.hget(self._base + "bytes", tenant_of(owner))
            return await client.zcard(self._list("files", owner)), int(held or 0)

    async def file(self, id_: str) -> StoredFile | None:
        async with self._asked() as client:
            text = await client.get(self._base + "file:" + id_)
        return None if text is None else msgspec.json.decode(text, type=StoredFile)

    async def drop_file(self, file: StoredFile) -> bool:
        """False if it was gone already."""
        words = (file.id, tenant_of(file.owner), file.bytes)
        async with self._asked() as client:
            return bool(await client.eval(_DROP_FILE, 4, *self._file_keys(file.id, file.owner), *words))

    async def ids(
        self, kind: KindOfList, who: Principal, most: int, after: str | None = None, *, ascending: bool = False
    ) -> list[str]:
        """Ids of a caller's files or batches: the newest first, or the oldest; those that follow `after` in this
        order."""
        lists = [(self._list(kind, who.tenant), "-")]
        if who.former_tenant is not None:  # what earlier versions kept, but nothing of an earlier key
            lists.append((self._list(kind, who.former_tenant), f"[{_PREFIX[kind]}{_stamp(who.since)}"))
        found: list[str] = []
        async with self._asked() as client:
            for name, least in lists:
                if ascending:
                    begin = least if after is None else max("(" + after, least, key=lambda one: one[1:])
                    some = await client.zrangebylex(name, begin, "+", start=0, num=most)
                else:
                    begin = "+" if after is None else "(" + after
                    some = await client.zrevrangebylex(name, begin, least, start=0, num=most)
                found += [one.decode() for one in some]
        return sorted(found, reverse=not ascending)[:most]

    async def files(self, ids: Sequence[str]) -> list[StoredFile]:
        """Those of them that are there."""
        if not ids:
            return []
        async with self._asked() as client:
            found = await client.mget([self._base + "file:" + one for one in ids])
        return [msgspec.json.decode(text, type=StoredFile) for text in found if text is not None]

    async def known(self, ids: Sequence[str]) -> set[str]:
        """Those of these ids that have a description, as a file or as a batch."""
        async with self._asked() as client:
            pipeline = client.pipeline(transaction=False)
            for one in ids:
                pipeline.exists(f"{self._base}file:{one}", f"{self._base}batch:{one}")
            found = await pipeline.execute()
        return {one for one, there in zip(ids, found, strict=True) if there}

    # -- batches ----------------------------------------------------------------------------------------------------

    async def check_batches(self, kind: KindOfBatch, owner: str, options: Batches) -> None:
        """Raises Full if the owner may have no further batch, of one byte at least."""
        await self._bounded(_CHECK_BATCHES, kind, owner, options, 1)

    async def add_batch(self, spec: Spec, state: State, options: Batches) -> None:
        """Raises Full."""
        words = (_encode(spec), _encode(state), spec.id, spec.created, _timed(spec.id))
        await self._bounded(_ADD_BATCH, spec.kind, spec.owner, options, spec.bytes, spec.id, words)

    async def _bounded(
        self,
        script: str,
        kind: KindOfBatch,
        owner: str,
        options: Batches,
        size: int,
        id_: str = "",
        words: Sequence[Any] = (),
    ) -> None:
        base = self._base
        keys = (self._list(kind, owner), base + "open", base + "bytes", base + "batch:" + id_, base + "all")
        bounds = (tenant_of(owner), options.max_batches, options.max_files, options.max_tenant_bytes, size)
        async with self._asked() as client:
            answer = await client.eval(script, 5, *keys, *bounds, *words)
            if answer is not None:
                raise Full(answer.decode())

    async def batch(self, id_: str) -> StoredBatch | None:
        async with self._asked() as client:
            return _batch(await client.hmget(self._base + "batch:" + id_, _BATCH))

    async def batches(self, ids: Sequence[str]) -> list[StoredBatch]:
        """Those of them that are there."""
        if not ids:
            return []
        async with self._asked() as client:
            pipeline = client.pipeline(transaction=False)
            for one in ids:
                pipeline.hmget(self._base + "batch:" + one, _BATCH)
            found = await pipeline.execute()
        return [batch for one in found if (batch := _batch(one)) is not None]

    async def newest(self, most: int, after: str | None) -> list[str]:
        """Ids of all tenants' batches, the newest first; those that follow `after`."""
        begin = "+" if after is None else "(" + _timed(after)
        async with self._asked() as client:
            found = await client.zrevrangebylex(self._base + "all", begin, "-", start=0, num=most)
        return [one.decode().partition(" ")[2] for one in found]

    async def cancel(self, id_: str) -> None:
        """Asks for the end of a batch. The first time counts."""
        async with self._asked() as client:
            await client.hsetnx(self._base + "batch:" + id_, "cancel", time.time())

    async def drop_batch(self, spec: Spec) -> None:
        """Forgets a batch that has ended."""
        base = self._base
        async with self._asked() as client:
            await client.delete(base + "batch:" + spec.id)
            await client.zrem(self._list(spec.kind, spec.owner), spec.id)
            await client.zrem(base + "all", _timed(spec.id))
            await client.zrem(base + "ends", "batch " + spec.id)

    # -- leases -----------------------------------------------------------------------------------------------------

    async def open(self, first: int) -> tuple[list[tuple[str, str]], int]:
        """(id, tenant) of batches that have not ended and that nobody runs, the oldest first: of the thousand behind
        the `first` ones. And the `first` of the next thousand, which is 0 again behind the last."""
        base = self._base
        async with self._asked() as client:
            found = await client.zrange(base + "open", first, first + MOST_OPEN - 1)
            some = [(id_, tenant) for id_, _, tenant in (one.decode().partition(" ") for one in found)]
            held = await client.mget([f"{base}holder:{id_}" for id_, _ in some]) if some else []
        free = [one for one, holder in zip(some, held, strict=True) if holder is None]
        return free, first + MOST_OPEN if len(some) == MOST_OPEN else 0

    async def take(self, id_: str, lease_s: float) -> Held | None:
        """The lease of a batch for so many seconds; None if another gateway has it, or the batch is gone."""
        secret = secrets.token_hex(16)
        keys = (self._base + "batch:" + id_, self._base + "holder:" + id_)
        async with self._asked() as client:
            found = await client.eval(_TAKE, 2, *keys, secret, round(lease_s * 1000))
        return None if found is None else Held(_spec(found[1]), _state(found[2]), found[0], secret)

    async def write(self, held: Held, lease_s: float, keep_until: float | None = None) -> bool:
        """Writes the state and renews the lease; with `keep_until`, the batch has ended, and is forgotten then.
        Returns whether its end was asked for. Raises Lost."""
        base, spec = self._base, held.spec
        keys = (base + "batch:" + spec.id, base + "holder:" + spec.id, base + "open", base + "ends", base + "bytes")
        ended = "0" if keep_until is None else "1"
        words = (held.secret, round(lease_s * 1000), _encode(held.state), ended, spec.id, tenant_of(spec.owner))
        async with self._asked() as client:
            answer = await client.eval(_WRITE, 5, *keys, *words, keep_until or 0, spec.bytes)
            if answer is None:
                raise Lost
            return bool(answer)

    async def free(self, held: Held) -> None:
        """Gives the lease back, so that another gateway can go on at once."""
        async with self._asked() as client:
            await client.eval(_FREE, 1, self._base + "holder:" + held.spec.id, held.secret)

    async def past(self) -> list[tuple[str, str]]:
        """("file" or "batch", id) of those whose time is over, a hundred at most."""
        async with self._asked() as client:
            found = await client.zrangebyscore(self._base + "ends", 0, time.time(), start=0, num=100)
        return [(kind, id_) for kind, _, id_ in (one.decode().partition(" ") for one in found)]

    async def forget(self, kind: str, id_: str) -> None:
        """There is nothing of it any more."""
        async with self._asked() as client:
            await client.zrem(self._base + "ends", f"{kind} {id_}")


def _timed(id_: str) -> str:
    return f"{id_.rpartition('_')[2]} {id_}"


def _batch(fields: Sequence[bytes | None]) -> StoredBatch | None:
    spec, state, cancel = fields
    if spec is None or state is None:
        return None
    return StoredBatch(_spec(spec), _state(state), None if cancel is None else float(cancel))


def _spec(text: bytes) -> Spec:
    return msgspec.json.decode(text, type=Spec)


def _state(text: bytes) -> State:
    return msgspec.json.decode(text, type=State)
