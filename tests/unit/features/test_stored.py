"""What is stored for clients: each owner's alone, for a time, within a bound."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.features.stored import MemoryResponseStore, RedisResponseStore
from gateway.redis import connect
from tests.support.redis_server import Server


async def test_each_owner_has_its_own() -> None:
    response_store = MemoryResponseStore(10, 1 << 20)
    response_store.put("a", {"x": b"1", "y": b"2"})
    response_store.put("b", {"x": b"3"})
    assert await response_store.get(["a"], ["x", "y", "z"]) == {"x": b"1", "y": b"2", "z": None}
    assert await response_store.get(["b"], ["x", "y"]) == {"x": b"3", "y": None}


async def test_it_ends_after_its_time() -> None:
    now = 0.0
    response_store = MemoryResponseStore(10, 1 << 20, lambda: now)
    response_store.put("a", {"x": b"1"})
    now = 9.0
    response_store.put("a", {"y": b"2"})
    assert await response_store.get(["a"], ["x"]) == {"x": b"1"}
    now = 10.0
    assert await response_store.get(["a"], ["x", "y"]) == {"x": None, "y": b"2"}
    now = 19.0
    await response_store.get(["a"], [])
    assert response_store.bytes == 0


async def test_the_oldest_go_first_and_no_text_takes_it_all() -> None:
    response_store = MemoryResponseStore(10, 1 << 20)
    for number in range(100):
        response_store.put("a", {str(number): b"x" * 30_000})
        assert response_store.bytes <= 1 << 20
    found = await response_store.get(["a"], map(str, range(100)))
    kept = [int(name) for name, text in found.items() if text is not None]
    assert kept == list(range(100 - len(kept), 100))
    assert len(kept) > 30
    response_store.put("b", {"big": b"x" * (1 << 19)})
    assert await response_store.get(["b"], ["big"]) == {"big": None}
    response_store.put("a", {"99": b""})
    assert (await response_store.get(["a"], ["99"]))["99"] == b""


@pytest.mark.parametrize("seed", range(5))
async def test_the_oldest_of_the_owner_with_most_goes_first(seed: int) -> None:
    draw = random.Random(seed)
    now = 0.0
    response_store = MemoryResponseStore(50, 1 << 14, lambda: now)
    kept: dict[tuple[str, str], tuple[float, int]] = {}
    for _ in range(1500):
        now += draw.random()
        owner, name = draw.choice("abcdefgh"), str(draw.randrange(9))
        if draw.random() < 0.2:
            await response_store.remove([owner], [name])
            kept.pop((owner, name), None)
        else:
            size = draw.randrange(1000)
            response_store.put(owner, {name: bytes(size)})
            kept.pop((owner, name), None)
            kept[owner, name] = now + 50, size + 512
        kept = {place: one for place, one in kept.items() if one[0] > now}
        await response_store.get(["a"], [])
        while sum(size for _, size in kept.values()) > 1 << 14:
            held = Counter[str]()
            for (one, _), (_, size) in kept.items():
                held[one] += size
            # Of several owners with as many bytes any one may lose.
            most = [one for one in held if held[one] == max(held.values())]
            oldest = [next(place for place in kept if place[0] == one) for one in most]
            for one, name in oldest:
                if (await response_store.get([one], [name]))[name] is None:
                    del kept[one, name]
                    break
            else:
                pytest.fail(f"none of {oldest} is gone")
        found = {one: await response_store.get([one], map(str, range(9))) for one in "abcdefgh"}
        assert {(one, name) for one in found for name, text in found[one].items() if text is not None} == set(kept)
        assert response_store.bytes == sum(size for _, size in kept.values())


async def test_in_redis_all_share_it(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        settings = server.settings
        failures: list[str] = []
        one, two = (RedisResponseStore(10, connect(settings), failures.append) for _ in range(2))
        one.put("a", {"x": b"1", "y": b"2"})
        assert await one.get(["a"], ["x", "none"]) == {"x": b"1", "none": None}
        assert await two.get(["a"], ["y"]) == {"y": b"2"}
        assert await two.get(["b"], ["y"]) == {"y": None}
        assert await two.get(["b", "a"], ["x", "y", "none"]) == {"x": b"1", "y": b"2", "none": None}
        assert await two.size(["b", "a"], ["x", "y"]) == 2
        client = connect(settings)
        keys = await client.keys("*")
        assert len(keys) == 2
        assert all([0 < await client.pttl(key) <= 10_000 for key in keys])
        for closing in (one.close, two.close, client.aclose):
            await closing()
        assert not failures


async def test_its_size_is_known_before_it_is_fetched(tmp_path: Path) -> None:
    names = list(map(str, range(40)))
    with Server(tmp_path) as server:
        settings = server.settings
        failures: list[str] = []
        for response_store in (
            MemoryResponseStore(10, 1 << 20),
            RedisResponseStore(10, connect(settings), failures.append),
        ):
            response_store.put("a", dict.fromkeys(names, b"x" * 100))
            assert await response_store.size(["a"], ["none", *names]) == 4000
            assert await response_store.size(["b"], names) == 0
            assert list(await response_store.get(["a"], ["none", *names])) == ["none", *names]
            await response_store.close()
        assert not failures


async def test_one_owner_pushes_out_its_own_alone() -> None:
    response_store = MemoryResponseStore(10, 1 << 20)
    response_store.put("victim", {"kept": b"x" * 60_000})
    for owner in ("one", "two"):
        for number in range(100):
            response_store.put(owner, {str(number): b"x" * 60_000})
            assert response_store.bytes <= 1 << 20
    assert await response_store.size(["victim"], ["kept"]) == 60_000
    held = [await response_store.size([owner], map(str, range(100))) for owner in ("one", "two")]
    assert max(held) - min(held) <= 60_000, "each has its part"
    assert await response_store.size(["two"], ["99"]) == 60_000
    await response_store.remove(["one"], map(str, range(100)))
    await response_store.remove(["two"], map(str, range(100)))
    await response_store.remove(["victim"], ["kept", "none"])
    assert (response_store.bytes, response_store._bytes, response_store._owned) == (0, {}, {})  # nothing is left


async def test_without_the_server_nothing_is_kept_and_nobody_is_told_otherwise() -> None:
    class Gone:
        def pipeline(self, transaction: bool) -> Any:
            raise ConnectionError

    failures: list[str] = []
    response_store = RedisResponseStore(10, Gone(), failures.append)
    response_store.put("a", {"x": b"1"})
    with pytest.raises(GatewayError) as caught:
        await response_store.get(["a"], ["x"])
    assert caught.value.kind is Kind.OVERLOADED
    assert caught.value.retry_after is not None
    assert failures == ["ConnectionError"]
    await response_store.close()


class Slow:
    """A server that takes no write before it is told to."""

    def __init__(self) -> None:
        self.taking = asyncio.Event()

    def pipeline(self, transaction: bool) -> Any:
        return self

    def set(self, *_: Any, **__: Any) -> None:
        pass

    async def execute(self) -> None:
        await self.taking.wait()


class Late:
    """A server that has the text from the second look on: another gateway was about to write it."""

    def __init__(self) -> None:
        self.looks = 0

    def pipeline(self, transaction: bool) -> Any:
        return self

    def get(self, key: str) -> None:
        pass

    async def execute(self) -> list[bytes | None]:
        self.looks += 1
        return [b"1" if self.looks > 1 else None]

    async def aclose(self) -> None:
        pass


async def test_what_another_gateway_is_about_to_write_is_looked_up_again() -> None:
    late, failures = Late(), list[str]()
    response_store = RedisResponseStore(10, late, failures.append)
    assert await response_store.get(["a"], ["x"]) == {"x": b"1"}
    assert await response_store.get(["a"], ["x"]) == {"x": b"1"}
    assert (late.looks, failures) == (3, [])
    await response_store.close()


async def test_a_backlog_is_bounded() -> None:
    failures: list[str] = []
    slow = Slow()
    response_store = RedisResponseStore(10, slow, failures.append)
    for number in range(1001):
        response_store.put("a", {str(number): b""})
    assert failures == ["Backlog"]
    slow.taking.set()
    await response_store.close()


async def test_a_backlog_is_bounded_in_bytes() -> None:
    failures: list[str] = []
    slow = Slow()
    response_store = RedisResponseStore(10, slow, failures.append, call_s=600.0)
    large = b"x" * (33 << 20)
    response_store.put("a", {"1": large, "2": large})  # one alone may be larger
    response_store.put("a", {"3": b"x"})
    assert failures == ["Backlog"]
    response_store.put("b", {"3": b"x"})
    assert failures == ["Backlog", "Backlog"], "all of the room is taken"
    slow.taking.set()
    await response_store.close()
    slow.taking.clear()
    failures.clear()
    response_store.put("a", {"1": b"x" * (15 << 20)})
    response_store.put("a", {"2": b"x" * (2 << 20)})
    assert failures == ["Backlog"], "one owner leaves room to others"
    response_store.put("b", {"1": b"x" * (15 << 20)})
    assert failures == ["Backlog"]
    slow.taking.set()
    await response_store.close()
    assert not response_store._unwritten  # all was written
    response_store.put("a", {"4": large})
    response_store.put("a", {"5": large})
    assert failures == ["Backlog", "Backlog"]
    await response_store.close()
