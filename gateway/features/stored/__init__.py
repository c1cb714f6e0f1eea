"""Texts that clients may refer to later, by name: each for one owner alone, for a time.

In memory, when there are too many bytes, the oldest text of the owner with the most bytes goes first: an owner with
less than an equal part of the memory loses nothing to others. Finding it takes a step for each owner. In Redis all
gateways share the texts. A text that is not there any more is an error for the client that refers to it, never a gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from gateway.core.errors import GatewayError, Kind
from gateway.core.key_kind import KeyKind
from gateway.core.ports import ResponseStore
from gateway.features import Built, Parts
from gateway.kernel.call import Call
from gateway.kernel.feature import Feature, Step
from gateway.redis import connect

# Bytes that Python keeps for an entry beside its text.
_ENTRY = 512
# Bounds of the texts that Redis has not taken yet, all and of one owner. One response alone may be larger.
_MOST_WRITES = 1000
_MOST_UNWRITTEN_BYTES = 64 << 20
_MOST_OWN_BYTES = _MOST_UNWRITTEN_BYTES // 4
# One response takes at most this part of the memory, so that it does not push out those of many others.
_SHARE = 16
# So many texts are asked for in one call to Redis.
_AT_ONCE = 16
# Another gateway ends a reply before Redis has taken it: what is missing is looked up once more after so long.
_WRITTEN_S = 0.1


class Stored(Feature):
    """Stores what dialects want stored of replies."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    def around_answer(self, inner: Step) -> Step:
        def answer(call: Call) -> Awaitable[None]:
            if call.op is not None and call.op.stores:
                call.keeps_op = True  # the dialect leaves in the operation what has to be stored
                call.at_end[self] = self._put
            return inner(call)

        return answer

    def _put(self, call: Call) -> None:
        op = call.op
        if op is not None and op.to_store is not None and op.stores and self not in call.notes:
            call.notes[self] = True  # a reply is settled more than once
            self._store.put(call.principal.tenant, op.to_store)


class MemoryResponseStore:
    """Keeps texts in the memory of this process.

    ttl_s: how long a text is kept, in seconds; max_bytes: of all texts together. Both may be changed."""

    def __init__(self, ttl_s: float, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.ttl_s = ttl_s
        self.max_bytes = max_bytes
        self.bytes = 0
        self._clock = clock
        # By age; each with the second in which it ends.
        self._texts: OrderedDict[tuple[str, str], tuple[float, bytes]] = OrderedDict()
        # Owner -> the names of its texts by age, and their bytes.
        self._owned: dict[str, dict[str, None]] = {}
        self._bytes: dict[str, int] = {}

    async def size(self, owners: Sequence[str], names: Iterable[str]) -> int:
        self._expire()
        return sum(len(text) for name in names if (text := self._text(owners[0], name)) is not None)

    async def get(self, owners: Sequence[str], names: Iterable[str]) -> dict[str, bytes | None]:
        self._expire()
        return {name: self._text(owners[0], name) for name in names}  # no version before this one wrote here

    def _text(self, owner: str, name: str) -> bytes | None:
        return self._texts.get((owner, name), (0.0, None))[1]

    async def remove(self, owners: Sequence[str], names: Iterable[str]) -> None:
        for name in names:
            self._remove((owners[0], name))

    def put(self, owner: str, texts: Mapping[str, bytes]) -> None:
        if sum(map(len, texts.values())) > self.max_bytes // _SHARE:
            return
        ends = self._clock() + self.ttl_s
        for name, text in texts.items():
            self._remove((owner, name))
            self._texts[owner, name] = (ends, text)
            self._owned.setdefault(owner, {})[name] = None
            self._count(owner, len(text) + _ENTRY)
        self._expire()
        while self.bytes > self.max_bytes:
            most = max(self._bytes, key=self._bytes.__getitem__)
            self._remove((most, next(iter(self._owned[most]))))

    async def close(self) -> None:
        pass

    def _expire(self) -> None:
        now = self._clock()
        while self._texts:
            oldest = next(iter(self._texts))
            if self._texts[oldest][0] > now:
                return
            self._remove(oldest)

    def _remove(self, key: tuple[str, str]) -> None:
        found = self._texts.pop(key, None)
        if found is not None:
            owner, name = key
            del self._owned[owner][name]
            self._count(owner, -len(found[1]) - _ENTRY)
            if not self._owned[owner]:
                del self._owned[owner], self._bytes[owner]

    def _count(self, owner: str, size: int) -> None:
        self.bytes += size
        self._bytes[owner] = self._bytes.get(owner, 0) + size


class RedisResponseStore:
    """Keeps texts in Redis, for all gateways.

    client: of redis-py (asyncio); `close` closes it. on_failure: called with the class of an error that kept texts
    from being written. call_s: the seconds for an answer."""

    def __init__(
        self,
        ttl_s: float,
        client: Any,
        on_failure: Callable[[str], None],
        namespace: str = "dragoman",
        call_s: float = 2.0,
    ) -> None:
        self.ttl_s = ttl_s
        self._namespace = namespace
        self._ttl_ms = max(1, round(ttl_s * 1000))
        self._client = client
        self._call_s = call_s
        self._on_failure = on_failure
        self._writes: set[asyncio.Task[None]] = set()
        self._unwritten: Counter[str] = Counter()

    async def size(self, owners: Sequence[str], names: Iterable[str]) -> int:
        return sum(await self._each("strlen", owners, list(names)))

    async def get(self, owners: Sequence[str], names: Iterable[str]) -> dict[str, bytes | None]:
        asked = list(names)
        return dict(zip(asked, await self._each("get", owners, asked), strict=True))

    async def remove(self, owners: Sequence[str], names: Iterable[str]) -> None:
        await self._each("delete", owners, list(names))

    async def _each(self, command: str, owners: Sequence[str], names: list[str]) -> list[Any]:
        """The answer of the command for each name: for the first owner for whom there is one."""
        # A task of its own: a request's first steps run outside of any, and time-outs need one.
        return await asyncio.get_running_loop().create_task(self._looked_up(command, owners, names))

    async def _looked_up(self, command: str, owners: Sequence[str], names: list[str]) -> list[Any]:
        if self._writes:  # one of them may be what is meant
            await asyncio.wait(self._writes)
        found = await self._asked(command, owners, names)
        missing = [name for name, answer in zip(names, found, strict=True) if not answer]
        if not missing or command == "delete":
            return found
        await asyncio.sleep(_WRITTEN_S)
        later = dict(zip(missing, await self._asked(command, owners, missing), strict=True))
        return [answer or later[name] for name, answer in zip(names, found, strict=True)]

    async def _asked(self, command: str, owners: Sequence[str], names: list[str]) -> list[Any]:
        keys = [self._key(owner, name) for owner in owners for name in names]
        found: list[Any] = []
        try:
            async with asyncio.timeout(self._call_s):
                for begin in range(0, len(keys), _AT_ONCE):
                    pipeline = self._client.pipeline(transaction=False)
                    for key in keys[begin : begin + _AT_ONCE]:
                        getattr(pipeline, command)(key)
                    found += await pipeline.execute()
        except Exception as error:  # whatever the server or the network does
            message = "what is stored cannot be reached now"
            raise GatewayError(Kind.OVERLOADED, message, code="store_unavailable", retry_after=1.0) from error
        return [next(filter(None, found[at :: len(names)]), found[at]) for at in range(len(names))]

    def put(self, owner: str, texts: Mapping[str, bytes]) -> None:
        size = sum(map(len, texts.values()))
        waiting, own = self._unwritten.total(), self._unwritten[owner]
        full = 0 < waiting > _MOST_UNWRITTEN_BYTES - size or 0 < own > _MOST_OWN_BYTES - size
        if full or len(self._writes) >= _MOST_WRITES:
            self._on_failure("Backlog")
            return
        self._unwritten[owner] += size
        write = asyncio.get_running_loop().create_task(self._write(owner, texts))
        self._writes.add(write)

        def ended(_: asyncio.Task[None]) -> None:
            self._writes.discard(write)
            self._unwritten[owner] -= size
            if not self._unwritten[owner]:
                del self._unwritten[owner]

        write.add_done_callback(ended)

    async def _write(self, owner: str, texts: Mapping[str, bytes]) -> None:
        try:
            async with asyncio.timeout(self._call_s):
                pipeline = self._client.pipeline(transaction=False)
                for name, text in texts.items():
                    pipeline.set(self._key(owner, name), text, px=self._ttl_ms)
                await pipeline.execute()
        except Exception as error:  # whatever the server or the network does, requests go on
            self._on_failure(type(error).__name__)

    async def close(self) -> None:
        if self._writes:
            await asyncio.wait(self._writes)
        with contextlib.suppress(Exception):
            await self._client.aclose()

    def _key(self, owner: str, name: str) -> str:
        """Names come from clients: a digest has a fixed length, and no owner can spell another one's."""
        parts = (sha256(text.encode()).hexdigest()[:32] for text in (owner, name))
        return ":".join((self._namespace, "stored", *parts))


def key_kinds() -> Sequence[KeyKind]:
    return (KeyKind("NAMESPACE:stored:OWNER:NAME"),)  # digests of both


def build(parts: Parts) -> Built | None:
    """Responses in memory stay over a reload."""
    options, redis, log = parts.config.store, parts.config.redis, parts.log
    if options.where == "nowhere":
        return None
    store: MemoryResponseStore | RedisResponseStore | None
    if options.where == "redis":
        assert redis is not None  # the configuration was checked
        store = RedisResponseStore(
            options.ttl_s,
            connect(redis),
            lambda why: log.event("warning", "responses not stored", reason=why),
            redis.namespace,
            redis.call_s,
        )
    else:
        before = parts.earlier_services.get("stored")
        store = before if isinstance(before, MemoryResponseStore) else None
        store = store or MemoryResponseStore(options.ttl_s, options.max_bytes)

    def take_effect() -> None:
        if isinstance(store, MemoryResponseStore):
            store.ttl_s, store.max_bytes = options.ttl_s, options.max_bytes

    parts.offers.response_store = store
    return Built((Stored(store),), service=store, take_effect=take_effect)
