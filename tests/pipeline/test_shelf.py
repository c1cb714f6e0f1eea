"""What is stored for clients: each owner's alone, for a time, within a bound."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.pipeline.shelf import MemoryShelf, RedisShelf
from gateway.redis import connect
from tests.redis.server import Server


async def test_each_owner_has_its_own() -> None:
    shelf = MemoryShelf(10, 1 << 20)
    shelf.put("a", {"x": b"1", "y": b"2"})
    shelf.put("b", {"x": b"3"})
    assert await shelf.get("a", ["x", "y", "z"]) == {"x": b"1", "y": b"2", "z": None}
    assert await shelf.get("b", ["x", "y"]) == {"x": b"3", "y": None}


async def test_it_ends_after_its_time() -> None:
    now = 0.0
    shelf = MemoryShelf(10, 1 << 20, lambda: now)
    shelf.put("a", {"x": b"1"})
    now = 9.0
    shelf.put("a", {"y": b"2"})
    assert await shelf.get("a", ["x"]) == {"x": b"1"}
    now = 10.0
    assert await shelf.get("a", ["x", "y"]) == {"x": None, "y": b"2"}
    now = 19.0
    await shelf.get("a", [])
    assert shelf.bytes == 0


async def test_the_oldest_go_first_and_no_text_takes_it_all() -> None:
    shelf = MemoryShelf(10, 1 << 20)
    for number in range(100):
        shelf.put("a", {str(number): b"x" * 30_000})
        assert shelf.bytes <= 1 << 20
    found = await shelf.get("a", map(str, range(100)))
    kept = [int(name) for name, text in found.items() if text is not None]
    assert kept == list(range(100 - len(kept), 100))
    assert len(kept) > 30
    shelf.put("b", {"big": b"x" * (1 << 19)})
    assert await shelf.get("b", ["big"]) == {"big": None}
    shelf.put("a", {"99": b""})
    assert (await shelf.get("a", ["99"]))["99"] == b""


@pytest.mark.parametrize("seed", range(5))
async def test_the_oldest_of_the_owner_with_most_goes_first(seed: int) -> None:
    draw = random.Random(seed)
    now = 0.0
    shelf = MemoryShelf(50, 1 << 14, lambda: now)
    kept: dict[tuple[str, str], tuple[float, int]] = {}
    for _ in range(1500):
        now += draw.random()
        owner, name = draw.choice("abcdefgh"), str(draw.randrange(9))
        if draw.random() < 0.2:
            await shelf.remove(owner, [name])
            kept.pop((owner, name), None)
        else:
            size = draw.randrange(1000)
            shelf.put(owner, {name: bytes(size)})
            kept.pop((owner, name), None)
            kept[owner, name] = now + 50, size + 512
        kept = {place: one for place, one in kept.items() if one[0] > now}
        await shelf.get("a", [])
        while sum(size for _, size in kept.values()) > 1 << 14:
            held = Counter[str]()
            for (one, _), (_, size) in kept.items():
                held[one] += size
            # Of several owners with as many bytes any one may lose.
            most = [one for one in held if held[one] == max(held.values())]
            oldest = [next(place for place in kept if place[0] == one) for one in most]
            for one, name in oldest:
                if (await shelf.get(one, [name]))[name] is None:
                    del kept[one, name]
                    break
            else:
                pytest.fail(f"none of {oldest} is gone")
        found = {one: await shelf.get(one, map(str, range(9))) for one in "abcdefgh"}
        assert {(one, name) for one in found for name, text in found[one].items() if text is not None} == set(kept)
        assert shelf.bytes == sum(size for _, size in kept.values())


def test_a_full_shelf_costs_no_more_with_more_owners() -> None:
    looked_up = 0

    class Owner(str):
        __slots__ = ()

        def __hash__(self) -> int:
            nonlocal looked_up
            looked_up += 1
            return str.__hash__(self)

        def __lt__(self, other: str) -> bool:
            nonlocal looked_up
            looked_up += 1
            return str.__lt__(self, other)

    def work(many: int) -> int:
        """How often 500 texts cause an owner to be looked up or compared."""
        nonlocal looked_up
        owners, names = [Owner(number) for number in range(many)], map(str, count())
        shelf = MemoryShelf(1000, many * 1000)
        for owner in owners * 2:
            shelf.put(owner, {next(names): bytes(300)})
        looked_up = 0
        for number in range(500):
            shelf.put(owners[number % many], {next(names): bytes(300)})
        assert shelf.bytes <= shelf.max_bytes < shelf.bytes + 1000  # it is full
        return looked_up

    assert work(4000) < 2 * work(100)


async def test_in_redis_all_share_it(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        settings = server.settings
        failures: list[str] = []
        one, two = (RedisShelf(10, lambda: connect(settings), failures.append) for _ in range(2))
        one.put("a", {"x": b"1", "y": b"2"})
        assert await one.get("a", ["x", "none"]) == {"x": b"1", "none": None}
        assert await two.get("a", ["y"]) == {"y": b"2"}
        assert await two.get("b", ["y"]) == {"y": None}
        client, to_close = connect(settings)
        keys = await client.keys("*")
        assert len(keys) == 2
        assert all([0 < await client.pttl(key) <= 10_000 for key in keys])
        for closing in (one, two, *to_close):
            await (closing.close() if isinstance(closing, RedisShelf) else closing.aclose())
        assert not failures


async def test_its_size_is_known_before_it_is_fetched(tmp_path: Path) -> None:
    names = list(map(str, range(40)))
    with Server(tmp_path) as server:
        settings = server.settings
        failures: list[str] = []
        for shelf in (MemoryShelf(10, 1 << 20), RedisShelf(10, lambda: connect(settings), failures.append)):
            shelf.put("a", dict.fromkeys(names, b"x" * 100))
            assert await shelf.size("a", ["none", *names]) == 4000
            assert await shelf.size("b", names) == 0
            assert list(await shelf.get("a", ["none", *names])) == ["none", *names]
            await shelf.close()
        assert not failures


async def test_one_owner_pushes_out_its_own_alone() -> None:
    shelf = MemoryShelf(10, 1 << 20)
    shelf.put("victim", {"kept": b"x" * 60_000})
    for owner in ("one", "two"):
        for number in range(100):
            shelf.put(owner, {str(number): b"x" * 60_000})
            assert shelf.bytes <= 1 << 20
    assert await shelf.size("victim", ["kept"]) == 60_000
    held = [await shelf.size(owner, map(str, range(100))) for owner in ("one", "two")]
    assert max(held) - min(held) <= 60_000, "each has its part"
    assert await shelf.size("two", ["99"]) == 60_000
    await shelf.remove("one", map(str, range(100)))
    await shelf.remove("two", map(str, range(100)))
    await shelf.remove("victim", ["kept", "none"])
    assert (shelf.bytes, shelf._bytes, shelf._owned) == (0, {}, {})


async def test_without_the_server_nothing_is_kept_and_nobody_is_told_otherwise() -> None:
    class Gone:
        def pipeline(self, transaction: bool) -> Any:
            raise ConnectionError

    failures: list[str] = []
    shelf = RedisShelf(10, lambda: (Gone(), []), failures.append)
    shelf.put("a", {"x": b"1"})
    with pytest.raises(GatewayError) as caught:
        await shelf.get("a", ["x"])
    assert caught.value.kind is Kind.OVERLOADED
    assert caught.value.retry_after is not None
    assert failures == ["ConnectionError"]
    await shelf.close()


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


async def test_a_backlog_is_bounded() -> None:
    failures: list[str] = []
    slow = Slow()
    shelf = RedisShelf(10, lambda: (slow, []), failures.append)
    for number in range(1001):
        shelf.put("a", {str(number): b""})
    assert failures == ["Backlog"]
    slow.taking.set()
    await shelf.close()


async def test_a_backlog_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.pipeline.shelf._TIMEOUT_S", 600.0)
    failures: list[str] = []
    slow = Slow()
    shelf = RedisShelf(10, lambda: (slow, []), failures.append)
    large = b"x" * (33 << 20)
    shelf.put("a", {"1": large, "2": large})  # one alone may be larger
    shelf.put("a", {"3": b"x"})
    assert failures == ["Backlog"]
    shelf.put("b", {"3": b"x"})
    assert failures == ["Backlog", "Backlog"], "all of the room is taken"
    slow.taking.set()
    await shelf.close()
    slow.taking.clear()
    failures.clear()
    shelf.put("a", {"1": b"x" * (15 << 20)})
    shelf.put("a", {"2": b"x" * (2 << 20)})
    assert failures == ["Backlog"], "one owner leaves room to others"
    shelf.put("b", {"1": b"x" * (15 << 20)})
    assert failures == ["Backlog"]
    slow.taking.set()
    await shelf.close()
    assert not shelf._unwritten
    shelf.put("a", {"4": large})
    shelf.put("a", {"5": large})
    assert failures == ["Backlog", "Backlog"]
    await shelf.close()
