"""The limits and budgets of which a team may have a number of its own, and faults of teams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from gateway.config.faults import Faults, Path, Unknown
from gateway.config.model import Config
from gateway.config.money import Budget
from gateway.config.rules import Facts
from gateway.config.sharing import Limit

Bound = TypeVar("Bound", Limit, Budget)

_LIMITS = (
    Limit(name="team-requests", kind="requests", limit=1, scope=("team",)),
    Limit(name="team-tokens", kind="tokens", limit=1, scope=("team",)),
    Limit(name="team-concurrency", kind="concurrency", limit=1, scope=("team",)),
)
_BUDGETS = (Budget.model_construct(name="team-budget", amount=1, scope=("team",)),)
"""Those that a team may have although the configuration has none of the name. Their numbers are the team's."""


def own_limits(config: Config) -> tuple[Limit, ...]:
    """The limits that exist for the teams alone that have a number of them."""
    return _absent(config, _LIMITS)


def own_budgets(config: Config) -> tuple[Budget, ...]:
    """As `own_limits`."""
    return _absent(config, _BUDGETS)


def _absent(config: Config, bounds: tuple[Bound, ...]) -> tuple[Bound, ...]:
    limiter = config.limiter
    if limiter.partitions > 1 and limiter.partition_by != "team":
        return ()
    taken = {one.name for one in config.limits} | {one.name for one in config.budgets}
    return tuple(one for one in bounds if one.name not in taken)


def is_for(bound: Limit | Budget, team: str) -> bool:
    """Whether `team` may have a number of its own of it."""
    return "team" in bound.scope and team in bound.match.get("team", (team,))


def teams(facts: Facts) -> Faults:
    config = facts.config
    known = {key.team for key in config.keys.values()}
    for name, team in config.teams.items():
        at = ("teams", name)
        if not (name in known or facts.any_key):
            yield at, Unknown("no key has this team", name, {one for one in known if one is not None})
        for index, model in enumerate(team.models or ()):
            if model not in config.model_names:
                yield (*at, "models", index), Unknown("is not a model", model, config.model_names)
        limits = {one.name for one in (*config.limits, *own_limits(config)) if is_for(one, name)}
        budgets = {one.name for one in (*config.budgets, *own_budgets(config)) if is_for(one, name)}
        yield from _unknown((*at, "limits"), team.limits, limits, "a limit")
        yield from _unknown((*at, "budgets"), team.budgets, budgets, "a budget")


def _unknown(at: Path, given: Mapping[str, int], names: set[str], what: str) -> Faults:
    for name in given:
        if name not in names:
            there = f"; there are {', '.join(sorted(names)[:8])}" if names else ""
            yield (*at, name), Unknown(f"is not {what} with `team` in its scope", name, names, otherwise=there)
