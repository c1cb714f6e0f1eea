"""The page of spending: it adds up to the reports, shows what moved, and who is near a budget."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from time import time
from typing import Any

import httpx
import pytest

from gateway.config.money import Spend
from gateway.core.ports import RequestRecord
from gateway.core.written import Moment
from gateway.features.console import spend as module
from gateway.features.console.guard import KEY_HOLDER
from gateway.features.console.spend import Overview
from gateway.observe.ledger import Ledger
from gateway.redis import connect
from tests.support.harness import Stack, until
from tests.support.redis_server import Server
from tests.unit.app.asking import CHAT, key
from tests.unit.features.console.opened import ENVIRON, SHOWN

SPEND = Spend(currency="EUR", daily=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("valkey")) as running:
        yield running


def config(server: Server, **more: Any) -> dict[str, Any]:
    return {
        "models": {"m": {"price": {"request": 1}}},
        "spend": {"currency": "EUR", "daily": True},
        "redis": {"addresses": [server.address], "timeout_s": 5},
        "metrics": {"listen": "127.0.0.1:9090"},
        "console": {"enabled": True, "key_env": "CONSOLE_KEY"},
        **more,
    }


def ask(stack: Stack, secret: str, times: int, **more: Any) -> None:
    headers = {"authorization": f"Bearer {secret}"}
    for _ in range(times):
        httpx.post(stack.url + "/v1/chat/completions", json={**CHAT, **more}, headers=headers, timeout=30)


def page(stack: Stack, query: str = "") -> dict[str, Any]:
    reply = httpx.get(f"{stack.admin_url}/console/spend.json{query}", headers=SHOWN, timeout=30)
    assert reply.status_code == 200, reply.text
    return reply.json()  # type: ignore[no-any-return]


def budgets_of(stack: Stack, **whose: str) -> set[tuple[Any, ...]]:
    reply = httpx.get(f"{stack.admin_url}/console/budgets.json", params=whose, headers=SHOWN, timeout=30)
    return {tuple(row[name] for name in ("budget", "used", "left", "amount", "share")) for row in reply.json()}


def test_it_adds_up_and_names_who_is_near_a_budget(server: Server) -> None:
    red, one = key("one", team="red", limits={"budget": 20})
    blue, two = key("two", team="blue")
    budgets = [
        {"name": "team", "amount": 10, "scope": ["team"]},
        {"name": "each", "amount": 4, "scope": ["end_user"], "per": "day"},
        {"name": "far", "amount": 1000, "scope": []},
    ]
    more = {"keys": {**one, **two}, "budgets": budgets, "end_users": {"body": True}}
    with Stack(config=config(server, **more), environ=ENVIRON) as stack:
        ask(stack, red, 7, user="ann")  # of which the day's budget of 4 refuses three
        ask(stack, red, 2)
        ask(stack, blue, 1, user="bob")
        until(lambda: page(stack)["total"]["requests"] == 7)
        found = page(stack)
        report = httpx.get(f"{stack.admin_url}/spend.json?by=team", headers=SHOWN, timeout=30).json()
        assert found["total"] == report["total"]
        for dimension, names in {"team": ["red", "blue"], "key": ["one", "two"], "model": ["m"]}.items():
            table = found["by"][dimension]
            assert ([row["name"] for row in table["rows"]], table["others"]) == (names, 0)
            assert sum(float(row["cost"]) for row in table["rows"]) == 7
        assert [row["name"] for row in found["by"]["day"]["rows"]] == [found["to"]]
        near = {(row["budget"], *row["of"].values()): (row["used"], row["share"]) for row in found["budgets"]}
        assert near == {("each", "ann"): ("4", 1.0), ("team", "red"): ("6", 0.6)}
        assert next(iter(near)) == ("each", "ann"), "the most spent first"
        moved = {(row["dimension"], row["name"]): (row["before"], row["now"]) for row in found["movers"]}
        assert moved["team", "red"] == ("0", "6")
        assert budgets_of(stack, key="one", team="red") == {
            ("budget", "6", "14", "20", 0.3),
            ("team", "6", "4", "10", 0.6),
            ("far", "7", "993", "1000", 0.007),
        }
        assert budgets_of(stack, key="nobody") == {("far", "7", "993", "1000", 0.007)}


async def test_movers_compare_two_weeks_also_over_a_month(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger("moved", UTC, connect(server.settings))
    today = datetime.now(UTC).date()

    def spent(key: str, days_ago: int, cost: int) -> None:
        moment = datetime(today.year, today.month, today.day, 12, tzinfo=UTC) - timedelta(days=days_ago)
        record = RequestRecord(
            id="id", dialect="openai", model="m", key=key, attempts=1, cost=cost, time=Moment(moment.timestamp())
        )
        ledger.add(record)

    for days, cost in ((0, 10**9), (6, 10**9), (7, 5 * 10**9), (13, 10**9), (14, 10**12)):
        spent("falls", days, cost)
    spent("still", 1, 10**9)
    spent("still", 8, 10**9)
    spent("rises", 3, 3 * 10**9)
    await ledger.close()
    ledger = Ledger("moved", UTC, connect(server.settings))
    found = await Overview(None, SPEND, KEY_HOLDER).read(ledger, None)
    moved = {row["name"]: (row["before"], row["now"]) for row in found["movers"] if row["dimension"] == "key"}
    assert moved == {"falls": ("6", "2"), "rises": ("0", "3")}
    monkeypatch.setattr(module, "_MOST_ROWS", 1)
    found = await Overview(None, SPEND, KEY_HOLDER).read(ledger, None)
    assert (len(found["by"]["key"]["rows"]), found["by"]["key"]["others"] > 0) == (1, True)
    await ledger.close()


async def test_rows_in_memory_are_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 50)
    ledger = Ledger("many", UTC, connect(server.settings))
    for number in range(500):
        ledger.add(
            RequestRecord(
                id="id", dialect="openai", model="m", key=f"k{number}", attempts=1, cost=number, time=Moment(time())
            )
        )
    await ledger.close()
    ledger = Ledger("many", UTC, connect(server.settings))
    overview = Overview(None, SPEND, KEY_HOLDER)
    await overview.read(ledger, None)
    assert ("k499", "", "m") in overview._callers  # its memory is bounded
    assert len(overview._callers) <= 100  # its memory is bounded
    await ledger.close()


@pytest.mark.parametrize("query", ["?month=soon", "?month=2999-01"])
def test_a_wrong_month_is_refused(server: Server, query: str) -> None:
    _, one = key("one")
    with Stack(config=config(server, keys=one), environ=ENVIRON) as stack:
        assert httpx.get(f"{stack.admin_url}/console/spend.json{query}", headers=SHOWN).status_code == 400
        assert httpx.get(f"{stack.admin_url}/console/spend.json").status_code == 401
        past = (date.today() - timedelta(days=62)).strftime("%Y-%m")
        assert page(stack, f"?month={past}")["total"]["requests"] == 0


@pytest.mark.feature("admin")
@pytest.mark.feature("batches")
def test_views_are_those_that_there_are(server: Server, tmp_path: Path) -> None:
    _, one = key("one")
    _, root = key("root")
    more = {"keys": one, "keys_store": "redis", "admins": root}
    batched = {**more, "batches": {"directory": str(tmp_path)}}
    for extra, keyed, batches in (({}, False, False), (more, True, False), (batched, True, True)):
        views = {"spend": True, "keys": keyed, "batches": batches, "gateways": True}
        expected = {**views, "currency": "EUR", "who": None}
        with Stack(config=config(server, **{"keys": one, **extra}), environ=ENVIRON) as stack:
            assert httpx.get(f"{stack.admin_url}/console/views.json", headers=SHOWN).json() == expected
