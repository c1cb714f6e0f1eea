"""LiteLLM's budgets: their periods, and what was spent of them."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli.importing.litellm_budgets import period
from tests.support import litellm
from tests.support.commands import called
from tests.support.harness import Stack
from tests.support.redis_server import Server
from tests.unit.cli.importing.imports import deployment, imported, row


def test_a_teams_budget_for_another_time_than_a_month_is_a_rule_beside_those_of_months() -> None:
    config = {"model_list": [deployment(input_cost_per_token=1)]}
    teams = [
        {"team_id": "weekly", "max_budget": 5, "budget_duration": "7d"},
        {"team_id": "monthly", "max_budget": 9, "budget_duration": "1mo"},
    ]
    keys = [row(token=f"{number:064x}", team_id=team["team_id"]) for number, team in enumerate(teams)]
    values, _ = imported(config, [*teams, *keys])
    assert values["teams"] == {"monthly": {"budgets": {"team-budget": "9"}}}
    rules = [budget for budget in values["budgets"] if budget["scope"] == ["team"]]
    assert rules == [
        {"name": "team-week-budget", "scope": ["team"], "match": {"team": ["weekly"]}, "amount": "5", "per": "week"}
    ]


@pytest.mark.parametrize(
    ("duration", "wanted"),
    [
        (None, ("total", True)),
        ("24h", ("day", True)),
        ("1h", ("day", False)),
        ("7d", ("week", True)),
        ("2d", ("week", False)),
        ("1mo", ("month", True)),
        ("30d", ("month", True)),
        ("2mo", ("total", False)),
        ("often", ("total", False)),
    ],
)
def test_a_budgets_period_is_never_shorter_than_before(duration: str | None, wanted: tuple[str, bool]) -> None:
    assert period(duration) == wanted


@pytest.mark.feature("limits")
@pytest.mark.feature("pricing")
def test_budgets_begin_with_what_was_spent(tmp_path: Path) -> None:
    """The sums of LiteLLM that a budget there goes by."""
    (tmp_path / "redis").mkdir()
    with Server(tmp_path / "redis") as server, Stack() as worker:
        config = {
            "model_list": [
                {"model_name": "m", "litellm_params": {"model": "hosted_vllm/sim", "api_base": worker.sim.url}}
            ],
            "litellm_settings": {"cache_params": {"type": "redis", "host": "127.0.0.1", "port": server.port}},
        }
        secrets = [litellm.secret(number) for number in range(3)]
        team = {"team_id": "t", "team_alias": "blue", "max_budget": 50, "budget_duration": "30d", "spend": 20.25}
        budgets: tuple[dict[str, Any], ...] = (
            {"max_budget": 5, "budget_duration": "30d", "spend": 5.5},
            {"max_budget": 5, "spend": "1.5"},
            {"spend": 9},
        )
        keys = [
            {"token": sha256(secret.encode()).hexdigest(), "key_alias": f"k{number}", "team_id": "t", **budget}
            for number, (secret, budget) in enumerate(zip(secrets, budgets, strict=True))
        ]
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
        (tmp_path / "rows.json").write_text(json.dumps([team, *keys]))
        words = ["import", "litellm", "config.yaml", "--keys", "rows.json", "--spent", "spent.jsonl", "--out", "g.yaml"]
        made = called(*words, folder=tmp_path)
        assert "before clients call: dragoman spend --rebuild spent.jsonl" in made.stderr
        rebuilt = called("spend", "--config", "g.yaml", "--rebuild", "spent.jsonl", "--yes", folder=tmp_path)
        assert (rebuilt.returncode, rebuilt.stdout) == (0, "3 records that a worker was picked for\n"), rebuilt.stderr
        used = {}
        for name in ("k0", "k1", "k2"):
            shown = called("limits", "show", "--config", "g.yaml", "--key", name, folder=tmp_path).stdout
            used[name] = {line.split()[0]: line.split()[3] for line in shown.splitlines()[1:]}
        team = {"team-budget": "20.25"}
        assert used == {"k0": {"budget": "5.5", **team}, "k1": {"key-budget": "1.5", **team}, "k2": team}
    without = called(*words[:5], folder=tmp_path)
    assert "budgets begin at 0, whatever LiteLLM has counted: give --spent" in without.stderr
    del config["litellm_settings"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    alone = called(*words[:5], folder=tmp_path)
    assert "budgets begin at 0 with each gateway" in alone.stderr
    refused = called(*words, folder=tmp_path)
    assert (refused.returncode, "--spent needs budgets in Redis" in refused.stderr) == (2, True)
