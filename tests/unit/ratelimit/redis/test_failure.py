"""The server freezes, dies, returns: what is decided meanwhile, how fast, and what is left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.config import Limit, Redis
from gateway.core.errors import GatewayError, Kind
from gateway.core.estimate import Cost
from gateway.core.usage import Usage
from gateway.ratelimit import Subject, SubjectLimiter
from gateway.ratelimit.model import Limited
from gateway.ratelimit.redis.call_deadlines import CallDeadlines
from gateway.ratelimit.redis.store import RedisStore
from gateway.ratelimit.reservation import Reservation
from tests.support.ports import free_port
from tests.support.redis_server import Server
from tests.unit.ratelimit.conftest import Make, reach

ANN = Subject(key="ann")
REQUESTS = Limit(name="rpm", kind="requests", limit=10)
TOKENS = Limit(name="tpm", kind="tokens", limit=1000)
SLOTS = Limit(name="slots", kind="concurrency", limit=6)


@pytest.fixture
async def make(mortal: Server, started: Make) -> AsyncIterator[Make]:
    async def one(*rules: Limit, heartbeat: float = 0.2, **options: Any) -> SubjectLimiter:
        return await started(rules, RedisStore(mortal.settings, heartbeat=heartbeat), heartbeat=heartbeat, **options)

    yield one
    mortal.thaw_if_alive()


def wait_at_most(limiter: SubjectLimiter, seconds: float) -> None:
    """A call has this long from now on, whatever earlier ones took. It is short only while the server is frozen: a
    machine that stands still makes a server that lives look dead."""
    for batcher in limiter.store._batchers:  # type: ignore[attr-defined]
        offset, batcher.deadlines = batcher.deadlines._offset, CallDeadlines(seconds)  # the learnt offset stays
        batcher.deadlines._offset = offset  # the learnt offset stays
        if batcher._watch is not None:  # the watch runs by the new time
            batcher._watch.cancel()  # the watch runs by the new time
            batcher._look_at_watch()  # the watch runs by the new time


def freeze(mortal: Server, limiter: SubjectLimiter, patience: float = 1.0) -> None:
    mortal.freeze()
    wait_at_most(limiter, patience)


def thaw(mortal: Server, limiter: SubjectLimiter) -> None:
    wait_at_most(limiter, 30)
    mortal.thaw()


async def take(limiter: SubjectLimiter, most: int, cost: Cost = Cost()) -> list[Reservation]:  # noqa: B008
    """Up to `most` leases, until the first refusal."""
    leases = []
    for _ in range(most):
        try:
            leases.append(await limiter.reserve(ANN, cost))
        except Limited:
            break
    return leases


async def left(limiter: SubjectLimiter) -> dict[str, int]:
    await limiter.flush()
    return {state.rule.name: state.remaining for state in (await limiter.inspect(ANN))}


async def test_a_frozen_server_costs_one_timeout_and_then_nothing(mortal: Server, make: Make) -> None:
    changes: list[tuple[str, str]] = []
    # Heartbeats so rare that neither counts as gone on a machine that stands still.
    limiter = await make(REQUESTS, TOKENS, heartbeat=10, on_change=lambda *change: changes.append(change))
    await make(REQUESTS, TOKENS, heartbeat=10)
    await limiter.store.beat()
    assert limiter.store.replicas == 2
    assert len(await take(limiter, 3)) == 3

    freeze(mortal, limiter)
    waits = []
    for _ in range(3):
        started = time.perf_counter()
        await asyncio.gather(*(limiter.reserve(ANN) for _ in range(4)), return_exceptions=True)
        waits.append(time.perf_counter() - started)
    assert max(waits) < 15
    assert limiter.state == "degraded"
    assert limiter.store.reason == "no answer within 1000 ms"
    started = time.perf_counter()
    for _ in range(100):
        with pytest.raises(Limited):
            await limiter.reserve(ANN)
    assert time.perf_counter() - started < 30  # not a timeout each
    # Half the limit, as two replicas live: 5 since the freeze, none of them in the server.
    assert limiter.decisions.of("refused")["rpm"] == 107

    await asyncio.sleep(2)  # the last call's deadline is over by the server's clock, too
    thaw(mortal, limiter)
    await reach(limiter, "strict")
    assert [state for state, _ in changes] == ["strict", "degraded", "strict"]
    await asyncio.sleep(0.1)
    assert (await left(limiter))["rpm"] == 7  # what timed out, and ran after the thaw, charged nothing
    assert len(await take(limiter, 99)) == 7


async def test_each_rule_fails_as_it_says(mortal: Server, make: Make) -> None:
    opened = Limit(name="open", kind="requests", limit=1, on_redis_failure="open")
    closed = Limit(name="closed", kind="requests", limit=1, on_redis_failure="closed", match={"team": ("t",)})
    local = Limit(name="local", kind="requests", limit=3)
    limiter = await make(opened, closed, local)
    mortal.kill()
    leases = await take(limiter, 99)
    assert len(leases) == 3
    assert not leases[0].strict
    assert [state.rule.name for state in leases[0].states] == ["local"]
    with pytest.raises(GatewayError) as caught:
        await limiter.reserve(Subject(key="bob", team="t"))
    assert (caught.value.kind, caught.value.code) == (Kind.OVERLOADED, "limits_unavailable")
    assert caught.value.retry_after is not None
    assert limiter.state == "degraded"
    with pytest.raises(GatewayError):
        await limiter.inspect(ANN)
    with pytest.raises(GatewayError):
        await limiter.reset(ANN)


async def test_a_killed_server_returns_empty_and_strict(mortal: Server, make: Make) -> None:
    limiter = await make(REQUESTS, TOKENS, SLOTS)
    held = await take(limiter, 2, Cost(100))
    mortal.kill()
    alone = await take(limiter, 99, Cost(100))
    assert len(alone) == 4  # six slots, and the two that run are still counted
    mortal.start()
    await reach(limiter, "strict")
    # The restarted server knows nothing but the slots, which were renewed at once.
    assert await left(limiter) == {"rpm": 10, "tpm": 1000, "slots": 0}
    for lease in held + alone:
        limiter.settle(lease, Usage(0, 10))
    assert await left(limiter) == {"rpm": 10, "tpm": 1000, "slots": 6}
    assert len(await take(limiter, 99)) == 6


async def test_it_starts_without_a_server(mortal: Server, make: Make) -> None:
    mortal.kill()
    limiter = await make(REQUESTS)
    assert limiter.state == "degraded"
    assert len(await take(limiter, 99)) == 10
    mortal.start()
    await reach(limiter, "strict")
    assert len(await take(limiter, 99)) == 10


async def test_what_ends_during_an_outage_is_settled_after_it(mortal: Server, make: Make) -> None:
    limiter = await make(TOKENS, SLOTS)
    leases = await take(limiter, 4, Cost(200))
    freeze(mortal, limiter)
    await asyncio.gather(*(limiter.reserve(Subject(key="bob")) for _ in range(2)))
    await limiter.reserve(Subject(key="bob"))
    await reach(limiter, "degraded")
    for lease in leases:
        limiter.settle(lease, Usage(0, 50))
    thaw(mortal, limiter)
    await reach(limiter, "strict")
    assert await left(limiter) == {"tpm": 800, "slots": 6}


async def test_a_settlement_that_timed_out_is_not_settled_twice(mortal: Server, make: Make) -> None:
    limiter = await make(TOKENS, SLOTS)
    first, second = await take(limiter, 2, Cost(400))
    freeze(mortal, limiter)
    limiter.settle(first, Usage(0, 100))  # goes out, is answered by nobody, runs after the thaw
    await limiter.flush()
    limiter.settle(second, Usage(0, 100))
    await limiter.flush()
    thaw(mortal, limiter)
    await reach(limiter, "strict")
    await asyncio.sleep(0.1)
    now = await left(limiter)
    assert now["slots"] == 6
    assert now["tpm"] in (800, 500, 200)  # each refund once or, where the connection was cut, not at all


async def test_one_slow_answer_does_not_open_the_breaker(mortal: Server, make: Make) -> None:
    changes: list[tuple[str, str]] = []
    limiter = await make(REQUESTS, on_change=lambda *change: changes.append(change), slot_ttl=60)
    # The second half of it opens the breaker: a machine may stand still for as long.
    freeze(mortal, limiter, patience=3)
    lease = await limiter.reserve(ANN)
    assert not lease.strict
    thaw(mortal, limiter)
    assert (await limiter.reserve(ANN)).strict
    assert [state for state, _ in changes] == ["strict"]


async def test_local_counting_survives_a_flapping_server(mortal: Server, make: Make) -> None:
    limiter = await make(REQUESTS)
    total = 0
    for _ in range(2):
        freeze(mortal, limiter)
        total += len([one for one in await take(limiter, 99) if not one.strict])
        thaw(mortal, limiter)
        await reach(limiter, "strict")
    assert total == 10  # not a fresh window each time


async def test_a_wrong_password_is_a_failure_that_says_so(mortal: Server) -> None:
    mortal.command("CONFIG", "SET", "requirepass", "right")
    limiter = SubjectLimiter([REQUESTS], RedisStore(Redis(addresses=(mortal.address,), timeout_s=10)))
    await limiter.start()
    assert limiter.state == "degraded"
    assert "Authentication" in limiter.store.reason
    assert (await limiter.reserve(ANN)).states[0].limit == 10
    await limiter.close()


async def test_a_primary_that_became_a_replica_is_left_until_it_is_one_again(mortal: Server) -> None:
    limiter = SubjectLimiter([REQUESTS], RedisStore(mortal.settings))
    await limiter.start()
    mortal.command("REPLICAOF", "127.0.0.1", free_port())
    assert [lease.strict for lease in await take(limiter, 3)] == [False] * 3
    assert (limiter.state, limiter.store.reason) == ("degraded", "READONLY")
    mortal.command("REPLICAOF", "NO", "ONE")
    await reach(limiter, "strict")
    assert (await limiter.reserve(ANN)).strict
    await limiter.close()
