"""A team's own numbers: each in place of the rule's, and of nothing else of it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import Config, Limit, Team
from gateway.config.money import Budget
from gateway.config.sharing import Limiter
from gateway.ratelimit import BudgetRule, Limits, Subject, limit_names, rules
from gateway.ratelimit.plan import Layout, Plans, counter

CONFIG: dict[str, Any] = {
    "limits": (
        Limit(
            name="hourly",
            kind="tokens",
            limit=10,
            per_s=3600,
            burst=8,
            scope=("team", "model"),
            match={"key": ("bot",)},
        ),
        Limit(name="hourly", kind="tokens", limit=20, per_s=3600, burst=8, scope=("team", "model")),
        Limit(name="mixed", kind="requests", limit=1, match={"key": ("bot",)}),
        Limit(name="mixed", kind="requests", limit=2, scope=("team",)),
    ),
    "budgets": (Budget(name="week", amount=100, per="week", scope=("team",), warn_at=(0.5, 0.9)),),
}
BLUE = Team.model_validate({"limits": {"hourly": 5, "mixed": 7, "team-concurrency": 3}, "budgets": {"week": "2.5"}})


def of_file(**more: Any) -> Limits:
    return Limits(Config(**CONFIG, teams={"blue": BLUE}, **more))


def of_store(**more: Any) -> Limits:
    limits = Limits(Config(**CONFIG, **more))
    limits.own_of_team("blue", BLUE)
    return limits


def found(limits: Limits, key: str, team: str | None) -> dict[str, Any]:
    plan = Plans(limits.index, Layout()).of(Subject(key, team, "m"))
    return {rule.name: (rule.limit, rule.burst, counter(rule, Subject(key, team, "m"))) for rule in plan.rules}


@pytest.mark.parametrize("made", [of_file, of_store])
def test_only_the_number_is_another_one(made: Any) -> None:
    limits, plain = made(), Limits(Config(**CONFIG))
    for key in ("bot", "other"):
        own, general = found(limits, key, "blue"), found(plain, key, "blue")
        assert own.pop("team-concurrency")[0] == 3
        assert {name: where for name, (_, _, where) in own.items()} == {
            name: where for name, (_, _, where) in general.items()
        }, "what was counted stays counted"
        assert own["hourly"][:2] == (5, 5), "a burst is at most the limit"
        assert own["week"][0] == 2_500_000_000
        assert own["mixed"][0] == (1 if key == "bot" else 7), "an exception before it, by key, stays one"
        for team in ("red", None):
            assert found(limits, key, team) == found(plain, key, team)
    (week,) = (
        rule for rule in Plans(limits.index, Layout()).of(Subject("k", "blue", "m")).rules if rule.name == "week"
    )
    assert isinstance(week, BudgetRule)
    assert (week.levels, week.warn_at, week.calendar.per) == ((1_250_000_000, 2_250_000_000), (0.5, 0.9), "week")


def test_the_lists_of_commands_are_in_the_order_of_requests() -> None:
    config = Config(**CONFIG, teams={"blue": BLUE})
    for key in ("bot", "other"):
        subject = Subject(key, "blue", "m")
        assert set(limit_names(config, [subject])) == set(found(of_store(), key, "blue"))
    flat = Limits(config).index
    assert [rule.limit for rule in rules(config) if rule.name == "hourly"] == [5, 10, 5, 20]
    assert flat.calendars


def test_a_team_that_goes_leaves_nothing() -> None:
    limits, plain = of_store(), Limits(Config(**CONFIG))
    assert limits.measured
    limits.own_of_team("blue", None)
    assert found(limits, "other", "blue") == found(plain, "other", "blue")


def test_a_rule_of_another_team_is_not_taken() -> None:
    only = Limit(name="only", kind="requests", limit=1, scope=("team",), match={"team": ("red",)})
    limits = Limits(Config(limits=(only,)))
    assert limits.own_of_team("blue", Team(limits={"only": 5})) == []
    assert [rule.limit for rule in limits.own_of_team("red", Team(limits={"only": 5}))] == [5]


def test_counters_in_partitions_take_none_of_their_own() -> None:
    limits = Limits(Config(limiter=Limiter(partitions=4, partition_by="key")))
    assert limits.own_of_team("blue", Team(limits={"team-requests": 5})) == []
    by_team = Limits(Config(limiter=Limiter(partitions=4, partition_by="team")))
    assert len(by_team.own_of_team("blue", Team(limits={"team-requests": 5}))) == 1
