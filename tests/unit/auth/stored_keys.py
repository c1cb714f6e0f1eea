"""Keys of the store as tests make them, and mirrors of it outside a gateway."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

from gateway.auth import Keyring, KeyTable, Principal, Stored, StoredKey, StoredTeam
from gateway.auth.key_mirror import InForce, KeyMirror
from gateway.auth.key_store import Event, KeyStore
from gateway.config import Config, Key, Redis, StoredKeys
from gateway.redis import connect


def hash_of(secret: str) -> str:
    return f"sha256:{sha256(secret.encode()).hexdigest()}"


def stored(name: str, secret: str = "", **options: Any) -> StoredKey:
    """A key of the store whose secret is `secret`, or a text made of its name."""
    found = hash_of(secret or f"secret-of-{name}")
    now = time.time()
    about: dict[str, Any] = {"hash": found, "seal": found, "created": now, "created_by": "test"}
    return StoredKey(name=name, **{**about, "changed": now, "changed_by": "test", **options})


def stored_team(name: str, **options: Any) -> StoredTeam:
    """A team of the store."""
    now = time.time()
    about: dict[str, Any] = {"created": now, "created_by": "test", "changed": now, "changed_by": "test"}
    return StoredTeam(name=name, **{**about, **options})


async def put(store: KeyStore, key: Stored, expected: int = 0, what: str = "create", **more: Any) -> int:
    return await store.change(key, expected, Event(time.time(), "test", what, key.name, key.team), **more)


class Followed:
    """A mirror with a table of its own, and what it logged."""

    def __init__(self, server: Redis, options: StoredKeys | None = None, namespace: str = "dragoman") -> None:
        self.events: list[tuple[str, str]] = []
        self.limits: dict[str, object] = {}
        self.limits_of_teams: dict[str, object] = {}
        config = Config(keys_store="redis", redis=server, keys={"own": Key(hash=hash_of("configured"))}, admins={})
        self.table = KeyTable(config)
        self.ring = Keyring(config, table=self.table)
        store = KeyStore(namespace, 1000, connect(server), server.call_s)
        self.skipped_s = 0.0
        self.mirror = KeyMirror(store, options or StoredKeys(), self._log, lambda: time.monotonic() + self.skipped_s)
        self.mirror.use(InForce(self.table, self.limits.__setitem__, self.limits_of_teams.__setitem__))

    def _log(self, level: str, event: str, **facts: object) -> None:
        self.events.append((level, event))

    def caller(self, secret: str) -> Principal:
        """Raises as `Keyring.identify`."""
        return self.ring.identify([(b"authorization", b"Bearer " + secret.encode())]).principal


@contextlib.asynccontextmanager
async def followed(*servers: Any, **more: Any) -> AsyncIterator[Any]:
    """A mirror for each of the servers; one alone is not in a list."""
    found = [Followed(server.settings, **more) for server in servers]
    try:
        for one in found:
            await one.mirror.start()
        yield found if len(found) > 1 else found[0]
    finally:
        for one in found:
            await one.mirror.close()
