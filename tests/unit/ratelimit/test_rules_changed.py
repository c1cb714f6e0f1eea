"""Rules that are exchanged while requests are under way, closed ones, and waits."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import pytest

from gateway.config import Limit, Redis
from gateway.core.estimate import Cost
from gateway.core.usage import Usage
from gateway.light_task import Promise
from gateway.ratelimit import Subject, SubjectLimiter
from gateway.ratelimit.memory import MemoryStore
from gateway.ratelimit.model import Limited, Plan, Verdict
from gateway.ratelimit.redis.store import RedisStore
from gateway.ratelimit.store import StoreDown
from tests.support.harness import soon
from tests.unit.ratelimit.conftest import Make
from tests.unit.ratelimit.subjects import ANN, requests, slots, tokens


async def test_closed_rules_do_not_matter_while_the_store_is_up(make: Make) -> None:
    limiter = await make(requests(1, on_redis_failure="closed"))
    assert limiter.state == "strict"
    assert (await limiter.reserve(ANN)).strict


@pytest.mark.parametrize(
    "new",
    [
        {"per_s": 3600.0},
        {"per_s": 30.0},
        {"name": "other"},
        {"scope": ("team",)},
        {"scope": ("key", "model")},
        {"scope": ()},
        {"per_s": 120.0, "name": "other", "scope": ("model",)},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["requests", "tokens", "concurrency"])
async def test_a_reload_admits_nobody_twice(make: Make, kind: Any, new: dict[str, Any]) -> None:
    old = Limit(name="limit", kind=kind, limit=5, scope=("key",))
    limiter = await make(old)
    held = [await limiter.reserve(ANN, Cost(1)) for _ in range(3)]
    limiter.use([Limit(**{"name": "limit", "kind": kind, "limit": 5, "scope": ("key",), **new})])
    held += [await limiter.reserve(ANN, Cost(1)) for _ in range(2)]
    with pytest.raises(Limited):
        await limiter.reserve(ANN, Cost(1))
    limiter.use([Limit(name="limit", kind=kind, limit=5, scope=("address",)), old])  # and once more
    with pytest.raises(Limited):
        await limiter.reserve(ANN, Cost(1))
    for lease in held:
        limiter.settle(lease, Usage(0, 1), "unserved")
    await limiter.flush()
    await limiter.reserve(ANN, Cost(1))


async def test_a_rule_that_is_removed_or_made_larger_holds_nobody(make: Make) -> None:
    limiter = await make(requests(2), tokens(5))
    for _ in range(2):
        await limiter.reserve(ANN, Cost(1))
    limiter.use([requests(3), tokens(5)])
    await limiter.reserve(ANN, Cost(1))
    limiter.use([tokens(5)])
    await limiter.reserve(ANN, Cost(1))


async def test_a_replaced_rule_is_forgotten_after_a_window(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    limiter = await make(requests(1))
    await limiter.reserve(ANN)
    limiter.use([requests(1, name="other")])
    with pytest.raises(Limited):
        await limiter.reserve(ANN)
    ahead = monotonic() + 61
    monkeypatch.setattr("gateway.ratelimit.limiter.monotonic", lambda: ahead)
    limiter._retire(ahead)  # as its timer does
    assert limiter.replaced == []
    await limiter.reserve(ANN)


async def test_plans_are_made_anew_only_when_a_replaced_rule_ends(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    limiter = await make(requests(1), tokens(9, per_s=600.0), slots(1))
    limiter.use([requests(1, name="other"), tokens(9, per_s=3600.0)])
    now = monotonic()
    made = [limiter._plans]  # the plans in force
    for later in (5, 30, 61, 70, 601, 700, 4000):
        monkeypatch.setattr("gateway.ratelimit.limiter.monotonic", lambda at=now + later: at)
        await limiter._one_beat()  # one step of the loop
        if limiter._plans is not made[-1]:  # the plans in force
            made.append(limiter._plans)  # the plans in force
    assert len(made) == 3, "after the minute of the requests, and after the ten of tokens and slots"
    assert limiter.replaced == []


async def waits(limiter: SubjectLimiter, subject: Subject = ANN) -> tuple[float, float]:
    """(the wait a client is told, the true one) in seconds"""
    with pytest.raises(Limited) as caught:
        await limiter.reserve(subject, Cost(1))
    assert caught.value.retry_after is not None
    assert caught.value.fits_s is not None
    return caught.value.retry_after, caught.value.fits_s


@pytest.mark.parametrize(
    "rule", [requests(20, per_s=60.0), tokens(20, per_s=60.0), slots(20)], ids=lambda rule: rule.kind
)
async def test_waits_are_never_too_short_and_are_spread_where_many_compete(make: Make, rule: Limit) -> None:
    limiter = await make(rule)
    leases = [await limiter.reserve(ANN, Cost(1)) for _ in range(20)]
    alone = await waits(limiter)
    assert alone[0] == alone[1], "nobody else waits"
    found = [await waits(limiter) for _ in range(100)]
    assert all(wait >= true for wait, true in found)
    most = 60.0 if rule.kind == "requests" else 5.0  # what running requests hold may be free soon
    more = [wait - true for wait, true in found]
    assert max(more) <= most
    # A hundred that wait for twenty places come back over several places' time, not at one moment.
    assert len({int(one * 20 / most) for one in more}) > 10
    assert len(leases) == 20, "held until here"


class Silent(MemoryStore):
    """A store that is up and answers nothing in time."""

    def admit(self, plan: Any, costs: Any, lease: str) -> Any:
        answer: Promise[Verdict] = Promise()
        answer.fail(StoreDown("no answer within 50 ms"))
        return answer


class Slow(MemoryStore):
    """A store of two processes that answers each second call in time."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas = 2
        self.calls: list[str] = []

    def admit(self, plan: Any, costs: Any, lease: str) -> Any:
        self.calls.append(lease)
        answer: Promise[Verdict] = Promise()
        if len(self.calls) % 2:
            answer.fail(StoreDown("no answer within 50 ms"))
        else:
            answer.bring(super().admit(plan, costs, lease))
        return answer


async def test_a_request_without_room_in_a_share_asks_the_store_once_more() -> None:
    """A busy machine answered late once; a refusal by this process alone would be one although there is room."""
    store = Slow()
    limiter = SubjectLimiter([requests(4), slots(4)], store)
    await limiter.start()
    held = [await limiter.reserve(ANN)]
    store.calls.append("skipped: the next call is late too")
    held.append(await limiter.reserve(ANN))
    store.calls.append("as above")
    assert (limiter.decisions.alone, [one.strict for one in held]) == (2, [False, False])
    held.append(await limiter.reserve(ANN))
    assert held[-1].strict
    assert store.calls[-1] != store.calls[-2], "under another name: what comes of the first is undone"
    assert (limiter.decisions.alone, +limiter.decisions.of("refused")) == (2, {})
    for one in held:
        limiter.settle(one, None)
    assert limiter.in_flight == 0
    await limiter.close()


async def test_what_is_decided_alone_is_counted_and_told_as_a_rate() -> None:
    said: list[tuple[int, float]] = []
    limiter = SubjectLimiter([requests(5)], Silent(), heartbeat=0.02, on_alone=lambda *what: said.append(what))
    await limiter.start()
    for _ in range(3):
        await limiter.reserve(ANN)
    assert (limiter.decisions.alone, limiter.state) == (3, "strict")
    await soon(lambda: bool(said))  # by the next heartbeat
    assert said[0][0] == 3
    assert said[0][1] > 0
    await asyncio.sleep(0.1)
    assert len(said) == 1, "nothing happened since"
    await limiter.close()


class Told(MemoryStore):
    """Counters in this process, and which settlements a store in Redis would send at once."""

    def __init__(self) -> None:
        super().__init__()
        self.needed: list[bool] = []
        self.redis = RedisStore(Redis(addresses=("127.0.0.1:1",)))
        self.redis._batchers = [self]  # type: ignore[list-item]  # it only has to take what is posted

    def post(self, code: int, plan: Plan, what: Any, lease: str, needed: bool) -> None:
        self.needed.append(needed)

    def settle(self, *given: Any) -> None:
        self.redis.settle(*given)
        super().settle(*given)


@pytest.mark.parametrize(
    ("limit", "running", "needed"), [(1, 0, True), (100, 0, False), (100, 60, True), (20, 6, True)]
)
async def test_what_is_given_back_is_needed_where_little_is_left(limit: int, running: int, needed: bool) -> None:
    store = Told()
    slots = Limit(name="slots", kind="concurrency", limit=limit)
    limiter = SubjectLimiter([slots, Limit(name="tpm", kind="tokens", limit=10_000)], store)
    await limiter.start()
    others = [await limiter.reserve(ANN, Cost(10)) for _ in range(running)]
    limiter.settle(await limiter.reserve(ANN, Cost(10)), Usage(0, 5))
    assert store.needed == [needed]
    for other in others:
        limiter.settle(other, None)
    # Of any counter: here the tokens run out, and not the slots.
    limiter.settle(await limiter.reserve(ANN, Cost(9_000)), Usage(0, 5))
    assert store.needed[-1] is True
    await limiter.close()
