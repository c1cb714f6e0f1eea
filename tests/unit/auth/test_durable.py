"""Whether Redis would keep the keys, as a gateway finds out at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.auth.durable import doubt, judged
from tests.support.redis_server import Server
from tests.unit.auth.stored_keys import followed


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--appendonly", "yes"), None),
        ((), "appendonly is off and save is empty: a restart loses all keys"),
        (("--save", "60 100"), "appendonly is off: a crash loses the changes since the last snapshot (save 60 100)"),
        (
            ("--appendonly", "yes", "--maxmemory-policy", "allkeys-lru"),
            "maxmemory-policy is allkeys-lru: it evicts keys if memory is short; set noeviction",
        ),
        (
            ("--rename-command", "CONFIG", ""),
            "it refuses CONFIG: see in its settings that it has an append-only file, and evicts nothing",
        ),
    ],
)
async def test_a_server_is_doubted_by_its_own_settings(tmp_path: Path, options: tuple[str, ...], why: str) -> None:
    with Server(tmp_path, *options) as server:
        async with followed(server) as one:
            assert await doubt(one.mirror.store) == why
            warned = ("warning", "the store of keys may lose them") in one.events
            assert warned == (why is not None)


def test_eviction_among_keys_that_expire_spares_those_of_the_store() -> None:
    assert judged({"appendonly": "yes", "save": "", "maxmemory-policy": "volatile-lru"}) is None
