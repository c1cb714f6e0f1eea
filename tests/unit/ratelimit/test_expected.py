"""What requests reserve if they reserve what is expected, on both stores: how it is learnt, and what it may exceed."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Limit
from gateway.config.money import Budget, Spend
from gateway.config.sharing import Reserve
from gateway.core.charged import NOTHING
from gateway.core.estimate import Cost
from gateway.core.money import Rates
from gateway.core.ports import RequestRecord
from gateway.core.usage import Usage
from gateway.ratelimit import SubjectLimiter
from gateway.ratelimit.expected import KNOWN, Expectations, reserved_for_sure
from gateway.ratelimit.model import Limited
from gateway.ratelimit.reservation import Reservation
from gateway.ratelimit.rules import rule_of
from tests.support.harness import Stack
from tests.unit.ratelimit.asking import OPENAI, said, standing
from tests.unit.ratelimit.conftest import Make
from tests.unit.ratelimit.subjects import ANN, tokens

CAP = 64_000
PROMPT = 12_000
AGENT = Cost(PROMPT + CAP, prompt=PROMPT, each=CAP)


def expected(limit: int = 100_000, **more: Any) -> Limit:
    return tokens(limit, reserve="expected", **more)


def end(made: Reservation, output: int, **more: Any) -> None:
    made.settle(
        RequestRecord(id="r", dialect="d", key="ann", model="m", attempts=1, usage=Usage(PROMPT, output), **more)
    )


async def served_in_a_window(limiter: SubjectLimiter, output: int) -> int:
    """The calls that one agent has answered before it is refused; it sends each when the one before it has ended."""
    for count in range(100):
        try:
            end(await limiter.reserve(ANN, AGENT), output)
        except Limited:
            return count
        await limiter.flush()
    raise AssertionError("never refused")


async def test_an_agent_gets_what_its_limit_says_and_not_one_call(make: Make) -> None:
    hard = await make(tokens(100_000, reserve="maximum"))
    assert await served_in_a_window(hard, 300) == 2
    soft = await make(expected(name="other"))
    assert await served_in_a_window(soft, 300) == 7


async def test_the_first_request_of_a_model_reserves_its_maximum(make: Make) -> None:
    limiter = await make(expected())
    made = await limiter.reserve(ANN, AGENT)
    assert made.charged == [PROMPT + CAP]


async def test_only_finished_requests_are_learnt_of(make: Make) -> None:
    limiter = await make(expected(10**9))
    for outcome in ("cancelled", "failed", "refused"):
        end(await limiter.reserve(ANN, AGENT), 5, outcome=outcome)
    assert (await limiter.reserve(ANN, AGENT)).charged == [PROMPT + CAP]
    end(await limiter.reserve(ANN, AGENT), 5)
    assert (await limiter.reserve(ANN, AGENT)).charged[0] < PROMPT + CAP


async def test_a_reply_from_the_cache_teaches_nothing(make: Make) -> None:
    limiter = await make(expected(10**9))
    hit: dict[str, Any] = {"id": "r", "dialect": "d", "key": "ann", "model": "m", "cache": "hit", "usage": NOTHING}
    for _ in range(12):
        (await limiter.reserve(ANN, AGENT)).settle(RequestRecord(**hit))
    assert (await limiter.reserve(ANN, AGENT)).charged == [PROMPT + CAP]


async def test_a_maximum_beside_what_is_expected_keeps_its_promise(make: Make) -> None:
    limiter = await make(expected(10**9), tokens(10**9, name="hard", reserve="maximum"))
    for _ in range(20):
        end(await limiter.reserve(ANN, AGENT), 300)
    soft, hard = (await limiter.reserve(ANN, AGENT)).charged
    assert hard == PROMPT + CAP
    assert soft < hard / 2


async def test_what_exceeds_the_reservation_is_a_debt_that_later_windows_pay(make: Make) -> None:
    limiter = await make(expected(per_s=10.0))
    for _ in range(3):
        end(await limiter.reserve(ANN, AGENT), 300)
        await limiter.reset(ANN)
    made = [await limiter.reserve(ANN, AGENT) for _ in range(3)]
    for one in made:
        end(one, CAP)
    await limiter.flush()
    (state,) = await limiter.inspect(ANN)
    assert state.used == 3 * (PROMPT + CAP)
    with pytest.raises(Limited) as refused:
        await limiter.reserve(ANN, Cost(1))
    assert 20 < (refused.value.fits_s or 0) < 31, "two windows of the limit are owed, and part of a third"


async def test_budgets_reserve_what_is_expected(make: Make) -> None:
    rates = Rates(input=1_000_000_000, output=1_000_000_000)  # 1000 nano for a token
    amount = 100_000 * 1000
    budget = Budget(name="day", amount=1, per="day", scope=("key",), reserve="expected").model_copy(
        update={"amount": amount}
    )
    limiter = await make(rule_of(budget, Spend(currency="EUR")))
    cost = AGENT.priced(rates)
    for _ in range(7):
        end(await limiter.reserve(ANN, cost), 300, cost=rates.cost(PROMPT, 300))
        await limiter.flush()
    with pytest.raises(Limited) as refused:
        await limiter.reserve(ANN, cost)
    assert refused.value.fits_s is None


DEAR = Rates(input=3_000_000_000, output=15_000_000_000)  # 3 and 15 of the currency for a million tokens
CALL = AGENT.priced(DEAR)
LEAST = DEAR.cost(PROMPT, reserved_for_sure(CAP))


def month(amount: int, reserve: Reserve = "expected") -> Limit:
    """A budget of so many nano."""
    budget = Budget(name="month", amount=1, scope=("key",), reserve=reserve)
    return rule_of(budget.model_copy(update={"amount": amount}), Spend(currency="EUR"))


@pytest.mark.parametrize("left", [LEAST, 5 * LEAST, CALL.money - 1, CALL.money])
@pytest.mark.parametrize("held", [0, 1])
async def test_a_gateway_that_knows_nothing_yet_spends_what_is_left(make: Make, left: int, held: int) -> None:
    """After a restart the cap itself is expected, and a refused call would teach nothing: the key would get no answer
    until the next period. held: a gateway that was killed has left so much reserved, which nobody gives back."""
    limiter = await make(month(5 * 10**9))
    limiter.settle(await limiter.reserve(ANN, Cost(1, money=1)), Usage(0, 1), money=5 * 10**9 - left - held)
    lost = [await limiter.reserve(ANN, Cost(1, money=held)) for _ in range(held)]
    made = await limiter.reserve(ANN, CALL)
    assert made.charged == [min(left, CALL.money)]
    with pytest.raises(Limited) as refused:
        await limiter.reserve(ANN, CALL)
    assert refused.value.fits_s == 1.0, "the running call holds what is left"
    end(made, 300, cost=DEAR.cost(PROMPT, 300))
    await limiter.flush()
    (state,) = await limiter.inspect(ANN)
    assert state.used == 5 * 10**9 - left + DEAR.cost(PROMPT, 300), "it is settled by what it was charged"
    assert len(lost) == held


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5])
async def test_a_client_that_leaves_gives_back_what_it_got_of_a_budget(make: Make, turns: int) -> None:
    limiter = await make(month(5 * 10**9))
    spent = 5 * 10**9 - 2 * LEAST
    limiter.settle(await limiter.reserve(ANN, Cost(1, money=1)), Usage(0, 1), money=spent)
    waiting = asyncio.create_task(limiter.reserve(ANN, CALL))
    for _ in range(turns):
        await asyncio.sleep(0)
    if waiting.cancel():
        with pytest.raises(asyncio.CancelledError):
            await waiting
    else:
        limiter.settle(await waiting, None, "unserved")
    await limiter.flush()
    (state,) = await limiter.inspect(ANN)
    assert state.used == spent


async def test_less_than_the_least_reservation_is_refused_for_good(make: Make) -> None:
    limiter = await make(month(10 * LEAST))
    limiter.settle(await limiter.reserve(ANN, Cost(1, money=1)), Usage(0, 1), money=9 * LEAST + 1)
    with pytest.raises(Limited) as refused:
        await limiter.reserve(ANN, CALL)
    assert refused.value.fits_s is None


async def test_a_mark_states_what_was_spent_without_what_running_requests_hold(make: Make) -> None:
    marks = []
    rule = month(100).model_copy(update={"levels": (50, 80), "warn_at": (0.5, 0.8)})
    limiter = await make(rule, on_budget=lambda rule, subject, share, used: marks.append((share, used)))
    held = [await limiter.reserve(ANN, Cost(1, money=30))]
    limiter.settle(await limiter.reserve(ANN, Cost(1, money=20)), Usage(0, 1), money=55)
    await limiter.flush()
    held.append(await limiter.reserve(ANN, Cost(1, money=5)))
    limiter.settle(held.pop(0), Usage(0, 1), money=30)
    with pytest.raises(Limited):
        await limiter.reserve(ANN, Cost(1, money=20))
    assert marks == [(0.5, 55), (1.0, 85)]
    assert len(held) == 1


async def test_a_maximum_is_reserved_whole_or_refused(make: Make) -> None:
    limiter = await make(month(5 * 10**9, "maximum"))
    limiter.settle(await limiter.reserve(ANN, Cost(1, money=1)), Usage(0, 1), money=5 * 10**9 - CALL.money + 1)
    with pytest.raises(Limited) as refused:
        await limiter.reserve(ANN, CALL)
    assert refused.value.fits_s is None


@pytest.mark.parametrize("reserve", ["expected", "maximum"])
async def test_a_day_begins_with_the_debt_of_the_day_before(
    make: Make, monkeypatch: pytest.MonkeyPatch, reserve: Reserve
) -> None:
    """As windows do. A budget that reserves the maximum owes nothing, as its amount bounds what is reserved."""
    now = datetime(2026, 11, 26, 9, tzinfo=UTC).timestamp()
    for module in ("kinds", "limiter", "model"):
        monkeypatch.setattr(f"gateway.ratelimit.{module}.time", lambda: now)
    budget = Budget(name="day", amount=1, per="day", scope=("key",), reserve=reserve)
    limiter = await make(rule_of(budget.model_copy(update={"amount": 100}), Spend(currency="EUR")))
    used = []
    for number in range(5):
        limiter._turn()  # its timer's, which cannot see that this clock was set
        if not number:
            limiter.settle(await limiter.reserve(ANN, Cost(5, money=10)), Usage(0, 9), money=250)
        elif number == 2:
            with pytest.raises(Limited) if reserve == "expected" else contextlib.nullcontext():
                limiter.settle(await limiter.reserve(ANN, Cost(5, money=60)), Usage(0, 0))
        else:
            with pytest.raises(Limited) if reserve == "expected" and number == 1 else contextlib.nullcontext():
                limiter.settle(await limiter.reserve(ANN, Cost(5, money=10)), Usage(0, 0))
        await limiter.flush()
        used += [state.used for state in await limiter.inspect(ANN)]
        now += 86_400
    assert used == ([250, 150, 50, 0, 0] if reserve == "expected" else [250, 0, 0, 0, 0])


seconds = st.lists(st.integers(0, CAP), max_size=60)


@given(st.integers(1, CAP), seconds, seconds, st.integers(1, 4))
def test_the_expectation_stays_between_its_bounds(cap: int, own: list[int], others: list[int], choices: int) -> None:
    found = Expectations()
    cost = Cost(10 + choices * cap, prompt=10, choices=choices, each=cap)
    for who, outputs in (("ann", own), ("bob", others)):
        for output in outputs:
            found.learn(cost, who, "m", min(output, cap) * choices)
    reserved = found.of(cost, "ann", "m").tokens - 10
    assert choices * reserved_for_sure(cap) <= reserved <= choices * cap
    if not own and not others:
        assert reserved == choices * cap


def test_a_key_begins_with_what_its_model_has_shown() -> None:
    found = Expectations()
    for _ in range(KNOWN):
        found.learn(AGENT, "bob", "m", 300)
    assert found.of(AGENT, "ann", "m") == found.of(AGENT, "bob", "m")
    assert found.of(AGENT, "ann", "other") == AGENT
    for _ in range(KNOWN):
        found.learn(AGENT, "ann", "m", 30_000)
    assert found.of(AGENT, "ann", "m").tokens > found.of(AGENT, "bob", "m").tokens + 20_000


def test_short_calls_with_a_small_cap_say_nothing_about_the_others() -> None:
    found = Expectations()
    for _ in range(50):
        found.learn(Cost(30, prompt=10, each=20), "ann", "m", 3)
    assert found.of(AGENT, "ann", "m") == AGENT


def test_a_changed_habit_is_learnt() -> None:
    found = Expectations()
    for output in [100] * 200 + [20_000] * 60:
        found.learn(AGENT, "ann", "m", output)
    assert found.of(AGENT, "ann", "m").tokens > PROMPT + 20_000


def test_a_flood_of_keys_is_bounded() -> None:
    found = Expectations()
    for number in range(40_000):
        found.learn(AGENT, str(number), "m", 3)
    assert len(found) <= 16_384
    assert found.of(AGENT, "new", "m").tokens < PROMPT + CAP, "what all showed is kept"


@pytest.mark.parametrize("stream", [False, True])
def test_a_gateway_learns_of_the_replies_that_it_relays(stream: bool) -> None:
    """10,000 tokens a minute on a model of 8,000, without a cap: the first request takes nearly all, others do not."""
    limits = [{"name": "tpm", "kind": "tokens", "limit": 10_000}]
    config = {"limits": limits, "models": {"m": {"max_context": 8000}}}
    with Stack(({"itl_ms": 0, "max_model_len": 8000},), config) as stack:
        for _ in range(12):
            asked = {"model": "m", "stream": stream, **said(text="a b c d e f g h")}
            reply = httpx.post(stack.url + OPENAI, json=asked)
            assert reply.status_code == 200, reply.text
        assert standing(stack, key="anonymous")["tpm"] < 1000
        body = {"stream": True, **said(text="a b c", fault="stall@1")}
        with httpx.stream("POST", stack.url + OPENAI, json={"model": "m", **body}) as held:
            blocks = held.iter_bytes()  # which would close the reply if it were forgotten
            next(blocks)
            assert 700 < standing(stack, key="anonymous")["tpm"] < 3000
