"""Budgets over several gateways and one Redis: never above by more than was reserved, and not forgotten by it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from time import time

import pytest
import redis

from gateway.auth.stored import OwnLimits
from gateway.config import Config, Limit
from gateway.config.money import Budget, Spend
from gateway.config.sharing import Limiter
from gateway.core.errors import Kind
from gateway.core.estimate import Cost
from gateway.core.ports import RequestRecord
from gateway.core.written import Moment
from gateway.ratelimit import RebuiltBudgets, StoreDown, Subject, SubjectLimiter
from gateway.ratelimit.model import Limited
from gateway.ratelimit.redis.store import RedisStore
from gateway.ratelimit.rules import key_rules, rule_of
from tests.support.redis_server import Server
from tests.unit.ratelimit.conftest import Make, reach

ANN = Subject(key="ann", team="sales", model="m")
SPEND = Spend(currency="EUR")
BUDGETS = tuple(
    Budget.model_validate({"amount": "0.000001", "scope": ["team"], **more})
    for more in ({"name": "b"}, {"name": "days", "per": "day"})
)


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


@pytest.mark.parametrize("version", ["new", "old"])
async def test_what_a_killed_gateway_reserved_is_spent_after_an_hour(
    server: Server, started: Make, version: str
) -> None:
    told: list[float] = []
    killed, other = await gateways(
        started, server, budget(100), 2, on_budget=lambda rule, subject, at, used: told.append(at)
    )
    made = await killed.reserve(ANN, Cost(money=100))
    counter = redis.Redis(port=server.port)
    (key,) = [one for one in counter.scan_iter(_type="hash") if counter.hexists(one, "a")]
    if version == "old":  # one from before the field
        counter.hdel(key, "a")
    with pytest.raises(Limited) as refused:
        await other.reserve(ANN, Cost(money=1))
    assert (refused.value.retry_after, told) == (1, [])
    counter.hincrby(key, "a", -3_601_000)
    with pytest.raises(Limited) as refused:
        await other.reserve(ANN, Cost(money=1))
    assert (refused.value.kind, refused.value.retry_after, told) == (Kind.QUOTA, None, [1.0])
    killed.settle(made, None, money=30)  # it ran on
    await killed.flush()
    await spend(other, 70, 70)
    assert await used(other) == 100


async def test_a_request_from_before_a_flush_gives_nothing_back_to_the_new_counter(
    server: Server, started: Make
) -> None:
    one, other = await gateways(started, server, budget(1_000), 2)
    made = await one.reserve(ANN, Cost(money=600))
    await asyncio.sleep(0.002)  # a counter is known by its birth, in milliseconds
    server.command("FLUSHALL")
    await spend(other, 100, 100)
    one.settle(made, None, money=10)
    await one.flush()
    assert await used(other) == 100


def cost_of(when: float, cost: int, key: str = "ann", team: str | None = "sales") -> RequestRecord:
    return RequestRecord(
        id="id", dialect="openai", model="m", key=key, team=team, attempts=1, cost=cost, time=Moment(when)
    )


async def test_records_restore_the_budgets_of_an_emptied_server(server: Server, started: Make) -> None:
    """What gateways charge meanwhile stays, a second time changes nothing, and what is of another period, of another
    caller, or unknown does not count."""
    stored = OwnLimits(budget="0.000002")
    rules = [*(rule_of(each, Spend(currency="EUR")) for each in BUDGETS), *key_rules("ann", stored, SPEND, "expected")]
    limiter = await started(rules, RedisStore(server.settings))
    config = Config.model_construct(
        redis=server.settings, limiter=Limiter(), limits=(), budgets=BUDGETS, keys={}, keys_store="redis", spend=SPEND
    )
    assert {rule.name for rule in rules} == {"b", "days", "budget"}
    await spend(limiter, 50, 50)
    await limiter.flush()
    now = time()
    for _ in range(2):
        found = RebuiltBudgets(config, [("ann", stored)])
        for record in (cost_of(now, 300), cost_of(now, 200, "bob"), cost_of(now, 9, team=None)):
            found.add(record)
        found.add(cost_of(now - 40 * 86_400, 5_000))
        found.add(
            RequestRecord(id="id", dialect="openai", model="m", key="ann", team="sales", attempts=1, time=Moment(now))
        )
        await found.send()
        states = {state.rule.name: state.used for state in await limiter.inspect(ANN)}
        assert states == {"b": 500, "days": 500, "budget": 309}
    await spend(limiter, 50, 50)
    await limiter.flush()
    with pytest.raises(Limited) as refused:
        await limiter.reserve(ANN, Cost(money=451))
    assert refused.value.kind is Kind.QUOTA


async def test_a_server_that_is_away_is_named(mortal: Server) -> None:
    mortal.kill()
    config = Config.model_construct(
        redis=mortal.settings, limiter=Limiter(), limits=(), budgets=BUDGETS, keys={}, keys_store=None, spend=SPEND
    )
    found = RebuiltBudgets(config)
    found.add(cost_of(time(), 300))
    with pytest.raises(StoreDown, match=r"127\.0\.0\.1"):
        await found.send()


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
    assert await used(limiter) == 400, "the server has lost what was spent before"


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
