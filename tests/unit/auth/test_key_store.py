"""The store in other kinds of Redis, and with no more rights than the page says."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec.structs import replace

from gateway.config import Redis
from tests.repo.tree import ROOT
from tests.support.harness import soon
from tests.support.ports import free_port
from tests.support.redis_server import Server
from tests.unit.auth.stored_keys import Followed, put, stored
from tests.unit.auth.test_key_mirror import refusal


async def lives(settings: Redis) -> list[tuple[str, str]]:
    """A key is made and revoked, in force in a second each time; what was logged."""
    one, other = Followed(settings), Followed(settings)
    for who in (one, other):
        await who.mirror.start()
    try:
        assert one.mirror.up, one.events
        key = stored("app")
        version = await put(one.mirror.store, key, once=("once", b"what"))
        assert await one.mirror.store.done("once") == b"what"
        assert await soon(lambda: refusal(other, "secret-of-app") == ("", None)) < 1
        assert await one.mirror.store.find("app") == replace(key, version=version)
        await put(one.mirror.store, replace(key, revoked=time.time()), version, "revoke", drop=("other", 1))
        assert await soon(lambda: refusal(other, "secret-of-app") == ("UNAUTHENTICATED", None)) < 1
        changes = await one.mirror.store.record(None, 10)
        assert [change.event.what for change in changes] == ["revoke", "create"]
        return one.events
    finally:
        for who in (one, other):
            await who.mirror.close()


@contextlib.asynccontextmanager
async def clustered(directory: Path) -> AsyncIterator[Server]:
    """A cluster of one node."""
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--appendonly", "yes")
    with Server(directory, *options) as cluster:
        cluster.command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        await soon(lambda: b"cluster_state:ok" in cluster.command("CLUSTER", "INFO"))
        yield cluster


async def test_a_cluster(tmp_path: Path) -> None:
    async with clustered(tmp_path) as cluster:
        settings = cluster.settings.model_copy(update={"mode": "cluster"})
        assert await lives(settings) == [("info", "keys of the store known")]
        cluster.command("CONFIG", "SET", "appendonly", "no")
        one = Followed(settings)
        await one.mirror.start()
        await one.mirror.close()
        assert ("warning", "the store of keys may lose them") in one.events


def named(page: str, pattern: str) -> list[str]:
    found = re.search(pattern, (ROOT / "docs" / page).read_text())
    assert found is not None
    return found[1].split()


async def has_enough(server: Server, mode: str, rights: list[str], directory: Path) -> None:
    server.command("ACL", "SETUSER", "keys", "on", ">secret", *rights)
    (directory / "password").write_text("secret")
    login = {"mode": mode, "username": "keys", "password_file": str(directory / "password")}
    assert await lives(server.settings.model_copy(update=login)) == [("info", "keys of the store known")]
    assert server.command("ACL", "LOG") == []


async def test_the_rights_that_the_page_names_are_enough(tmp_path: Path) -> None:
    rights = named("keys.md", r"`(~{dragoman-keys}\*[^`]*)`")
    (tmp_path / "cluster").mkdir()
    with Server(tmp_path, "--appendonly", "yes") as server:
        await has_enough(server, "single", rights, tmp_path)
    async with clustered(tmp_path / "cluster") as cluster:
        rights += named("limits.md", r"cluster also\s+needs `([^`]*)`")
        await has_enough(cluster, "cluster", rights, tmp_path)
