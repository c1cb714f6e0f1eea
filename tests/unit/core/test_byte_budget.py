"""Bounds that callers share: no caller takes all, whatever is taken is given back, and one alone may be large."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.addresses import network_of
from gateway.core.byte_budget import UNOWNED, ByteBudget, Held, Shared
from gateway.core.errors import GatewayError

LIMIT = 1000
SIZES = st.lists(st.integers(1, LIMIT // 2), max_size=50)


@given(SIZES, st.integers(1, LIMIT // 2))
def test_one_caller_leaves_half_to_the_next(sizes: list[int], next_one: int) -> None:
    bound = Shared(LIMIT, 0.5)
    taken = sum(size for size in sizes if bound.take(size, "greedy"))
    assert taken == bound.reserved <= LIMIT / 2
    assert bound.take(next_one, "honest")


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, LIMIT)), max_size=60), st.sampled_from([0.1, 0.5, 1.0])
)
def test_what_is_held_is_within_the_bounds_and_given_back(moves: list[tuple[str, int]], share: float) -> None:
    """Each holder grows, shrinks and ends; the sums agree at every step."""
    budget = ByteBudget(LIMIT, share)
    holders: dict[str, list[Held]] = {"a": [], "b": [], "c": []}
    for number, (owner, size) in enumerate(moves):
        if number % 3 == 0 or not holders[owner]:
            holders[owner].append(Held(budget, owner))
        one = holders[owner][number % len(holders[owner])]
        before, others = one.size, sum(held.size for held in holders[owner] if held is not one)
        if not one.resize(size):
            assert one.size == before < size
        elif size > before and others:
            mine = others + size
            assert mine <= share * (LIMIT - budget.reserved + mine)
        assert budget.reserved == sum(held.size for helds in holders.values() for held in helds) <= LIMIT
    for helds in holders.values():
        for held in helds:
            held.resize(0)
    assert budget.reserved == 0
    assert not budget.held, "an owner that holds nothing is forgotten"


def test_a_body_alone_may_be_as_large_as_what_is_left() -> None:
    budget = ByteBudget(LIMIT, 0.5)
    one, more = Held(budget, "one"), Held(budget, "one")
    assert one.resize(600)
    assert one.resize(900), "also if it came in pieces"
    assert not more.resize(1)
    assert not Held(budget, "other").resize(101)
    assert Held(budget, "other").resize(100)


def test_what_many_send_together_has_no_share() -> None:
    bound = Shared(LIMIT, 0.1)
    assert [bound.take(400, UNOWNED) for _ in range(3)] == [True, True, False]


def test_bytes_may_change_their_owner() -> None:
    budget = ByteBudget(LIMIT, 0.5)
    first, second = Held(budget, "key"), Held(budget, "address")
    assert first.resize(400)
    assert second.resize(200)
    with pytest.raises(GatewayError):
        second.pass_to("key")
    assert (second.size, budget.reserved) == (0, 400)


@pytest.mark.parametrize(
    ("address", "network"),
    [("192.0.2.1", "192.0.2.1"), ("2001:db8::1", "2001:db8::/64"), ("fe80::1%eth0", "fe80::/64"), ("x:y", "x:y")],
)
def test_the_network_of_an_address(address: str, network: str) -> None:
    assert network_of(address) == network
