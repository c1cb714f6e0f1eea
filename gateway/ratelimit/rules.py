"""The limits of a configuration as rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from math import ceil
from types import MappingProxyType
from typing import get_args

from gateway.config import Config, Limit
from gateway.config.kinds import nano, zone_of
from gateway.config.money import Budget, Spend
from gateway.config.sharing import Dimension, Reserve, WrittenKind
from gateway.config.teams import is_for, own_budgets, own_limits
from gateway.core.end_users import end_user
from gateway.core.estimate import Estimator
from gateway.ratelimit.addresses import canonical
from gateway.ratelimit.calendar import Calendar
from gateway.ratelimit.headers import Forms
from gateway.ratelimit.kinds import KINDS, BudgetRule
from gateway.ratelimit.plan import RuleIndex


class Limits:
    """The limits of a configuration, ready for use. A reload makes them in a thread. stored: the keys of the store,
    each with its limits; teams: its teams. own_headers: of each dialect that has some, as
    `core.ports.Dialect.limit_headers`.

    forms       the headers about them
    index       the rules
    any         whether there are some, or keys of the store may bring some
    measured    whether some need to know what a request may use
    by_address  whether some depend on the client's address
    marks       (a budget's name, a share of it that is counted when it is passed, whether it is a shadow), of all
    """

    def __init__(
        self,
        config: Config,
        stored: Iterable[tuple[str, object]] = (),
        own_headers: Mapping[str, bytes] = MappingProxyType({}),
        teams: Iterable[tuple[str, object]] = (),
    ) -> None:
        found = rules(config)
        self.forms = Forms(config.limiter, own_headers)
        self.index = RuleIndex(found)
        self._of_teams = [(position - 0.5, rule) for position, rule in enumerate(found) if "team" in rule.scope]
        self._of_teams += [(float(len(found)), rule) for rule in _own_of_teams(config)]
        self._spend, self._reserve = config.spend, config.limiter.reserve
        self.measured = any(KINDS[rule.kind].measured for rule in found)
        for name, limits in stored:
            found += self.own(name, limits)
        for name, team in teams:
            found += self.own_of_team(name, team)
        self.any = bool(found) or config.keys_store is not None
        self.by_address = any("address" in (*rule.scope, *rule.match) for rule in found)
        budgets = [rule for rule in found if isinstance(rule, BudgetRule)]
        self.marks = {(rule.name, share, rule.shadow) for rule in budgets for share in (*rule.warn_at, 1.0)}

    def own(self, name: str, limits: object) -> list[Limit]:
        """Takes in the limits of a key of the store, None for none. Returns its rules."""
        found = key_rules(name, limits, self._spend, self._reserve)
        self.index.own(name, found)
        self.measured = self.measured or any(KINDS[rule.kind].measured for rule in found)
        return found

    def of_team(self, name: str, team: object) -> list[tuple[float, Limit]]:
        """The rules with the numbers of a team of the store, each with its position: right before that rule of the
        configuration whose number it replaces. team: None for none."""
        numbers = _numbers(team)
        wanted = [(position, rule) for position, rule in self._of_teams if rule.name in numbers]
        found = [(position, team_rule(rule, name, numbers[rule.name])) for position, rule in wanted]
        return [(position, rule) for position, rule in found if rule is not None]

    def own_of_team(self, name: str, team: object) -> list[Limit]:
        """Takes in what `of_team` finds, and returns the rules."""
        found = self.of_team(name, team)
        self.index.own_of_team(name, found)
        self.measured = self.measured or any(KINDS[rule.kind].measured for _, rule in found)
        return [rule for _, rule in found]


def rules(config: Config) -> list[Limit]:
    """The limits of `config` in the order in which they are tried. Those of single keys come first, as exceptions."""
    found: list[Limit] = []
    for name, key in config.keys.items():
        found += key_rules(name, key.limits, config.spend, config.limiter.reserve)
    teams: dict[str, list[tuple[str, int]]] = {}
    for name, team in config.teams.items():
        for limit, number in _numbers(team).items():
            teams.setdefault(limit, []).append((name, number))
    for one in (*config.limits, *[rule_of(budget, config.spend) for budget in config.budgets]):
        match = {
            dimension: tuple(_as_counted(config, dimension, value) for value in values)
            for dimension, values in one.match.items()
        }
        rule = one.model_copy(update={"match": match, "reserve": one.reserve or config.limiter.reserve})
        found += _of_teams(rule, teams)
        found.append(rule)
    for rule in _own_of_teams(config):
        found += _of_teams(rule, teams)
    return found


def _of_teams(rule: Limit, teams: Mapping[str, Iterable[tuple[str, int]]]) -> list[Limit]:
    """The rules of teams that have a number of their own of `rule`."""
    found = (team_rule(rule, name, number) for name, number in teams.get(rule.name, ()))
    return [own for own in found if own is not None]


def team_rule(rule: Limit, team: str, number: int) -> Limit | None:
    """`rule` with the number that `team` has of it; None for a rule that is not for that team."""
    if not is_for(rule, team):
        return None
    own: dict[str, object] = {"limit": number, "match": {"team": (team,)} | rule.match | {"team": (team,)}}
    if rule.burst is not None:
        own["burst"] = min(rule.burst, number)
    if isinstance(rule, BudgetRule):
        own["levels"] = _levels(rule.warn_at, number)
    return rule.model_copy(update=own)


def _own_of_teams(config: Config) -> list[Limit]:
    """See `gateway.config.teams.own_limits`."""
    reserve = {"reserve": config.limiter.reserve}
    found = [*own_limits(config), *[rule_of(budget, config.spend) for budget in own_budgets(config)]]
    return [one.model_copy(update=reserve) for one in found]


def _numbers(team: object) -> dict[str, int]:
    """Those that the team has of its own, by the names of limits and budgets. Amounts are in nano; those of a team of
    the store are text."""
    amounts: Mapping[str, int | str] = getattr(team, "budgets", {})
    budgets = {name: nano(amount) if isinstance(amount, str) else amount for name, amount in amounts.items()}
    return {**getattr(team, "limits", {}), **budgets}


def key_rules(name: str, limits: object, spend: Spend, reserve: Reserve) -> list[Limit]:
    """The limits of the key `name` alone. limits: its `KeyLimits`, or what is like it; None for none."""
    own = {kind: getattr(limits, kind, None) for kind in get_args(WrittenKind)}
    match: dict[Dimension, tuple[str, ...]] = {"key": (name,)}
    found = [
        Limit(name=kind, kind=kind, limit=limit, match=match, reserve=reserve)
        for kind, limit in own.items()
        if limit is not None
    ]
    budget = getattr(limits, "budget", None)  # in nano; that of a key of the store is text
    if budget is not None:
        amount = nano(budget) if isinstance(budget, str) else budget
        budget = Budget.model_construct(name="budget", amount=amount, match=match, reserve=reserve)
        found.append(rule_of(budget, spend))
    return found


def rule_of(budget: Budget, spend: Spend) -> BudgetRule:
    """A budget as a limit."""
    calendar = Calendar(budget.per, zone_of(budget.time_zone or spend.time_zone))
    return BudgetRule.model_construct(
        name=budget.name,
        kind="cost",
        limit=budget.amount,
        per_s=calendar.days * 86_400.0,
        scope=budget.scope,
        match=budget.match,
        shadow=budget.shadow,
        reserve=budget.reserve,
        on_redis_failure=budget.on_redis_failure,
        calendar=calendar,
        levels=_levels(budget.warn_at, budget.amount),
        warn_at=budget.warn_at,
        currency=spend.currency or "",
    )


def _levels(warn_at: Iterable[float], amount: int) -> tuple[int, ...]:
    return tuple(ceil(Decimal(str(one)) * amount) for one in warn_at)


def _as_counted(config: Config, dimension: Dimension, value: str) -> str:
    """A value to match in the form in which requests carry it: the model of an alias, the canonical address."""
    if dimension == "model":
        return config.resolve(value) or value
    if dimension == "end_user":
        return end_user(value, config.end_users.secret if config.end_users is not None else None) or value
    return canonical(value) if dimension == "address" else value


def estimator(config: Config) -> Estimator:
    """Estimates the tokens of requests, as configured."""
    limiter = config.limiter
    return Estimator(limiter.bytes_per_token, limiter.image_tokens, output=limiter.output_tokens)
