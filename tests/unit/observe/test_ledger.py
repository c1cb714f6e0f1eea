"""Sums of requests by day in Redis: they add up to the records, whatever the server and the gateway go through."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gateway.core.ports import RequestRecord
from gateway.core.usage import Usage
from gateway.core.written import Moment
from gateway.observe import ledger as module
from gateway.observe.ledger import OTHER, Ledger, figures_of
from gateway.observe.spending import Report, Wrong, days_of, make
from gateway.redis import connect
from tests.support.harness import soon
from tests.support.redis_server import Server

DAY = date(2026, 11, 26)
NOON = datetime(2026, 11, 26, 12, tzinfo=UTC).timestamp()

Open = Callable[..., Ledger]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def server(shared: Server) -> Server:
    shared.command("FLUSHALL")
    return shared


@pytest.fixture
async def opened(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Open]:
    monkeypatch.setattr(module, "_EVERY_S", 0.001)
    made: list[Ledger] = []

    def one(server: Server, zone: Any = UTC, **options: Any) -> Ledger:
        made.append(Ledger("test", zone, connect(server.settings), **options))
        return made[-1]

    yield one
    for each in made:
        await each.close()


def record(chance: random.Random, at: float = NOON, **more: Any) -> RequestRecord:
    usage = (
        None if chance.random() < 0.1 else Usage(chance.randrange(9_999), chance.randrange(999), chance.randrange(99))
    )
    made = RequestRecord(
        id="id", dialect="openai", model=f"m{chance.randrange(3)}", key=f"k{chance.randrange(4)}", attempts=1
    )
    made.team = chance.choice([None, "red", "blue"])
    made.usage, made.time, made.cost = usage, Moment(at), chance.randrange(10**12)
    for name, value in more.items():
        setattr(made, name, value)
    return made


async def settled(*ledgers: Ledger) -> None:
    await soon(lambda: all(one._writing is None for one in ledgers))  # nothing is under way


async def totals(ledger: Ledger, *by: Any, days: Any = (DAY,)) -> dict[tuple[str, ...], tuple[int, ...]]:
    return {row: sums.figures for row, sums in (await ledger.report(days, by)).items()}


def added(records: list[RequestRecord]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*map(figures_of, records), strict=True)))


async def test_two_gateways_add_up_to_the_last_token(server: Server, opened: Open) -> None:
    chance, one, two = random.Random(1), opened(server), opened(server)
    records = [record(chance) for _ in range(2_000)]
    for number, each in enumerate(records):
        (one, two)[number % 2].add(each)
        if number % 100 == 0:
            await asyncio.sleep(0.002)
    await settled(one, two)
    found = await totals(one, "team", "model")
    for (team, model), sums in found.items():
        assert sums == added([each for each in records if (each.team or "", each.model) == (team, model)])
    assert len(found) == 9
    assert await totals(one) == {(): added(records)}


async def test_a_request_without_a_worker_is_not_counted(server: Server, opened: Open) -> None:
    ledger = opened(server)
    ledger.add(record(random.Random(1), attempts=0))
    await settled(ledger)
    assert await totals(ledger) == {}


async def test_days_begin_in_the_time_zone(server: Server, opened: Open) -> None:
    zone = ZoneInfo("Europe/Berlin")
    ledger, chance = opened(server, zone), random.Random(1)
    for text in ("2026-10-24T23:59:59", "2026-10-25T00:00:00", "2026-10-25T23:59:59", "2026-10-26T00:00:00"):
        ledger.add(record(chance, datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()))
    await settled(ledger)
    days = [date(2026, 10, day) for day in (24, 25, 26)]
    found = await totals(ledger, "day", days=days)
    assert {row[0]: sums[0] for row, sums in found.items()} == {"2026-10-24": 1, "2026-10-25": 2, "2026-10-26": 1}


async def test_a_batch_whose_answer_is_lost_counts_once(
    server: Server, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Answers are lost below it.
    ledger, chance, run, lost = opened(server), random.Random(2), Ledger._run, Counter[str]()

    async def deaf(self: Ledger, keys: Any, words: Any) -> None:
        await run(self, keys, words)
        if lost["answers"] < 3:
            lost["answers"] += 1
            raise ConnectionError

    monkeypatch.setattr(Ledger, "_run", deaf)
    records = [record(chance) for _ in range(50)]
    for each in records:
        ledger.add(each)
        await asyncio.sleep(0.0005)
    await settled(ledger)
    assert lost["answers"] == 3
    assert await totals(ledger) == {(): added(records)}


async def test_nothing_is_lost_while_the_server_is_away(tmp_path: Path, opened: Open) -> None:
    told: list[str] = []
    with Server(tmp_path) as mortal:
        ledger, chance = opened(mortal, on_change=lambda state, why: told.append(state)), random.Random(3)
        mortal.kill()
        records = [record(chance) for _ in range(300)]
        for each in records:
            ledger.add(each)
            await asyncio.sleep(0.0002)
        mortal.start()
        await settled(ledger)
        assert await totals(ledger) == {(): added(records)}
    assert told == ["failing", "writing"]


async def test_a_day_is_bounded_and_kept_for_thirteen_months(
    server: Server, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 20)
    ledger, chance = opened(server), random.Random(4)
    records = [record(chance, key=f"jwt:{number}", team="t", model="m") for number in range(500)]
    for number, each in enumerate(records):
        ledger.add(each)
        if number % 7 == 0:
            await asyncio.sleep(0.002)
    await settled(ledger)
    found = await totals(ledger, "key")
    assert len(found) == 21
    assert found[OTHER,][0] == 480
    assert await totals(ledger) == {(): added(records)}
    (key,) = server.command("KEYS", "*spend}:2026*")
    assert 395 * 86_400 < server.command("TTL", key) <= 396 * 86_400


async def test_bytes_of_a_key_and_day(server: Server, opened: Open) -> None:
    """The figure in docs/spend.md."""
    ledger, chance = opened(server), random.Random(5)
    for number in range(1_000):
        ledger.add(record(chance, key=f"application-{number:04}", team="data-science", model="llama-3.3-70b-instruct"))
    await settled(ledger)
    assert server.command("MEMORY", "USAGE", "{test:spend}:2026-11-26", "SAMPLES", 0) < 1_000 * 160


async def test_a_report_in_every_form(server: Server, opened: Open) -> None:
    ledger = opened(server)
    for name, cost in (("red", 1_500_000), ("blue", 2 * 10**9), ("=cmd()", 1)):
        each = record(random.Random(1), team=name, model="m", usage=Usage(10, 5, 2), cost=cost)
        ledger.add(each)
    await settled(ledger)
    report = Report([DAY], ["team"], "EUR", await ledger.report([DAY], ["team"]))
    rows = list(csv.DictReader(io.StringIO(report.csv())))
    assert [(row["team"], row["cost"]) for row in rows] == [
        ("blue", "2"),
        ("red", "0.0015"),
        ("'=cmd()", "0.000000001"),
    ]
    found = json.loads(json.dumps(report.json()))
    assert found["total"] == {
        "requests": 3, "input_tokens": 30, "cached_tokens": 6, "output_tokens": 15, "cost": "2.001500001"
    }  # fmt: skip
    assert found["rows"][0] == {"team": "blue", "requests": 1, "input_tokens": 10, "cached_tokens": 2,
                                "output_tokens": 5, "cost": "2"}  # fmt: skip
    assert report.table()[-1] == ("total", "3", "30", "6", "15", "2.001500001")


def test_the_days_of_a_month() -> None:
    assert days_of("2026-02", DAY)[-1] == date(2026, 2, 28)
    assert days_of(None, DAY) == [date(2026, 11, day) for day in range(1, 27)]
    assert len(days_of("2024-12", DAY)) == 31
    for wrong in ("2026-13", "2026", "november", "2026-12"):
        with pytest.raises(Wrong):
            days_of(wrong, DAY)


@pytest.mark.parametrize("by", ["", "team,", "team,team", "user", "team;model"])
async def test_a_report_by_what_there_is_not(server: Server, opened: Open, by: str) -> None:
    with pytest.raises(Wrong, match="must be by some of day, key, team, model"):
        await make(opened(server), by, None, "EUR", UTC)
