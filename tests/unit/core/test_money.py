"""What requests cost, to the last billionth."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.money import MOST, NANO, Rates, Tariff, shown

prices = st.integers(0, 100 * NANO)
tokens = st.integers(0, 10_000_000)


@given(prices, prices, prices, prices, tokens, tokens, tokens)
def test_a_cost_is_that_of_decimals_rounded_up(
    input: int, cached: int, output: int, request: int, prompt: int, of_it: int, reply: int
) -> None:
    of_it = min(of_it, prompt)
    exact = Decimal(request) + (
        Decimal(prompt - of_it) * input + Decimal(of_it) * cached + Decimal(reply) * output
    ) / Decimal(1_000_000)
    expected = exact.to_integral_value(ROUND_CEILING)
    assert Rates(input, cached, output, request).cost(prompt, reply, of_it) == expected


def test_more_cached_tokens_than_the_prompt_has_are_not_believed() -> None:
    assert Rates(1_000_000, 0, 0, 0).cost(10, 0, 50) == 0


def test_no_count_of_a_worker_costs_more_than_redis_counts() -> None:
    """A count may be a lie, in a currency with high prices: sums and budgets go on."""
    dear = Rates(*5 * [MOST * NANO])
    assert dear.cost(2**31 - 1, 2**31 - 1, 0, 100) == MOST * NANO < 2**53


def test_a_price_is_valid_from_its_moment() -> None:
    moments = iter((99.0, 100.0, 199.9, 200.0))
    tariff = Tariff([(200.0, Rates(2)), (100.0, Rates(1))], lambda: next(moments))
    assert [tariff.now() for _ in range(4)] == [None, Rates(1), Rates(1), Rates(2)]


def test_amounts_are_shown_without_exponents_or_needless_zeros() -> None:
    assert [shown(one) for one in (0, 1, 1_500_000, 200 * NANO, -5)] == [
        "0",
        "0.000000001",
        "0.0015",
        "200",
        "-0.000000005",
    ]
