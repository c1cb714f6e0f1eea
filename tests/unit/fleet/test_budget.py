"""The retry budget under a clock of our own."""

from __future__ import annotations

from gateway.fleet.budget import RetryBudget


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def spent(budget: RetryBudget, tries: int = 1000) -> int:
    return sum(budget.spend() for _ in range(tries))


def test_what_is_kept_is_limited() -> None:
    clock = Clock()
    budget = RetryBudget(0.2, 3.0, clock)
    assert spent(budget) == 10
    clock.now += 3600
    for _ in range(100_000):
        budget.earn()
    assert spent(budget) == 10


def test_a_share_of_the_requests() -> None:
    clock = Clock()
    budget = RetryBudget(0.2, 0.0, clock)
    spent(budget)
    retries = 0
    for _ in range(1000):
        budget.earn()
        retries += budget.spend()
    assert 199 <= retries <= 200


def test_few_requests_may_retry_by_the_clock() -> None:
    clock = Clock()
    budget = RetryBudget(0.0, 2.0, clock)
    spent(budget)
    assert not budget.spend()
    clock.now += 0.5
    assert spent(budget) == 1
    clock.now += 1.0
    assert spent(budget) == 2


def test_the_larger_of_both_counts_not_their_sum() -> None:
    clock = Clock()
    budget = RetryBudget(0.125, 2.0, clock)
    spent(budget)
    for _ in range(40):
        budget.earn()  # worth 5
    clock.now += 1.0  # worth 2
    assert spent(budget) == 5


def test_the_clock_pays_nothing_where_requests_pay_more() -> None:
    """All fail, and ask for a retry at other moments than those at which they came."""
    clock = Clock()
    budget = RetryBudget(0.2, 3.0, clock)
    retries = 0
    for _ in range(10_000):  # 100 a second
        budget.earn()
        for _ in range(3):
            clock.now += 0.01 / 3
            retries += budget.spend()
    assert 2000 <= retries <= 2000 + RetryBudget.BURST


def test_no_budget_is_no_retry() -> None:
    clock = Clock()
    budget = RetryBudget(0.0, 0.0, clock)
    budget.earn()
    clock.now += 100
    assert spent(budget) == 0


def test_what_is_left_is_what_can_be_spent() -> None:
    clock = Clock()
    budget = RetryBudget(0.2, 3.0, clock)
    assert budget.left == 10.0
    spent(budget)
    assert budget.left < 1.0
    for _ in range(5):
        budget.earn()
    assert budget.left == 1.0
    clock.now += 1
    assert budget.left == 3.0
    assert spent(budget) == 3
