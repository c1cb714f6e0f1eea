"""Faults between options of money."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.config.faults import Faults
from gateway.config.money import Budget, Price
from gateway.config.rules import Facts

_TAKEN = ("requests", "tokens", "concurrency")
"""Names of limits that keys have of their own; theirs for money is `budget`."""


def money(facts: Facts) -> Faults:
    config = facts.config
    priced = any(model.price for model in config.models.values())
    if priced and config.spend.currency is None:
        yield ("spend", "currency"), "is required, as models have prices"
    for name, model in config.models.items():
        yield from _prices(name, model.price)
    if facts.has("budgets") and not priced:
        yield ("budgets",), "need a model with a price: without one nothing is spent"
    hook = config.budget_webhook
    if hook is not None:
        own = any(key.limits is not None and key.limits.budget is not None for key in config.keys.values())
        if not (own or facts.has("budgets") or facts.has("keys_store")):
            yield ("budget_webhook",), "has no effect without budgets"
        if hook.secret_file is None and hook.secret_env is None:
            yield ("budget_webhook", "secret_file"), "or secret_env is needed"
    limits = {limit.name for limit in config.limits}
    for index, limit in enumerate(config.limits):
        if limit.name == "budget":
            yield ("limits", index, "name"), "is that of keys' own budgets"
    for index, budget in enumerate(config.budgets):
        yield from _budget(index, budget)
        if budget.name in limits or budget.name in _TAKEN:
            yield ("budgets", index, "name"), "is that of a limit: a request would pass only one of them"


def _prices(name: str, prices: Sequence[Price]) -> Faults:
    days = [one.from_ for one in prices]
    for index, day in enumerate(days):
        if day in days[:index]:
            path = ("models", name, "price", index)
            yield path, "begins when another one does" if day else "has no `from`, as another one: each needs a day"


def _budget(index: int, budget: Budget) -> Faults:
    path = ("budgets", index)
    if list(budget.warn_at) != sorted(set(budget.warn_at)):
        yield (*path, "warn_at"), "must ascend"
    if any(not 0 < one < 1 for one in budget.warn_at):
        yield (*path, "warn_at"), "must be above 0 and below 1: at the whole amount requests are refused"
    if budget.per == "total" and budget.time_zone is not None:
        yield (*path, "time_zone"), "has no effect with per: total"
