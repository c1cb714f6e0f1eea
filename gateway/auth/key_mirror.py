"""The keys and teams of the store in this process: those that requests are identified by, without a question to Redis.

It follows the stream of changes: one call waits at Redis for the next change, and takes it in as it comes. Whenever the
connection was lost, or the version there is another than that of the last change here, everything is read again: no
change is missed. A gateway that knows a later version of a key than Redis has, because Redis lost its last writes or
came back from a copy, keeps its own and writes it back: what was revoked once stays revoked. A key that vanished from
Redis was not revoked, since a revoked one stays there as such; it works on for as long as while Redis is away. A team
that vanished was not deleted, for the same reason: it stays in force, and is written back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from gateway.auth import KeyTable, Stored, StoredKey, StoredTeam
from gateway.auth.durable import doubt
from gateway.auth.key_store import Change, Drop, Event, KeyStore, Kind, Other, StoreDown, decoded_as, kind_of
from gateway.auth.last_used import LastUsed
from gateway.background import cancel_tasks, keep_running
from gateway.config import StoredKeys

T = TypeVar("T")
S = TypeVar("S", StoredKey, StoredTeam)

_WAIT_S = 1.0
"""How long one call waits for a change; then the versions are compared."""
_RETRY_S = 0.5
_FIRST_S = 4.0
"""How long a start waits for the keys."""
_SLICE = 100
"""Keys that are looked at in one turn of the event loop: about a millisecond, where they have limits."""


class InForce(NamedTuple):
    """The table of the configuration in force, or of the next one, and its limits of keys and of teams: all learn of
    each change."""

    table: KeyTable
    limits: Callable[[str, object], object]
    limits_of_team: Callable[[str, object], object]


class Known(NamedTuple):
    """The keys and teams that are in force now."""

    keys: Sequence[StoredKey] = ()
    teams: Sequence[StoredTeam] = ()


NOTHING = Known()


class Entries(Generic[S]):
    """Keys, or teams, by name.

    gone  the versions of those that were revoked or deleted
    most  of those that are remembered
    """

    def __init__(self, most: int) -> None:
        self.by_name: dict[str, S] = {}
        self.gone: dict[str, int] = {}
        self._most = most

    def take(self, one: S) -> None:
        self.by_name[one.name] = one
        self.gone.pop(one.name, None)
        if one.gone:
            if (oldest := self.dropped()) is not None:
                del self.by_name[oldest[0]], self.gone[oldest[0]]
            self.gone[one.name] = one.version

    def dropped(self) -> Drop | None:
        """The one that is forgotten as the next one goes; None while there is room."""
        return min(self.gone.items(), key=itemgetter(1)) if len(self.gone) >= self._most else None


async def _in_slices(items: Sequence[T]) -> AsyncIterator[T]:
    """Each of `items`, and the event loop goes round after every few."""
    for count, one in enumerate(items, 1):
        yield one
        if not count % _SLICE:
            await asyncio.sleep(0)


class KeyMirror:
    """used: when each key was used last. up: whether Redis answers; None before the first answer. read: whether all
    keys were read once. unread: that they were not, and none is known from before. changes: grows with each of them.
    log: called with a level, an event and facts."""

    def __init__(
        self,
        store: KeyStore,
        options: StoredKeys,
        log: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.used = LastUsed(store, log)
        self.options = options
        self._keys, self._teams = Entries[StoredKey](options.max_keys), Entries[StoredTeam](options.max_keys)
        self.up: bool | None = None
        self.read = False
        self.unread = True
        self.changes = 0
        self._log = log
        self._clock = clock
        self._in_force: InForce | None = None
        # Changes since `known` was asked, for a configuration that is not in force yet: None for a key that went.
        self._unseen: dict[tuple[Kind, str], Stored | None] | None = {}
        self._confirmed = clock()
        self._over = False
        self._version = 0
        self._last = "0-0"
        self._missing: dict[str, float] = {}
        self._ignored: set[tuple[Kind, str]] = set()
        self._following: asyncio.Task[None] | None = None

    @property
    def keys(self) -> dict[str, StoredKey]:
        """By name, those that were revoked too, as long as they are remembered."""
        return self._keys.by_name

    @property
    def revoked(self) -> dict[str, int]:
        """The versions of those."""
        return self._keys.gone

    @property
    def teams(self) -> dict[str, StoredTeam]:
        """As `keys`, with those that were deleted."""
        return self._teams.by_name

    @property
    def deleted(self) -> dict[str, int]:
        return self._teams.gone

    def _entries(self, kind: Kind) -> Entries[Any]:
        return self._keys if kind == "key" else self._teams

    # -- the configuration in force ---------------------------------------------------------------------------------

    def known(self) -> Known:
        """Those that are in force now, for a table that is made of them: what changes from then on is for `catch_up`
        and `use`. Without this call that is every key and team."""
        self._unseen = {}
        return Known([] if self._over else list(self.keys.values()), list(self.teams.values()))

    async def catch_up(self, coming: InForce) -> None:
        """Notifies `coming` of what it was not made of, in slices, but for the last few changes."""
        while self._unseen is not None and len(self._unseen) > _SLICE:
            for one in list(islice(self._unseen, _SLICE)):
                self._notify(coming, *one, self._unseen.pop(one))
            await asyncio.sleep(0)

    def use(self, in_force: InForce) -> None:
        """From now on these learn of each change. Call `catch_up` before."""
        unseen, self._unseen = self._unseen, None
        self._in_force = in_force
        in_force.table.away = not self.up
        for one, found in (unseen or {}).items():
            self._notify(in_force, *one, found)

    def leave(self) -> None:
        """Another mirror is in force: what changes here changes no key, team or limit any more."""
        self._in_force = None

    def _notify(self, coming: InForce, kind: Kind, name: str, one: Stored | None) -> None:
        fits = True
        if one is None:
            coming.table.forget(name)
        else:
            fits = coming.table.put(one) if isinstance(one, StoredKey) else coming.table.put_team(one)
        if not fits:
            self._log(
                "error",
                "key refused, the configuration has it" if kind == "key" else "team refused, the configuration has it",
                **{kind: name},
            )
        living = one if one is not None and fits and not one.gone else None
        if kind == "team":
            coming.limits_of_team(name, living)
        else:
            coming.limits(name, living.limits if living is not None else None)

    def _put(self, kind: Kind, name: str, one: Stored | None) -> None:
        """This key or team came or changed; or, with None, the key is not in force any more."""
        if self._unseen is not None:
            self._unseen[kind, name] = one
        if self._in_force is not None:
            self._notify(self._in_force, kind, name, one)

    def restore(self, keys: Sequence[StoredKey], age_s: float) -> None:
        """These were in force `age_s` seconds ago, when a process before this one read them last. They count as such
        until the store is read, as while Redis is away. Call it before `start`, and `restore_teams` before it."""
        if self._following is None and age_s < self.options.hold_s:
            self._confirmed -= age_s
            self.unread = False
            for key in keys[: 2 * self.options.max_keys]:
                self._take(key)

    def restore_teams(self, teams: Sequence[StoredTeam]) -> None:
        """As `restore`. Teams bind their callers however long ago that was."""
        for team in teams[: 2 * self.options.max_keys]:
            self._take(team)

    def take_over(self, before: KeyMirror) -> None:
        """Takes what `before` knows of the same store, with other bounds. Call it before `start`."""
        self._confirmed, self.unread, self.read = before._confirmed, before.unread, before.read
        self._over = self.age_s >= self.options.hold_s
        for team in before.teams.values():
            self._take(team)
        for key in before.keys.values():
            (self._keys.take if self._over else self._take)(key)
        self._missing = dict(before._missing)

    @property
    def age_s(self) -> float:
        """Seconds since the keys were known to be those of the store."""
        return self._clock() - self._confirmed

    # -- following --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reads the keys, and follows them. Does not raise if Redis is away: then they come when it does."""
        if self._following is None:
            read = asyncio.Event()
            self._following = asyncio.create_task(self._follow(read))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_S):
                    await read.wait()

    async def _follow(self, read: asyncio.Event) -> None:
        while True:
            with keep_running("keys of the store"):
                try:
                    await self._read_all()
                    read.set()
                    while await self._read_on():
                        pass
                    continue
                except StoreDown as down:
                    await self._away(str(down))
                    read.set()
            await asyncio.sleep(_RETRY_S)

    async def _read_all(self) -> None:
        self._last = await self.store.last()
        version = await self.store.version()
        later: list[tuple[Stored, int]] = []
        # The teams first: no key is in force without the bounds of its team.
        stored = await self._read_kind("team", later)
        later += [(team, 0) for name, team in self.teams.items() if name not in stored and not team.gone]
        stored = await self._read_kind("key", later)
        known = tuple(self.keys.items())
        lost = [one async for one in _in_slices(known) if one[0] not in stored and one[1].revoked is None]
        if lost and not self._missing:
            self._log("error", "keys lost by their store", keys=len(lost), hold_s=self.options.hold_s)
        since, self._missing = self._missing, {}
        async for name, key in _in_slices(lost):
            if self.keys.get(name) is key:
                self._missing[name] = since.get(name, self._clock())
        self._version, self.read = version, True
        await self._back()
        for own, there in later:
            await self._repair(own, there)

    async def _read_kind(self, kind: Kind, later: list[tuple[Stored, int]]) -> set[str]:
        """Takes in what the store has of a kind, and returns the names. later: gets those that are known here by a
        later version than there, each with that."""
        stored = set()
        async for page in self.store.pages(kind):
            for name, text in page:
                stored.add(name)
                one = decoded_as(kind, text)
                if one is None or one.name != name:
                    self._ignore(kind, name)
                elif (own := self._entries(kind).by_name.get(name)) is None or one.version > own.version:
                    self._take(one)
                else:
                    if self._over and kind == "key":
                        self._put(kind, name, own)
                    if one.version < own.version:
                        later.append((own, one.version))
            await asyncio.sleep(0)
        return stored

    async def _read_on(self) -> bool:
        """Takes in the next changes; False if everything has to be read again."""
        version = self._version
        if not (changes := await self.store.news(self._last, _WAIT_S)):
            version = await self.store.version()
            if version != self._version:  # a change that has just come, or one that was missed
                changes = await self.store.news(self._last, 0)
        self._confirmed = self._clock()
        for change in changes:
            if not self._learn(change):
                return False
        async for name, since in _in_slices(tuple(self._missing.items())):
            if self._confirmed - since >= self.options.hold_s and self._missing.pop(name, None) is not None:
                self.changes += 1
                self.keys.pop(name, None)
                self._put("key", name, None)
        return bool(changes) or version == self._version

    def _learn(self, change: Change) -> bool:
        """False if a change before it was missed."""
        self._last = change.id
        if change.version > self._version:
            if change.after != self._version:
                return False
            self._version = change.version
        if change.what is None:
            self._ignore(change.kind, change.event.name)
        else:
            self.learn(change.what)
        return True

    def learn(self, one: Stored) -> None:
        """A change that is in the store."""
        own = self._entries(kind_of(one)).by_name.get(one.name)
        if own is None or one.version > own.version:
            self._take(one)

    def _take(self, one: Stored) -> None:
        kind = kind_of(one)
        self.changes += 1
        self._entries(kind).take(one)
        if kind == "key":
            self._missing.pop(one.name, None)
        self._put(kind, one.name, one)

    def dropped(self, kind: Kind = "key") -> Drop | None:
        """The revoked key, or the deleted team, that is forgotten as the next one goes; None while there is room."""
        return self._entries(kind).dropped()

    def _ignore(self, kind: Kind, name: str) -> None:
        if (kind, name) not in self._ignored and len(self._ignored) < self.options.max_keys:
            self._ignored.add((kind, name))
            self._log(
                "warning",
                "key ignored, it is malformed" if kind == "key" else "team ignored, it is malformed",
                **{kind: name},
            )

    @property
    def missing(self) -> int:
        """How many keys are known here that vanished from the store."""
        return len(self._missing)

    async def refill(self, by: str) -> int:
        """Writes keys back that are known here and not in the store; those that were revoked, too, which an old copy
        could bring back. Returns how many. Raises StoreDown."""
        stored = {name async for page in self.store.pages() for name, _ in page}
        count = 0
        for key in [key for name, key in self.keys.items() if name not in stored]:
            try:
                version = await self.store.change(key, 0, Event(time.time(), by, "refill", key.name, key.team))
            except Other:  # another gateway did so
                continue
            self.learn(replace(key, version=version))
            count += 1
        return count

    async def _repair(self, own: Stored, there: int) -> None:
        kind = kind_of(own)
        what = "repair" if kind == "key" else "repair team"
        event = Event(time.time(), "gateway", what, own.name, own.team)
        try:
            version = await self.store.change(own, there, event)
        except Other:  # another gateway did so, or an admin
            return
        self._log(
            "error",
            "key repaired, its last change was lost" if kind == "key" else "team repaired, its last change was lost",
            **{kind: own.name, "version": version},
        )

    # -- Redis comes and goes ---------------------------------------------------------------------------------------

    async def _back(self) -> None:
        self._confirmed, self._over, self.unread = self._clock(), False, False
        if self.up:
            return
        self.up = True
        if self._in_force is not None:
            self._in_force.table.away = False
        self._log("info", "keys of the store known", keys=len(self.keys))
        if (why := await doubt(self.store)) is not None:
            self._log("warning", "the store of keys may lose them", reason=why)

    async def _away(self, reason: str) -> None:
        if self.up is not False:
            self._log("warning", "the store of keys is away", reason=reason, hold_s=self.options.hold_s)
        self.up = False
        if self._in_force is not None:
            self._in_force.table.away = True
        if not self._over and self._clock() - self._confirmed >= self.options.hold_s:
            self._over = True
            async for name in _in_slices(tuple(self.keys)):
                self._put("key", name, None)
            self._log("error", "keys refused, store away too long", keys=len(self.keys))

    async def close(self) -> None:
        await cancel_tasks(self._following)
        await self.used.close()
        await self.store.close()
