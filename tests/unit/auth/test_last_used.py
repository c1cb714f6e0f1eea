"""The last use of each key: noted without a wait, written seldom, and kept while Redis is away."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.auth import key_store, last_used
from gateway.auth.key_store import KeyStore, StoreDown
from gateway.auth.last_used import LastUsed
from gateway.redis import connect
from tests.support.redis_server import Server


class Store:
    """written: what came, call by call. down: it takes nothing."""

    def __init__(self) -> None:
        self.written: list[Mapping[str, float]] = []
        self.down = False

    async def used(self, times: Mapping[str, float]) -> None:
        if self.down:
            raise StoreDown("away")
        self.written.append(times)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Store, list[str], list[float]]:
    monkeypatch.setattr(last_used, "_EVERY_S", 0.0)
    monkeypatch.setattr(last_used, "_RETRY_S", 0.0)
    store, told, now = Store(), list[str](), [600.0]
    kept: Any = store
    return LastUsed(kept, lambda level, what, **facts: told.append(what), lambda: now[0]), store, told, now


async def settled(used: LastUsed) -> None:
    if (writing := used._writing) is not None:  # nobody else has the task
        await asyncio.wait_for(writing, 10)


async def test_a_key_is_written_once_a_minute_and_only_keys_are(made: Any) -> None:
    used, store, _, now = made
    for key in ("a", "team:b", "a", "", "jwt:alice"):
        used.note(key)
    await settled(used)
    assert store.written == [{"a": 600.0, "team:b": 600.0}]
    now[0] = 659.0
    used.note("a")
    await settled(used)
    assert len(store.written) == 1, "this minute is noted"
    now[0] = 660.0
    used.note("a")
    await settled(used)
    assert store.written[1:] == [{"a": 660.0}]
    assert used._noted == {"a"}  # its memory is that of a minute


async def test_many_are_written_in_parts(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_used, "_AT_ONCE", 2)
    used, store, *_ = made
    for number in range(5):
        used.note(f"k{number}")
    await settled(used)
    assert [len(one) for one in store.written] == [2, 2, 1]


async def test_what_cannot_be_written_waits_and_is_said_once(made: Any) -> None:
    used, store, told, now = made
    store.down = True
    used.note("a")
    for _ in range(20):
        await asyncio.sleep(0)
    now[0] = 700.0
    used.note("a")
    assert told == ["last uses of keys not written"]
    store.down = False
    await settled(used)
    assert store.written[-1] == {"a": 700.0}


async def test_a_stop_writes_what_is_left_if_redis_takes_it(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_used, "_EVERY_S", 60.0)
    used, store, *_ = made
    used.note("a")
    store.down = True
    await used.close()
    store.down = False
    await used.close()
    assert store.written == [{"a": 600.0}]


async def test_the_latest_use_counts_and_the_set_is_bounded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_store, "MOST_USED", 2)
    with Server(tmp_path) as server:
        store = KeyStore("used", 1000, connect(server.settings), 5.0)
        await store.used({"a": 100.9, "b": 50})
        await store.used({"a": 60})
        assert await store.last_used(["a", "b", "never"]) == {"a": 100, "b": 50}
        await store.used({"c": 200})
        assert await store.last_used(["a", "b", "c"]) == {"a": 100, "c": 200}
    uses = LastUsed(store, lambda *_, **__: None)
    assert (await uses.of([]), await uses.of(["a"])) == ({}, {}), "it is away"
    await store.close()
