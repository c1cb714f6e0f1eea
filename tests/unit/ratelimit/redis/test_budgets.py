"""Budgets over several gateways and one Redis: never above by more than was reserved, and not forgotten by it."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from gateway.config import Limit
from gateway.config.money import Budget, Spend
from gateway.core.errors import Kind
from gateway.core.estimate import Cost
from gateway.ratelimit import Subject, SubjectLimiter
from gateway.ratelimit.kept import Kept
from gateway.ratelimit.model import Limited
from gateway.ratelimit.redis.store import RedisStore
from gateway.ratelimit.rules import rule_of
from tests.support.redis_server import Server
from tests.unit.ratelimit.conftest import Make, reach

ANN = Subject(key="ann", team="sales", model="m")


def budget(amount: int, **options: object) -> Limit:
    entry = Budget.model_validate({"name": "b", "amount": 1, "scope": ["team"], "warn_at": [0.5], **options})
    return rule_of(entry.model_copy(update={"amount": amount}), Spend(currency="EUR"))


async def gateways(
    started: Make, server: Server, rule: Limit, count: int = 3, **options: object
) -> list[SubjectLimiter]:
    return [await started([rule], RedisStore(server.settings), **options) for _ in range(count)]


async def spend(limiter: SubjectLimiter, reserves: int, costs: int) -> None:
    """One request from its admission to its settlement."""
    made = await limiter.reserve(ANN, Cost(money=reserves))
    await asyncio.sleep(0)
    limiter.settle(made, None, money=costs)


async def used(limiter: SubjectLimiter) -> int:
    await limiter.flush()
    (state,) = await limiter.inspect(ANN)
    return state.used


async def test_a_race_of_64_clients_spends_the_budget_and_never_more(server: Server, started: Make) -> None:
    three = await gateways(started, server, budget(10_000))
    chance = random.Random(7)
    paid: list[int] = []

    async def client(number: int) -> None:
        limiter = three[number % 3]
        while True:
            reserves = chance.randrange(1, 60)
            costs = chance.randrange(reserves + 1)
            try:
                await spend(limiter, reserves, costs)
            except Limited as limited:
                if limited.retry_after is None:
                    return
                await asyncio.sleep(0.001)  # running requests have reserved what is left
                continue
            paid.append(costs)

    await asyncio.gather(*(client(number) for number in range(64)))
    for limiter in three:
        await limiter.flush()
    assert await used(three[0]) == sum(paid)
    assert 10_000 - 60 <= sum(paid) <= 10_000


async def test_the_refusal_of_a_spent_budget_names_no_time(server: Server, started: Make) -> None:
    (limiter,) = await gateways(started, server, budget(100), 1)
    await spend(limiter, 100, 100)
    with pytest.raises(
        Limited, match=r"the budget 'b' of 0.0000001 EUR a month is spent; it starts again on 20"
    ) as error:
        await spend(limiter, 1, 1)
    assert error.value.kind is Kind.QUOTA
    assert error.value.retry_after is None


async def test_what_was_spent_survives_a_flush(server: Server, started: Make) -> None:
    three = await gateways(started, server, budget(1_000))
    for limiter, costs in zip(three, (200, 300, 400), strict=True):
        await spend(limiter, 400, costs)
        await limiter.flush()
    await asyncio.sleep(0.002)  # a counter is known by its birth, in milliseconds
    server.command("FLUSHALL")
    with pytest.raises(Limited):  # of all, this gateway saw the most
        await spend(three[2], 101, 0)
    await spend(three[0], 50, 50)
    await spend(three[1], 50, 50)
    await asyncio.gather(*(limiter.flush() for limiter in three))
    assert await used(three[1]) == 1_000


async def test_what_runs_while_the_server_is_emptied_is_settled(server: Server, started: Make) -> None:
    one, other = await gateways(started, server, budget(1_000), 2)
    made = await one.reserve(ANN, Cost(money=600))
    await spend(other, 100, 100)
    await asyncio.sleep(0.002)  # a counter is known by its birth, in milliseconds
    server.command("FLUSHALL")
    await spend(other, 100, 100)
    one.settle(made, None, money=10)
    await one.flush()
    assert await used(other) == 210


async def test_a_reset_is_not_undone_by_what_gateways_remember(server: Server, started: Make) -> None:
    one, other = await gateways(started, server, budget(1_000), 2)
    await spend(one, 900, 900)
    await one.flush()
    await other.reset(ANN)
    await spend(one, 10, 10)
    assert await used(one) == 10


async def test_one_gateway_warns_of_each_share(server: Server, started: Make) -> None:
    told: list[float] = []
    three = await gateways(started, server, budget(100), on_budget=lambda rule, subject, at, used: told.append(at))
    for turn in range(12):
        limiter = three[turn % 3]
        try:
            await spend(limiter, 10, 10)
        except Limited:
            continue
        await limiter.flush()
    assert told == [0.5, 1.0]


async def test_what_is_spent_without_the_server_is_charged_when_it_is_back(mortal: Server, started: Make) -> None:
    (limiter,) = await gateways(started, mortal, budget(1_000), 1, heartbeat=0.2)
    await spend(limiter, 300, 300)
    await limiter.flush()
    mortal.kill()
    while limiter.state == "strict":
        await spend(limiter, 1, 0)
    await spend(limiter, 500, 400)
    with pytest.raises(Limited):  # 700 of it are spent
        await spend(limiter, 301, 0)
    mortal.start()
    await reach(limiter)
    await spend(limiter, 300, 0)  # the server has lost what was spent before, and learns of it from the next request
    assert await used(limiter) == 700


async def test_the_next_period_has_a_counter_of_its_own(
    server: Server, started: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_795_000_000.0  # in November 2026
    for module in ("kinds", "limiter", "model"):
        monkeypatch.setattr(f"gateway.ratelimit.{module}.time", lambda: now)
    (limiter,) = await gateways(started, server, budget(100), 1)
    await spend(limiter, 100, 100)
    running = await _refused(limiter)
    assert running
    now += 31 * 86_400
    limiter._turn()  # its timer's, which cannot see that this clock was set
    await spend(limiter, 60, 60)
    assert await used(limiter) == 60
    names: Sequence[bytes] = sorted(server.command("KEYS", "*:cmonth*"))
    assert names == [b"{dragoman:0}:cmonth2026-11:b:team=sales", b"{dragoman:0}:cmonth2026-12:b:team=sales"]
    assert all(0 < server.command("PTTL", name) <= 33 * 86_400_000 for name in names)


async def _refused(limiter: SubjectLimiter) -> bool:
    try:
        await spend(limiter, 1, 1)
    except Limited:
        return True
    return False


def kept(folder: Path, faults: list[str] | None = None) -> Kept:
    return Kept(folder, (faults if faults is not None else []).append)


def written(folder: Path) -> list[Path]:
    return list(folder.glob("*.spent"))


def test_old_files_go_with_their_locks_and_one_that_vanishes_hides_no_other(tmp_path: Path) -> None:
    sums = {b"a": (1, 5)}
    for number in range(120):
        file = tmp_path / f"old-{number}.spent"
        file.write_bytes(msgspec.msgpack.encode(sums))
        file.with_suffix(".lock").touch()
        os.utime(file, (number, number))
    (tmp_path / "gone.spent").symlink_to(tmp_path / "nothing")
    reader = kept(tmp_path)
    assert reader.read() == sums
    assert not (tmp_path / "old-19.spent").exists()
    assert len(list(tmp_path.glob("*.lock"))) == 101  # the reader's own is one
    reader.close()


def test_a_folder_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    faults: list[str] = []
    assert kept(tmp_path / "file" / "sums", faults).read() == {}
    assert faults == ["NotADirectoryError"]


async def test_what_is_kept_in_a_folder_outlives_redis_and_all_gateways(
    server: Server, started: Make, tmp_path: Path
) -> None:
    for _ in range(2):
        rule = budget(10_000)
        one, two = await gateways(started, server, rule, 2)
        for each in (one, two):
            each.floors.keep(kept(tmp_path / "sums"))
        await spend(one, 3_000, 2_000)
        await one.flush()
        await spend(two, 3_000, 2_500)
        await one.close()
        await two.close()
        server.command("FLUSHALL")
    (third,) = await gateways(started, server, rule, 1)
    third.floors.keep(kept(tmp_path / "sums"))
    await spend(third, 500, 500)
    assert await used(third) == 2 * 4_500 + 500
    with pytest.raises(Limited) as refused:
        await third.reserve(ANN, Cost(money=501))
    assert refused.value.kind is Kind.QUOTA
    assert len(written(tmp_path / "sums")) == 2, "the next processes take up the files of those before"


async def test_a_file_that_is_broken_or_cannot_be_written_stops_nobody(
    server: Server, started: Make, tmp_path: Path
) -> None:
    (tmp_path / "old.spent").write_bytes(b"not msgpack")
    faults: list[str] = []
    (one,) = await gateways(started, server, budget(10_000), 1)
    one.floors.keep(kept(tmp_path / "old.spent" / "below", faults))
    for _ in range(2):
        await spend(one, 3_000, 2_000)
        await one.floors.save()
    assert faults == ["NotADirectoryError"]
    one.floors.keep(kept(tmp_path))
    await one.floors.save()
    assert len(written(tmp_path)) == 2


def test_files_are_bounded(tmp_path: Path) -> None:
    for number in range(120):
        (tmp_path / f"{number}.spent").write_bytes(b"\x80")
    assert kept(tmp_path).read() == {}
    assert len(written(tmp_path)) == 100
