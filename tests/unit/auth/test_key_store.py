"""The store in other kinds of Redis, and with no more rights than the page says."""

from __future__ import annotations

import re
import time
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


async def test_a_cluster(tmp_path: Path) -> None:
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--appendonly", "yes")
    with Server(tmp_path, *options) as cluster:
        cluster.command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        await soon(lambda: b"cluster_state:ok" in cluster.command("CLUSTER", "INFO"))
        settings = cluster.settings.model_copy(update={"mode": "cluster"})
        assert await lives(settings) == [("info", "keys of the store known")]
        cluster.command("CONFIG", "SET", "appendonly", "no")
        one = Followed(settings)
        await one.mirror.start()
        await one.mirror.close()
        assert ("warning", "the store of keys may lose them") in one.events


async def test_the_rights_that_the_page_names_are_enough(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "keys.md").read_text()
    found = re.search(r"`(~{dragoman-keys}\*[^`]*)`", page)
    assert found is not None
    with Server(tmp_path, "--appendonly", "yes") as server:
        server.command("ACL", "SETUSER", "keys", "on", ">secret", *found[1].split())
        (tmp_path / "password").write_text("secret")
        login = {"username": "keys", "password_file": str(tmp_path / "password")}
        assert await lives(server.settings.model_copy(update=login)) == [("info", "keys of the store known")]
        assert server.command("ACL", "LOG") == []
