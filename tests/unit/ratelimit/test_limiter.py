"""What the limiter promises, on both stores."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Sequence

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.estimate import Cost
from gateway.core.ports.account import RequestRecord
from gateway.core.usage import Usage
from gateway.ratelimit import Subject, SubjectLimiter
from gateway.ratelimit.memory import MemoryStore
from gateway.ratelimit.model import Limited, Plan, tightest
from gateway.ratelimit.reservation import Reservation
from gateway.wire.openai.replies.refusals import error_headers
from tests.unit.ratelimit.conftest import Make
from tests.unit.ratelimit.subjects import ANN, requests, slots, tokens

BOB = Subject(key="bob", team="red", model="m", address="2001:db8::1")


async def left(limiter: SubjectLimiter, subject: Subject = ANN) -> dict[str, int]:
    await limiter.flush()
    return {state.rule.name: state.remaining for state in (await limiter.inspect(subject))}


async def refusal(limiter: SubjectLimiter, subject: Subject = ANN, cost: Cost = Cost()) -> Limited:  # noqa: B008
    with pytest.raises(Limited) as caught:
        await limiter.reserve(subject, cost)
    return caught.value


def told(error: GatewayError) -> int:
    """The least whole seconds that are not too short."""
    return math.ceil(error.retry_after or 0)


async def test_the_sentence_and_the_header_say_the_same_wait(make: Make) -> None:
    limiter = await make(requests(1, per_s=30.0))
    await limiter.reserve(ANN)
    error = await refusal(limiter)
    assert dict(error_headers(error, 429))[b"retry-after"] == b"%d" % told(error)
    assert error.message.endswith(f"; try again in {told(error)} s")


async def test_a_refusal_says_which_limit_and_when(make: Make) -> None:
    limiter = await make(requests(2), tokens(1000))
    for _ in range(2):
        lease = await limiter.reserve(ANN, Cost(10))
    state = tightest(lease.states, "requests")
    assert state is not None
    assert (state.limit, state.remaining) == (2, 0)
    assert tightest(lease.states, "concurrency") is None
    assert 60 <= state.reset_s <= 61.5
    error = await refusal(limiter, cost=Cost(10))
    assert (error.kind, error.code) == (Kind.LIMITED, "rpm")
    assert error.retry_after == error.fits_s
    assert 59 < (error.retry_after or 0) < 61.5
    assert error.message == f"limit 'rpm' reached: 2 requests a minute, 0 left; try again in {told(error)} s"
    assert error.violated is not None
    assert limiter.decisions.of("refused") == {"rpm": 1}


async def test_all_limits_or_none(make: Make) -> None:
    limiter = await make(requests(5), tokens(100), slots(9))
    lease = await limiter.reserve(ANN, Cost(90))
    for _ in range(20):
        error = await refusal(limiter, cost=Cost(20))
        assert error.code == "tpm"
    assert await left(limiter) == {"rpm": 4, "tpm": 10, "slots": 8}
    limiter.settle(lease, Usage(0, 90))


async def test_keeps_what_a_held_lease_holds(make: Make) -> None:
    limiter = await make(slots(2))
    held = [await limiter.reserve(ANN) for _ in range(2)]
    assert limiter.in_flight == 2
    error = await refusal(limiter)
    assert (error.code, error.retry_after) == ("slots", 1.0)
    assert "2 requests in flight" in error.message
    for lease in held:
        limiter.settle(lease, None)
        limiter.settle(lease, None)
    assert await left(limiter) == {"slots": 2}
    assert limiter.in_flight == 0


async def test_the_longest_wait_is_the_one_to_obey(make: Make) -> None:
    limiter = await make(requests(1, name="second", per_s=1.0), requests(1, name="hour", per_s=3600.0))
    await limiter.reserve(ANN)
    assert (await refusal(limiter)).code == "hour"


async def test_scopes_count_apart_and_together(make: Make) -> None:
    limiter = await make(
        requests(3, name="key"),
        requests(4, name="team", scope=("team",)),
        requests(9, name="all", scope=()),
        requests(9, name="pair", scope=("address", "model")),
    )
    for _ in range(3):
        await limiter.reserve(ANN)
    assert (await refusal(limiter)).code == "key"
    await limiter.reserve(BOB)
    assert (await refusal(limiter, BOB)).code == "team"
    assert await left(limiter, BOB) == {"key": 2, "team": 0, "all": 5, "pair": 8}
    assert await left(limiter, Subject()) == {"all": 5}  # what is unknown is not counted


async def test_an_exception_stands_before_its_default(make: Make) -> None:
    limiter = await make(
        requests(1, match={"key": ["ann"]}), requests(3), requests(2, name="gpt", match={"model": ["x"]})
    )
    await limiter.reserve(ANN)
    assert (await refusal(limiter)).violated.limit == 1  # type: ignore[union-attr]
    assert await left(limiter, BOB) == {"rpm": 3}


async def test_tokens_are_settled_to_what_was_used(make: Make) -> None:
    limiter = await make(tokens(1000), requests(10))
    lease = await limiter.reserve(ANN, Cost(700))
    assert (await refusal(limiter, cost=Cost(400))).code == "tpm"
    limiter.settle(lease, Usage(0, 100))
    assert await left(limiter) == {"tpm": 900, "rpm": 9}
    limiter.settle(await limiter.reserve(ANN, Cost(300)), Usage(0, 450))  # more than was reserved
    assert await left(limiter) == {"tpm": 450, "rpm": 8}
    limiter.settle(await limiter.reserve(ANN, Cost(300)), None, "failed")  # unknown keeps the reservation
    assert await left(limiter) == {"tpm": 150, "rpm": 7}
    limiter.settle(await limiter.reserve(ANN, Cost(150)), Usage(0, 0), "cancelled")
    assert await left(limiter) == {"tpm": 150, "rpm": 6}
    limiter.settle(await limiter.reserve(ANN, Cost(150)), None, "unserved")  # as if it had never come
    assert await left(limiter) == {"tpm": 150, "rpm": 6}


async def test_what_was_charged_before_the_body_was_read_stays_charged(make: Make) -> None:
    """Reading took the time that the limit bounds, whatever model answers in the end."""
    limiter = await make(requests(5))
    early = await limiter.reserve(Subject(key="ann"), early=True)
    early.withdraw()
    made = await limiter.reserve(ANN, Cost(1), early)
    made.withdraw()
    assert await left(limiter) == {"rpm": 4}


async def test_a_limit_below_the_cap_admits_one_call(make: Make) -> None:
    limiter = await make(tokens(100))
    lease = await limiter.reserve(ANN, Cost(5000))
    assert (await refusal(limiter, cost=Cost(1))).retry_after is not None
    limiter.settle(lease, Usage(0, 40))
    assert await left(limiter) == {"tpm": 60}


async def test_what_can_never_fit_is_refused_for_good(make: Make) -> None:
    limiter = await make(tokens(100), requests(5), slots(5))
    error = await refusal(limiter, cost=Cost(5000, least=101))
    assert (error.code, error.retry_after) == ("tpm", None)
    assert "at least 101 tokens" in error.message
    assert await left(limiter) == {"tpm": 100, "rpm": 5, "slots": 5}


async def test_outputs_that_can_never_fit_together_are_refused_by_their_field(make: Make) -> None:
    limiter = await make(tokens(100), tokens(5, name="hidden", shadow=True), requests(5))
    error = await refusal(limiter, cost=Cost(5000, prompt=3, choices=11, each=10, field="n"))
    assert (error.code, error.param, error.retry_after) == ("tpm", "n", None)
    assert error.message.startswith("'n' asks for 11 outputs of up to 10 tokens each, together more than the limit")
    assert await left(limiter) == {"tpm": 100, "hidden": 5, "rpm": 5}
    await limiter.reserve(ANN, Cost(103, prompt=3, choices=10, each=10, field="n"))
    assert (await left(limiter))["tpm"] == 0


async def test_more_than_the_limit_is_paid_by_later_windows(make: Make) -> None:
    """Nothing is admitted before, by any replica, and the wait says when."""
    limiter = await make(tokens(100, per_s=10.0))
    lease = await limiter.reserve(ANN, Cost(5000))
    limiter.settle(lease, Usage(0, 100 * 7))
    await limiter.flush()
    error = await refusal(limiter, cost=Cost(1))
    assert error.retry_after is not None
    assert 70 <= error.retry_after <= 72
    question = await limiter.reserve(ANN)
    limiter.settle(question, Usage(0, 0))
    assert (await limiter.inspect(ANN))[0].used == 700


async def test_what_nobody_counted_is_charged_at_least_as_reserved(make: Make) -> None:
    limiter = await make(tokens(100, name="small"), tokens(1000, name="large"))
    lease = await limiter.reserve(ANN, Cost(600))
    limiter.settle(lease, Usage(0, 400), "cancelled", at_least=True)
    await limiter.flush()
    assert [state.used for state in (await limiter.inspect(ANN))] == [400, 600]


@pytest.mark.parametrize(("seconds", "charged"), [(0.0, 100), (0.25, 260), (9.0, 600)])
async def test_what_nobody_counted_is_charged_by_its_time_with_workers(
    make: Make, seconds: float, charged: int
) -> None:
    """At least what was reserved, at most all that it may use."""
    limiter = await make(tokens(100))
    lease = await limiter.reserve(ANN, Cost(600, prompt=10))
    record = RequestRecord(id="id", dialect="openai", outcome="cancelled", attempts=1)
    record.queue_ms, record.upstream_ms = 50_000.0, 1000 * seconds
    lease.settle(record)
    await limiter.flush()
    assert (await limiter.inspect(ANN))[0].used == charged


async def test_what_a_request_uses_for_certain_is_charged_at_least(make: Make) -> None:
    limiter = await make(tokens(100), tokens(10, name="hidden", shadow=True))
    await limiter.reserve(ANN, Cost(1, least=60))  # a shadow refuses nothing, not for good either
    assert (await left(limiter))["tpm"] == 40


async def test_decisions_are_counted_by_rule_and_outcome(make: Make) -> None:
    limiter = await make(requests(3), tokens(100), requests(1, name="hidden", shadow=True))
    for _ in range(3):
        await limiter.reserve(ANN, Cost(1))
    assert (await refusal(limiter)).code == "rpm"
    assert (await refusal(limiter, cost=Cost(5000, least=101))).code == "tpm"
    assert limiter.decisions.counts == {
        ("rpm", "strict", "admitted"): 3,
        ("tpm", "strict", "admitted"): 3,
        ("hidden", "strict", "admitted"): 1,
        ("hidden", "strict", "shadowed"): 2,
        ("rpm", "strict", "refused"): 1,
        ("tpm", "strict", "refused"): 1,
    }


async def test_a_shadow_rule_counts_and_refuses_nothing(make: Make) -> None:
    limiter = await make(requests(2, shadow=True), tokens(100, name="hidden", shadow=True), slots(9))
    leases = [await limiter.reserve(ANN, Cost(60)) for _ in range(4)]
    assert limiter.decisions.of("shadowed") == {"rpm": 2, "hidden": 3}
    assert not limiter.decisions.of("refused")
    assert tightest(leases[0].states, "requests") is None  # no header tells of it
    for lease in leases:
        limiter.settle(lease, Usage(0, 10))
    assert await left(limiter) == {"rpm": 0, "hidden": 90, "slots": 9}


async def test_reset_forgets(make: Make) -> None:
    limiter = await make(requests(2), tokens(100), slots(1))
    lease = await limiter.reserve(ANN, Cost(100))
    await limiter.reset(ANN)
    assert await left(limiter) == {"rpm": 2, "tpm": 100, "slots": 1}
    other = await limiter.reserve(ANN, Cost(80))
    limiter.settle(lease, Usage(0, 0))  # its charge is gone, so it takes nothing from the other's
    assert await left(limiter) == {"rpm": 1, "tpm": 20, "slots": 0}
    limiter.settle(other, Usage(0, 80))
    assert await left(limiter) == {"rpm": 1, "tpm": 20, "slots": 1}


async def test_no_rules_no_store(make: Make) -> None:
    limiter = await make()
    lease = await limiter.reserve(ANN, Cost(5))
    assert (lease.states, limiter.decisions.of("shadowed")) == ((), {})
    limiter.settle(lease, Usage(0, 5))
    assert (await limiter.inspect(ANN)) == ()
    await limiter.reset(ANN)


async def test_rules_can_be_exchanged(make: Make) -> None:
    limiter = await make(requests(5))
    lease = await limiter.reserve(ANN)
    limiter.use([requests(2)])
    await limiter.reserve(ANN)
    assert (await refusal(limiter)).code == "rpm"  # what was counted stays counted
    limiter.settle(lease, None, "unserved")
    assert await left(limiter) == {"rpm": 1}


async def test_many_at_once_admit_exactly_the_limit(make: Make) -> None:
    limiter = await make(requests(50), slots(10_000))
    results = await asyncio.gather(*(limiter.reserve(ANN) for _ in range(300)), return_exceptions=True)
    assert sum(isinstance(one, Reservation) for one in results) == 50
    assert limiter.decisions.of("refused") == {"rpm": 250}


async def test_a_lost_lease_is_not_renewed_and_a_held_one_is(make: Make) -> None:
    limiter = await make(slots(2), slot_ttl=0.15)
    held = await limiter.reserve(ANN)
    lost: Reservation | None = await limiter.reserve(ANN)
    assert await left(limiter) == {"slots": 0}
    del lost
    gc.collect()
    await until(limiter, {"slots": 1})
    await asyncio.sleep(0.2)
    await until(limiter, {"slots": 1})  # a loop that was late renews it at once
    limiter.settle(held, None)
    assert await left(limiter) == {"slots": 2}


async def test_many_leases_are_renewed_in_parts_and_none_that_ended_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Admissions wait behind what is sent at once; a slot that was given back must not be taken again."""
    monkeypatch.setattr("gateway.ratelimit.limiter._RENEWED", 2)
    parts: list[list[str]] = []
    whole = asyncio.Event()

    class Store(MemoryStore):
        def renew(self, leases: Sequence[tuple[str, Plan]]) -> None:
            super().renew(leases)
            parts.append([lease for lease, _ in leases])
            if len(parts) == 1:
                limiter.settle(held[3], None)
            elif len(parts) == 3:
                whole.set()

    limiter = SubjectLimiter([slots(10)], Store())
    held = [await limiter.reserve(ANN) for _ in range(5)]
    await limiter.start()
    await asyncio.wait_for(whole.wait(), 30)
    await limiter.close()
    first, second, third, _, fifth = (lease.id for lease in held)
    assert parts == [[first, second], [third], [fifth]]
    assert await left(limiter) == {"slots": 6}


async def until(limiter: SubjectLimiter, want: dict[str, int]) -> None:
    async with asyncio.timeout(30):
        while await left(limiter) != want:  # noqa: ASYNC110 - the server's clock is what is waited for
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5])
async def test_a_client_that_leaves_while_waiting_costs_nothing(make: Make, turns: int) -> None:
    limiter = await make(requests(5), tokens(100), slots(5))
    waiting = asyncio.create_task(limiter.reserve(ANN, Cost(60)))
    for _ in range(turns):
        await asyncio.sleep(0)
    if waiting.cancel():
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await limiter.flush()
        assert await left(limiter) == {"rpm": 5, "tpm": 100, "slots": 5}


async def test_random_traffic_returns_to_zero(make: Make) -> None:
    limiter = await make(tokens(10**6), slots(50), requests(10**6))
    used = 0

    async def client(number: int) -> None:
        nonlocal used
        for turn in range(20):
            try:
                async with asyncio.timeout(0.0005 if (number + turn) % 5 == 0 else 5):
                    lease = await limiter.reserve(ANN, Cost(100))
            except (TimeoutError, Limited):
                continue
            await asyncio.sleep(0)
            limiter.settle(lease, Usage(0, number), ("finished", "cancelled", "failed")[turn % 3])
            used += number

    await asyncio.gather(*(client(number) for number in range(60)))
    now = await left(limiter)
    assert now["slots"] == 50
    assert now["tpm"] == 10**6 - used
    assert limiter.in_flight == 0
