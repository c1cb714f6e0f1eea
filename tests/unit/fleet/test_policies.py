"""Policies beside the prefix: least tokens, the less busy of two, weights and turns."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.fleet.pick import POLICIES, LeastTokens, PowerOfTwo, Prefix, RoundRobin
from tests.unit.fleet.conversing import conversation, pool, send, workers


async def test_an_ejected_worker_is_tried_when_its_time_has_come() -> None:
    members = workers(3)
    one = pool(members, Prefix())
    members[1].breaker.open_until = -1.0
    worker, routing = await send(one, conversation("a", 1))
    assert (worker, routing.why) == (members[1], "trial")


async def test_least_tokens_counts_tokens_not_requests() -> None:
    members = workers(2)
    one = pool(members, LeastTokens())
    long = await one.acquire((), 0, one.routing(conversation("long", 1, 40_000), []))
    for name in "abcd":
        assert await one.acquire((), 0, one.routing(conversation(name, 1, 400), [])) is not long


async def test_power_of_two_takes_the_less_busy_of_two() -> None:
    """All but the busiest are the less busy of some two; of some three, the second busiest is not."""
    members = workers(4)
    one = pool(members, PowerOfTwo())
    for load, member in enumerate(members):
        member.in_flight = load
    assert {(await send(one, conversation("a", 1)))[0] for _ in range(200)} == set(members[:3])


@pytest.mark.parametrize("name", POLICIES)
async def test_weights_share_the_load(name: str) -> None:
    members = workers(3)
    members[0].weight = 2.0
    one = pool(members, POLICIES[name]())
    for number in range(200):
        await one.acquire((), 0, one.routing(conversation(str(number), 1, 400), []))
    slack = {"prefix": 1.25, "power_of_two": 1.15}.get(name, 1.05)  # the second draws
    assert 100 / slack <= members[0].in_flight <= 100 * slack
    assert all(member.in_flight <= 50 * slack + 1 for member in members[1:])


@pytest.mark.parametrize("name", POLICIES)
async def test_every_policy_leaves_full_workers_alone(name: str) -> None:
    members = workers(3, max_in_flight=4)
    one = pool(members, POLICIES[name]())
    routings = [one.routing(conversation("same", 2), []) for _ in range(12)]
    taken = [await one.acquire((), 0, routing) for routing in routings]
    assert Counter(taken) == dict.fromkeys(members, 4)
    for worker, routing in zip(taken, routings, strict=True):
        one.release(worker, routing)
    assert all(worker.tokens == 0 and worker.in_flight == 0 for worker in members)


async def test_a_pool_of_one_reads_no_prompt() -> None:
    one = pool(workers(1), Prefix())
    _, routing = await send(one, conversation("a", 1))
    assert (routing.why, routing.keys, routing.prompt) == ("only", (), 0)


async def test_a_retry_goes_to_another_and_charges_once() -> None:
    members = workers(2)
    one = pool(members, Prefix())
    routing = one.routing(conversation("a", 2), [])
    first = await one.acquire((), 0, routing)
    one.release(first, routing)
    second = await one.acquire([first], 0, routing)
    assert second is not first
    assert (first.tokens, second.tokens) == (0, routing.charged)


async def test_turns_follow_weights() -> None:
    members = workers(2)
    members[0].weight = 3.0
    one = pool(members, RoundRobin())
    assert Counter([await one.acquire() for _ in range(40)])[members[0]] == 30
