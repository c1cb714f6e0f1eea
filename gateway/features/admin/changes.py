"""The changes of keys that admins ask for: who may, what is wrong with them, and their line in the audit record."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import fields, replace

from gateway.auth import MOST_OLD, OPTIONS, Admin, OldSecret, OwnLimits, StoredKey, new_secret, options_of
from gateway.auth.key_mirror import KeyMirror
from gateway.auth.key_store import MOST_BYTES, Done, Event, Other
from gateway.config import Available, Config, Key, key_of

MOST_VALID_S = 31 * 86_400.0
TRIES = 4


class Problem(Exception):
    """A refusal: its HTTP status, a code for programs, a sentence for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Created(NamedTuple):
    """secret: None if the caller made it itself, or was shown it before. again: it was made before."""

    key: StoredKey
    secret: str | None
    again: bool


class KeyChanges:
    """The keys of the store as admins change them. log: called with a level, an event and facts."""

    def __init__(self, config: Config, known: Available | None, mirror: KeyMirror, log: Callable[..., None]) -> None:
        self._config = config
        self._known = known
        self.mirror = mirror
        self._log = log

    @property
    def configured(self) -> Mapping[str, Key]:
        """The keys of the configuration, by name."""
        return self._config.keys

    async def find(self, admin: Admin, name: str) -> StoredKey:
        """Raises Problem: a key of another team is answered as one that does not exist."""
        key = self.mirror.keys.get(name)
        if key is None and (key := await self.mirror.store.find(name)) is not None:
            self.mirror.learn(key)  # another gateway has just made it
        own = self._config.keys.get(name)
        if key is None and own is not None and admin.may(own.team):
            raise Problem(409, "configured", "the key stands in the configuration: change it there and reload")
        if key is None or not admin.may(key.team):
            raise Problem(404, "no_key", "there is no such key in the store")
        return key

    async def create(self, admin: Admin, given: Mapping[str, Any], once: str | None) -> Created:
        """once: a creation that comes with the same one again makes nothing, and shows no secret."""
        options = dict(given)
        name = name_of(options)
        sum_ = sha256(msgspec.json.encode(given, order="sorted")).hexdigest()
        done = None if once is None else (f"{admin.name} {once}", f"{sum_} {name}".encode())
        if done is not None and (before := await self.mirror.store.done(done[0])) is not None:
            return await self._again(admin, before, done[1])
        secret, made = self._secret(options)
        key = self._checked(admin, name, options | made, None)
        try:
            self._free(admin, name)
            if secret is None:
                self._unused(key.hash)
        except Problem:
            # Another gateway may have made it with this Idempotency-Key since the store was asked.
            if done is not None and (before := await self.mirror.store.done(done[0])) is not None:
                return await self._again(admin, before, done[1])
            raise
        revoked = self.mirror.keys.get(name)
        expected = revoked.version if revoked is not None else 0
        for _ in range(TRIES):
            try:
                key = await self._write(admin, "create", key, expected, tuple(given), done)
                return Created(key, secret, False)
            except Done as before:
                return await self._again(admin, before.what, (done or ("", b""))[1])
            except Other as other:
                if other.key is not None:
                    self.mirror.learn(other.key)
                self._free(admin, name)
                expected = other.key.version if other.key is not None else 0
        raise _taken("name")

    async def _again(self, admin: Admin, before: bytes, now: bytes) -> Created:
        if before != now:
            raise Problem(422, "idempotency_key_reused", "this Idempotency-Key came with another request before")
        return Created(await self.find(admin, before.partition(b" ")[2].decode()), None, True)

    def _free(self, admin: Admin, name: str) -> None:
        """Raises Problem if the name is in use, or was that of another team's key, or there are too many keys."""
        before = self.mirror.keys.get(name)
        if name in self._config.keys or (before is not None and not (before.revoked and admin.may(before.team))):
            raise _taken("name")
        self._room()

    def _room(self) -> None:
        most = self._config.stored_keys.max_keys
        if len(self.mirror.keys) - len(self.mirror.revoked) >= most:
            raise Problem(409, "full", f"there are {most} keys, the most that stored_keys.max_keys allows")

    def _unused(self, hash_: str) -> None:
        """Raises Problem if the secret is or was that of a key."""
        stored = self.mirror.keys.values()
        used = {key.hash for key in self._config.keys.values()} | {key.hash for key in stored}
        used |= {admin.hash for admin in self._config.admins.values()}
        if hash_ in used or any(hash_ == old.hash for key in stored for old in key.old):
            raise _taken("secret")

    async def update(self, admin: Admin, name: str, given: Mapping[str, Any]) -> StoredKey:
        """Options that are null in `given` are taken away."""

        def changed(before: StoredKey) -> StoredKey:
            _living(before)
            options = {**options_of(before), **given}
            # A null takes an option away. A name that no option has is a fault, as with any other value.
            options = {one: value for one, value in options.items() if value is not None or one not in OPTIONS}
            options |= {"hash": before.hash, "id": before.id}
            return self._checked(admin, name, options, before, {*OPTIONS} - given.keys())

        if secret := given.keys() & {"hash", "id"}:
            raise Problem(422, "invalid", f"{min(secret)}: a secret changes by rotate")
        return await self._change(admin, name, "update", changed, tuple(given))

    async def rotate(self, admin: Admin, name: str, given: Mapping[str, Any]) -> tuple[StoredKey, str | None]:
        """The key with a new secret, and that secret unless the caller made it itself. The old one is valid for
        `valid_s` more seconds, a day if absent."""
        options = dict(given)
        valid_s = options.pop("valid_s", 86_400)
        if isinstance(valid_s, bool) or not isinstance(valid_s, int | float) or not 0 <= valid_s <= MOST_VALID_S:
            raise Problem(422, "invalid", f"valid_s: must be a number of seconds up to {MOST_VALID_S:.0f}")
        secret, made = self._secret(options)
        if wrong := options.keys() - {"hash", "id"}:
            raise Problem(422, "invalid", f"{min(wrong)}: rotate takes valid_s, or a hash with its id")

        def changed(before: StoredKey) -> StoredKey:
            _living(before)
            if before.hash == made["hash"]:
                return before  # the first try, whose answer was lost
            checked = self._checked(admin, name, options_of(before) | made, before, OPTIONS)
            if secret is None:
                self._unused(checked.hash)
            now = time.time()
            old = [one for one in before.old if one.until > now]
            if valid_s:
                old.append(OldSecret(before.hash, now + valid_s, before.id))
            if len(old) > MOST_OLD:
                raise Problem(409, "too_many_old", f"{MOST_OLD} replaced secrets of it are still valid")
            return replace(checked, old=tuple(old))

        return await self._change(admin, name, "rotate", changed, ()), secret

    async def revoke(self, admin: Admin, name: str) -> StoredKey:
        def changed(before: StoredKey) -> StoredKey:
            return before if before.revoked is not None else replace(before, revoked=time.time())

        return await self._change(admin, name, "revoke", changed, ())

    async def put(self, admin: Admin, name: str, given: Mapping[str, Any]) -> StoredKey:
        """Takes in a key as it was exported. One that was revoked here stays so, and one that is another here stays,
        too."""
        if not admin.all:
            raise forbidden("an import is for admins of all keys")
        if wrong := _unknown(given, name):
            raise Problem(422, "invalid", f"not a key as it was exported: {wrong}")
        try:
            key = msgspec.convert({**given, "name": name, "version": 0}, StoredKey)
        except msgspec.ValidationError as error:
            raise Problem(422, "invalid", f"not a key as it was exported: {error}") from None
        checked = self._checked(admin, name, options_of(key) | {"hash": key.hash, "id": key.id}, key)
        key = replace(checked, changed=key.changed, changed_by=key.changed_by)
        if name in self._config.keys:
            raise _taken("name")
        own = self.mirror.keys.get(name)
        if own is None and key.revoked is None:
            self._room()
        key = own if own is not None and own.revoked is not None else key
        expected = 0
        for _ in range(TRIES):
            try:
                return await self._write(admin, "import", key, expected, (), None)
            except Other as other:
                there = other.key
                if there is None or (there.revoked is None and key.revoked is not None):
                    expected = there.version if there is not None else 0
                elif there.revoked is not None or replace(there, version=0) == replace(key, version=0):
                    self.mirror.learn(there)
                    return there
                else:
                    break
        raise _taken("name")

    # -- what they share --------------------------------------------------------------------------------------------

    def _secret(self, options: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
        """(a new secret, its hash and id), or (None, those that the caller gave). Raises Problem for an id alone."""
        if options.get("hash") is not None:
            return None, {"hash": options["hash"], "id": options.get("id")}
        if options.get("id") is not None:
            raise Problem(422, "invalid", "id: comes with the hash of a secret that the caller made")
        secret, id_, hash_ = new_secret()
        return secret, {"hash": hash_, "id": id_}

    def _checked(
        self,
        admin: Admin,
        name: str,
        options: Mapping[str, Any],
        before: StoredKey | None,
        unchanged: Container[object] = (),
    ) -> StoredKey:
        """The key with exactly these options, and `before`'s history. unchanged: as for `key_of`. Raises Problem."""
        if pair := next((option for option in options if option.startswith("aws_")), None):
            raise Problem(422, "invalid", f"{pair}: pairs that sign requests are for files: their secret is needed")
        if "match" in options:
            raise Problem(422, "invalid", "match: networks are for files: one file shows that none overlaps another")
        try:
            checked = key_of(self._config, self._known, name, options, unchanged)
        except ValueError as error:
            raise Problem(422, "invalid", str(error)) from None
        if not admin.may(checked.team):
            raise forbidden(f"a key of yours needs a team of yours: {', '.join(sorted(admin.teams or ()))}")
        found = checked.model_dump(mode="json", exclude_defaults=True)
        now = time.time()
        history: dict[str, Any] = {"seal": checked.hash, "created": now, "created_by": admin.name, "old": ()}
        if before is not None:
            history = {field: getattr(before, field) for field in (*history, "revoked", "version")}
        key = msgspec.convert(
            {**found, **msgspec.to_builtins(history), "name": name, "changed": now, "changed_by": admin.name}, StoredKey
        )
        if admin.teams is not None:
            self._modest(key, before)
        if len(msgspec.json.encode(key)) > MOST_BYTES:
            raise Problem(422, "too_large", f"the key has more than {MOST_BYTES} bytes as JSON")
        return key

    def _modest(self, key: StoredKey, before: StoredKey | None) -> None:
        """A lead of a team cannot put its keys before those of others, nor out of a limit that counts for all, nor say
        whether prompts are logged."""
        if key.priority > (before.priority if before is not None else 0):
            raise forbidden("priority: is raised by admins of all keys only")
        if key.log_prompts_until != (before.log_prompts_until if before is not None else None):
            raise forbidden("log_prompts_until: is set by admins of all keys only")
        general = {limit.name for limit in self._config.limits} | {one.name for one in self._config.budgets}
        listen = self._config.listen
        general |= {kind for kind in ("streams", "connections") if getattr(listen, f"max_{kind}_per_key") is not None}
        for kind in general & set(OwnLimits.__struct_fields__):
            own = getattr(key.limits, kind, None)
            if own is not None and own != getattr(before and before.limits, kind, None):
                raise forbidden(f"limits.{kind}: replaces a limit of all keys, which admins of all keys may do only")

    async def _change(
        self, admin: Admin, name: str, what: str, changed: Callable[[StoredKey], StoredKey], options: tuple[str, ...]
    ) -> StoredKey:
        expected = (await self.find(admin, name)).version
        for _ in range(TRIES):
            before = await self.find(admin, name)
            key = changed(before)
            if key is before:
                return key
            try:
                return await self._write(admin, what, key, expected, options, None)
            except Other as other:  # changed by another gateway, or lost by Redis
                expected = other.key.version if other.key is not None else 0
                if other.key is not None:
                    self.mirror.learn(other.key)
        raise Problem(409, "conflict", "others change this key at the same time")

    async def _write(
        self,
        admin: Admin,
        what: str,
        key: StoredKey,
        expected: int,
        options: tuple[str, ...],
        once: tuple[str, bytes] | None,
    ) -> StoredKey:
        event = Event(time.time(), admin.name, what, key.name, key.team, options)
        drop = self.mirror.dropped() if key.revoked is not None else None
        version = await self.mirror.store.change(key, expected, event, once, drop)
        key = replace(key, version=version)
        self.mirror.learn(key)
        self._log("info", "key of the store changed", key=key.name, what=what, by=admin.name)
        return key


def name_of(options: dict[str, Any]) -> str:
    """Takes the name of what is created out of its options. Raises Problem."""
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise Problem(422, "invalid", "name: is required, as text")
    if name in (".", ".."):  # clients resolve them before they send a path, encoded ones too
        raise Problem(422, "invalid", "name: must be one that a path can hold, which . and .. are not")
    return name


def _unknown(given: Mapping[str, Any], name: str) -> str | None:
    """A fault of the members of a key that is put at `name`, not of their values. The store leaves out
    what it does not know, since it reads keys of later versions, too."""
    if given.get("name", name) != name:
        return f"name: the path has {name}"
    limits, old = given.get("limits"), given.get("old")
    parts: list[tuple[str, object, type]] = [("", given, StoredKey), ("limits.", limits, OwnLimits)]
    parts += [("old.", one, OldSecret) for one in (old if isinstance(old, list) else ())]
    for prefix, part, kind in parts:
        names = part.keys() - {field.name for field in fields(kind)} if isinstance(part, dict) else ()
        if names or (kind is StoredKey and "version" in given):
            return f"{prefix}{min(names, default='version')}: a key has no such member"
    return None


def _living(key: StoredKey) -> None:
    if key.revoked is not None:
        raise Problem(409, "revoked", "the key was revoked; create another one")


def _taken(what: str) -> Problem:
    return Problem(409, f"{what}_taken", f"there is a key with this {what}, in the store or in the configuration")


def forbidden(message: str) -> Problem:
    return Problem(403, "role", message)
