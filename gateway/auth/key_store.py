"""The keys and teams of `keys_store` in Redis, and the record of all changes; docs/keys.md has the format.

A version is the time of the change in microseconds, or one more than the version before: it grows even if Redis has
lost what it held. One script makes a change, so that what is stored, version and record never disagree.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from hashlib import sha256
from itertools import chain
from typing import Any, Literal, NamedTuple

import msgspec

from gateway.auth import Moment, Stored, StoredKey, StoredTeam
from gateway.config.former import FORMER, OLLAMA, OLLAMA_STYLE
from gateway.config.kinds import nano
from gateway.core.key_kind import KeyKind

KEY_KINDS = (
    # A hash: name -> the version of the key's last change, a space, the key as JSON.
    KeyKind("{NAMESPACE-keys}"),
    KeyKind("{NAMESPACE-keys}:teams"),  # the same for teams
    KeyKind("{NAMESPACE-keys}:version"),  # the last version
    # A stream: `event` is who did what as JSON, `key` or `team` what was changed, as it is in its hash from then on,
    # `after` the version before.
    KeyKind("{NAMESPACE-keys}:changes"),
    # A stream: `event` of what else admins and operators did, such as resets of limits.
    KeyKind("{NAMESPACE-keys}:audit"),
    # A sorted set: the key's name -> the Unix seconds of its last use, in a file or here.
    KeyKind("{NAMESPACE-keys}:used"),
    KeyKind("{NAMESPACE-keys}:once:SUM"),  # the name that a creation with an Idempotency-Key made
)
_PAGE = 100
"""Keys or changes that are read, and taken in, in one turn of the event loop."""
MOST_BYTES = 8192
"""Bytes of one key as JSON."""
MOST_USED = 300_000
"""Keys whose last use is kept; those that were used longest ago go first."""
ONCE_S = 86_400
"""How long a creation is recognised by its Idempotency-Key."""

_CHANGE = """
local name, expected, text, event, max_audit, once, once_ms, dropped, dropped_version, kind = unpack(ARGV)
local function version_of(one) return string.match(redis.call('HGET', KEYS[1], one) or '', '^%d+') end
if once ~= '' then
  local done = redis.call('GET', KEYS[4])
  if done then return {'done', done} end
end
local before = redis.call('HGET', KEYS[1], name)
if (before and string.match(before, '^%d+') or '0') ~= expected then return {'other', before or ''} end
local now = redis.call('TIME')
local last = redis.call('GET', KEYS[2]) or '0'
local version = math.max(now[1] * 1000000 + now[2], tonumber(last) + 1)
version = string.format('%.0f', version)
redis.call('SET', KEYS[2], version)
-- It may be the same key, or one that another gateway has just made again.
if version_of(dropped) == dropped_version then redis.call('HDEL', KEYS[1], dropped) end
redis.call('HSET', KEYS[1], name, version .. ' ' .. text)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', max_audit, '*', 'event', event, kind, version .. ' ' .. text, 'after', last)
if once ~= '' then redis.call('SET', KEYS[4], once, 'PX', once_ms) end
return {'made', version}
"""

_encode = msgspec.json.Encoder().encode
_keys = msgspec.json.Decoder(StoredKey)
_teams = msgspec.json.Decoder(StoredTeam)
Kind = Literal["key", "team"]
Drop = tuple[str, int]
"""A name, and the version by which it is known here."""


class StoreDown(Exception):
    """Redis does not answer, or not as it should; the message is the class of the error."""


class Event(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=False):
    """One line of the audit record. at: Unix seconds; what: create, update, rotate, revoke, import, refill, repair,
    create team, update team, delete team, repair team, cancel (a batch), end (a request), drain or undrain (a worker),
    reset (limits), rebuild (sums of spending) or restore (a backup); options: names of them."""

    at: Moment
    by: str
    what: str
    name: str
    team: str | None = None
    options: tuple[str, ...] = ()


class Change(NamedTuple):
    """An entry of the stream. kind: that of what was changed. what: None if it cannot be read; version is its own,
    after that of the change before."""

    id: str
    event: Event
    kind: Kind
    what: Stored | None
    version: int
    after: int


class Other(Exception):
    """The key, or the team, is not as the change expected it. key, team: as it is; None without one."""

    def __init__(self, found: Stored | None) -> None:
        super().__init__()
        self.key = found if isinstance(found, StoredKey) else None
        self.team = found if isinstance(found, StoredTeam) else None


class Done(Exception):
    """A creation with the same Idempotency-Key was made before. what: its `once`."""

    def __init__(self, what: bytes) -> None:
        super().__init__()
        self.what = what


def decoded(text: bytes) -> StoredKey | None:
    """The key in a value of its hash; None if it is malformed."""
    version, _, rest = text.partition(b" ")
    try:
        number, key = _version(version), _keys.decode(rest)
        if key.limits is not None and key.limits.budget is not None:
            _spendable(key.limits.budget)
        return msgspec.structs.replace(key, version=number, dialects=_by_new_names(key.dialects))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def decoded_team(text: bytes) -> StoredTeam | None:
    """As `decoded`, a team."""
    version, _, rest = text.partition(b" ")
    try:
        number, team = _version(version), _teams.decode(rest)
        for amount in team.budgets.values():
            _spendable(amount)
        return msgspec.structs.replace(team, version=number)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _version(text: bytes) -> int:
    """Raises ValueError unless the script reads the same number in it."""
    if not (text.isdigit() and len(text) <= 16 and int(text) < 1 << 53 and b"%d" % int(text) == text):
        raise ValueError("is not a version")
    return int(text)


def _spendable(amount: str) -> None:
    """Raises ValueError unless a budget may have this amount."""
    if not nano(amount):
        raise ValueError("is nothing")


def decoded_as(kind: Kind, text: bytes) -> Stored | None:
    """The value of a hash as what that kind of it holds; None if it is malformed."""
    return decoded(text) if kind == "key" else decoded_team(text)


def kind_of(one: Stored) -> Kind:
    return "key" if isinstance(one, StoredKey) else "team"


def _by_new_names(dialects: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """By today's names. Gateways of 0.9 wrote `ollama` for the Ollama-style API: until the next minor version a key
    that may speak `ollama` may speak both."""
    if dialects is None or not (FORMER.keys() | {OLLAMA}).intersection(dialects):
        return dialects
    both = (OLLAMA_STYLE,) if OLLAMA in dialects else ()
    return tuple(dict.fromkeys(FORMER.get(name, name) for name in (*dialects, *both)))


def encoded(one: Stored) -> bytes:
    """The key, or the team, as a value of its hash."""
    return b"%d %s" % (one.version, _encode(msgspec.structs.replace(one, version=0)))


class KeyStore:
    """base: the beginning of all its keys. client: of redis-py (asyncio). call_s: the seconds for an answer. Every
    method but `close`, which closes the client, raises StoreDown."""

    def __init__(self, namespace: str, max_audit: int, client: Any, call_s: float) -> None:
        self.base = f"{{{namespace}-keys}}"
        self._changes, self._others = self.base + ":changes", self.base + ":audit"
        self._max_audit = max_audit
        self._client = client
        self._call_s = call_s

    @contextlib.asynccontextmanager
    async def asked(self, more_s: float = 0.0) -> AsyncIterator[Any]:
        """The client, for one call. more_s: that it may take beyond the usual."""
        try:
            async with asyncio.timeout(self._call_s + more_s):
                yield self._client
        except (Other, Done):
            raise
        except Exception as error:  # whatever the server or the network does
            raise StoreDown(type(error).__name__) from error

    async def change(
        self, one: Stored, expected: int, event: Event, once: tuple[str, bytes] | None = None, drop: Drop | None = None
    ) -> int:
        """Writes a key or a team if its version there is `expected`, 0 for none, and returns the new version. once: the
        secret name of the change, and what `Done` shows if it comes again. drop: a revoked key, or a deleted team, to
        forget.

        Raises Other, Done.
        """
        kind = kind_of(one)
        name, what = once if once is not None else ("", b"")
        names = (self._hash(kind), self.base + ":version", self._changes, self._once(name))
        text = _encode(msgspec.structs.replace(one, version=0))
        known = (one.name, expected, text, _encode(event), self._max_audit)
        words = (*known, what, ONCE_S * 1000, *(drop or ("", "")), kind)
        async with self.asked() as client:
            answer, found = await client.eval(_CHANGE, len(names), *names, *words)
            if answer == b"done":
                raise Done(found)
            if answer == b"other":
                raise Other(decoded_as(kind, found) if found else None)
            return int(found)

    def _hash(self, kind: Kind) -> str:
        return self.base if kind == "key" else self.base + ":teams"

    def _once(self, name: str) -> str:
        return f"{self.base}:once:{sha256(name.encode()).hexdigest()}"

    async def done(self, name: str) -> bytes | None:
        """The `once` of a change with this secret name, for a day."""
        async with self.asked() as client:
            found: bytes | None = await client.get(self._once(name))
            return found

    async def version(self) -> int:
        """The last version; 0 for a store that is empty."""
        async with self.asked() as client:
            return int(await client.get(self.base + ":version") or 0)

    async def last(self) -> str:
        """The id of the last change."""
        async with self.asked() as client:
            found = await client.xrevrange(self._changes, count=1)
            return found[0][0].decode() if found else "0-0"

    async def find(self, name: str) -> StoredKey | None:
        """The key `name` as it is there."""
        text = await self._value("key", name)
        return decoded(text) if text is not None else None

    async def find_team(self, name: str) -> StoredTeam | None:
        """As `find`, a team."""
        text = await self._value("team", name)
        return decoded_team(text) if text is not None else None

    async def _value(self, kind: Kind, name: str) -> bytes | None:
        async with self.asked() as client:
            text: bytes | None = await client.hget(self._hash(kind), name)
            return text

    async def pages(self, kind: Kind = "key") -> AsyncIterator[Sequence[tuple[str, bytes]]]:
        """All names with their values, some twice if the store changes."""
        cursor = 0
        while True:
            async with self.asked() as client:
                cursor, found = await client.hscan(self._hash(kind), cursor, count=_PAGE)
            yield [(name.decode(errors="replace"), text) for name, text in found.items()]
            if not cursor:
                return

    async def news(self, after: str, wait_s: float) -> Sequence[Change]:
        """The changes after the id `after`, as soon as there are some; none after `wait_s` seconds."""
        async with self.asked(wait_s) as client:
            block = round(wait_s * 1000) or None  # 0 would be for ever
            found = await client.xread({self._changes: after}, count=_PAGE, block=block)
        return [_change(one) for _, entries in found or () for one in entries]

    async def record(self, before: str | None, count: int) -> Sequence[Change]:
        """The changes before the id `before`, or the last ones, the newest first."""
        most = "+" if before is None else "(" + before
        async with self.asked() as client:
            found = [await client.xrevrange(one, max=most, count=count) for one in (self._changes, self._others)]
        return sorted(map(_change, chain(*found)), key=_order, reverse=True)[:count]

    async def note(self, event: Event) -> None:
        """Adds a line to the record that is about no key of the store."""
        async with self.asked() as client:
            await client.xadd(self._others, {"event": _encode(event)}, maxlen=self._max_audit)

    async def used(self, times: Mapping[str, float]) -> None:
        """Notes when keys were used, in Unix seconds by name. A later time that is there stays."""
        async with self.asked() as client:
            await client.zadd(self.base + ":used", {name: int(moment) for name, moment in times.items()}, gt=True)
            await client.zremrangebyrank(self.base + ":used", 0, -MOST_USED - 1)

    async def last_used(self, names: Collection[str]) -> dict[str, float]:
        """When these were used last, by name; without those that were not."""
        async with self.asked() as client:
            found = await client.zmscore(self.base + ":used", [*names])
        return {name: moment for name, moment in zip(names, found, strict=True) if moment is not None}

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            await self._client.aclose()


def _order(change: Change) -> tuple[int, ...]:
    return tuple(map(int, change.id.split("-")))


def _change(entry: tuple[bytes, dict[bytes, bytes]]) -> Change:
    id_, fields = entry
    try:
        event = msgspec.json.decode(fields[b"event"], type=Event)
    except (msgspec.MsgspecError, KeyError, ValueError, RecursionError):
        event = Event(0.0, "?", "?", "?")
    kind: Kind = "team" if b"team" in fields else "key"
    text = fields.get(kind.encode(), b"")
    version, after = text.partition(b" ")[0], fields.get(b"after", b"")
    return Change(id_.decode(), event, kind, decoded_as(kind, text), *map(_version_or_none, (version, after)))


def _version_or_none(text: bytes) -> int:
    """-1 for none: no change follows that."""
    try:
        return _version(text)
    except ValueError:
        return -1
