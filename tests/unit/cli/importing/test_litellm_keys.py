"""Keys and teams that come from LiteLLM may do no more than before."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.cli.importing.drafts import Draft
from tests.unit.cli.importing.imports import deployment, imported, key, row


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, {}),
        ({"blocked": True}, {"disabled": True}),
        ({"blocked": "t"}, {"disabled": True}),
        ({"expires": "soon"}, {"disabled": True}),
        ({"expires": 17}, {"disabled": True}),
        ({"expires": "2099-01-01T00:00:00Z"}, {"expires": "2099-01-01T00:00:00Z"}),
        ({"rpm_limit": 0}, {"disabled": True}),
        ({"max_budget": 0.0}, {"disabled": True}),
        ({"rpm_limit": "5", "tpm_limit": 7.0}, {"limits": {"requests": 5, "tokens": 7}}),
        ({"max_budget": 1e-9, "budget_duration": "30d"}, {"limits": {"budget": "0.000000001"}}),
        ({"models": ["m", "gone"]}, {"models": ["m"]}),
        ({"models": ["gone"]}, {"models": []}),
        ({"models": "{m,gone}"}, {"models": ["m"]}),
        ({"models": ["no-default-models"]}, {"models": []}),
        ({"models": ["all-proxy-models"]}, {}),
        ({"team_id": "t"}, {"team": "blue"}),  # the entry of the team bounds it
        ({"team_id": "t", "models": ["m", "n"]}, {"team": "blue", "models": ["m", "n"]}),
        ({"team_id": "t", "models": ["all-team-models"]}, {"team": "blue"}),
        ({"team_id": "shut"}, {"team": "shut"}),
        ({"team_id": "u", "models": ["all-team-models"]}, {"team": "u", "models": []}),
        ({"aliases": {"x": "m", "y": "gone"}}, {"aliases": {"x": "m"}}),
        ({"models": ["n"], "aliases": {"x": "m"}}, {"models": ["n"], "aliases": {}}),
    ],
)
def test_no_key_may_do_more_than_before(options: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert key(**options) == {"hash": "sha256:" + "0" * 64, **wanted}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, None),
        ({"models": ["all-proxy-models"], "blocked": False}, None),
        ({"models": ["n"]}, {"models": ["n"]}),
        ({"models": ["gone"]}, {"models": []}),
        ({"blocked": True}, {"disabled": True}),
        ({"tpm_limit": 0}, {"disabled": True}),
        ({"max_budget": 0}, {"disabled": True}),
        (
            {"rpm_limit": 5, "tpm_limit": "7", "max_parallel_requests": 2},
            {"limits": {"team-requests": 5, "team-tokens": 7, "team-concurrency": 2}},
        ),
        ({"max_budget": 9.5, "budget_duration": "30d"}, {"budgets": {"team-budget": "9.5"}}),
    ],
)
def test_what_bounds_a_team_is_its_entry(options: dict[str, Any], wanted: dict[str, Any] | None) -> None:
    """It holds for keys that are made later, too."""
    config = {"model_list": [deployment(input_cost_per_token=1), deployment("n")]}
    values, _ = imported(config, [row(team_id="t"), {"team_id": "t", "team_alias": "blue", **options}])
    assert values.get("teams") == (None if wanted is None else {"blue": wanted})
    assert values.keys().isdisjoint({"limits", "budgets"})


def test_a_team_whose_models_cannot_be_written_is_disabled() -> None:
    draft = Draft()
    models = {"m": {"backend": "vllm", "workers": ["http://w:1"]}}
    key = {"hash": "sha256:" + "0" * 64, "team": "t"}
    draft.values |= {"models": models, "keys": {"k": key}, "teams": {"t": {"models": 1}}}
    draft.settle()
    assert draft.values["teams"] == {"t": {"disabled": True}}
    assert "; the team is disabled" in "\n".join(draft.lines())


def test_keys_get_names_of_their_own_and_none_that_looks_like_a_secret() -> None:
    rows = [
        {"token": f"{number:064x}", "key_alias": alias}
        for number, alias in enumerate(["a b", "a\nb", None, "sk-1234567890abcdef", "jwt:x", "a-b"])
    ]
    values, text = imported({"model_list": [deployment()]}, [*rows, {"token": "sk-unhashed"}])
    assert len(values["keys"]) == 7
    assert "sk-1234567890" not in text
    assert "sk-unhashed" not in text


def test_bounds_for_single_models_hold_for_their_key_or_team() -> None:
    bounds = {"model_rpm_limit": {"m": 5, "gone": 1}, "tags": ["a"]}
    spending = {"m": {"budget_limit": 2.5, "time_period": "1d"}}
    team = {"team_id": "t", "team_alias": "blue", "model_tpm_limit": {"m": 900}}
    values, text = imported(
        {"model_list": [deployment(input_cost_per_token=1)]},
        [row(team_id="t", metadata=bounds, model_max_budget=spending), team],
    )
    match = {"key": ["k"], "model": ["m"]}
    assert {"name": "key-requests-m", "scope": ["key"], "match": match, "kind": "requests", "limit": 5} in values[
        "limits"
    ]
    assert values["budgets"] == [
        {"name": "key-budget-m", "scope": ["key"], "match": match, "amount": "2.5", "per": "day"}
    ]
    assert values["limits"][0]["match"] == {"team": ["blue"], "model": ["m"]}
    assert "key k.model_rpm_limit.gone: is of a model that is left out" in text
    assert "key k.metadata: has no counterpart: tags" in text


def test_a_rule_for_a_team_without_keys_is_left_out_as_a_whole() -> None:
    """Without its match it would bound all others."""
    team = {"team_id": "empty", "max_parallel_requests": 3, "max_budget": 9}
    values, text = imported({"model_list": [deployment(input_cost_per_token=1)]}, [row(rpm_limit=5), team])
    assert values.keys().isdisjoint({"limits", "budgets"})
    found = [line for line in text.splitlines() if line.startswith("# ") and line.endswith("no key has this team")]
    assert len(found) == 2
    assert values.keys().isdisjoint({"teams"})
