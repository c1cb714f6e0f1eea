"""`dragoman import litellm`: its file is a configuration, holds no secret, and lets nobody do more than before."""

from __future__ import annotations

import json
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.app import KNOWN
from gateway.auth import new_key
from gateway.cli.importing.drafts import Draft, plain
from gateway.cli.importing.litellm import LiteLLM
from gateway.cli.importing.litellm_budgets import period
from gateway.cli.importing.litellm_keys import take_in
from gateway.config import load
from gateway.config.source import read_yaml
from tests.support import litellm
from tests.support.commands import called
from tests.support.harness import Stack
from tests.support.redis_server import Server
from tests.support.sampled import examples

TEAMS: dict[str, Any] = {
    "Team-Blue": {"limits": {"team-tokens": 1_000_000}, "budgets": {"team-budget": "500"}},
    "red": {"models": ["llama", "gpt-4o", "gpt-4o@api.openai.com"]},
}
"""Those of the sample installation."""
VARIABLES = dict.fromkeys(litellm.ENVIRONMENT, "a-secret-of-the-environment")


def imported(config: dict[str, Any], rows: object = ()) -> tuple[dict[str, Any], str]:
    """The values and the text of gateway.yaml, which is checked as far as it can be without secrets."""
    draft = Draft()
    take_in(draft, LiteLLM(draft, plain(config), lambda name: None), plain(rows if isinstance(rows, list) else []))
    draft.settle()
    text = "\n".join(draft.lines())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "gateway.yaml")
        path.write_text(text, "utf-8")
        load(path, KNOWN, {}, only=())
        assert read_yaml(path, "gateway.yaml")[0] == draft.values
    assert not any(litellm.MARK in one for one in draft.todo)
    return draft.values, text


def deployment(name: str = "m", **params: object) -> dict[str, Any]:
    return {"model_name": name, "litellm_params": {"model": "hosted_vllm/m", "api_base": "http://w:1/v1", **params}}


def models(*entries: dict[str, Any], **sections: object) -> dict[str, Any]:
    values, _ = imported({"model_list": list(entries), **sections})
    found: dict[str, Any] = values["models"]
    return found


def row(**options: object) -> dict[str, Any]:
    return {"token": "0" * 64, "key_alias": "k", **options}


def key(**options: object) -> dict[str, Any]:
    """The entry of one key beside the models m and n, of a team that may use n."""
    team = {"team_id": "t", "team_alias": "blue", "models": ["n"]}
    config = {"model_list": [deployment(), deployment("n")]}
    values, _ = imported(config, [row(**options), team, {"team_id": "shut", "max_budget": 0}])
    entry: dict[str, Any] = values["keys"]["k"]
    return entry


def test_the_sample_installation_passes_check_and_holds_no_secret(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(litellm.config(), sort_keys=False))
    (tmp_path / "keys.json").write_text(json.dumps(litellm.rows()))
    words = ("import", "litellm", "config.yaml", "--keys", "keys.json", "--out", "gateway.yaml")
    made = called(*words, folder=tmp_path)
    assert (made.returncode, made.stdout) == (1, "")
    assert "8 models, 40 keys and 2 teams: " in made.stderr.splitlines()[-1]
    text = (tmp_path / "gateway.yaml").read_text()
    assert litellm.MARK not in text + made.stderr
    for wanted in ("master_key", "database_url", "success_callback.langfuse", "claude", "x-key", "LANGFUSE_SECRET_KEY"):
        assert any(wanted in line for line in text.splitlines() if line.lstrip().startswith("#")), wanted
    for line in made.stderr.splitlines():
        if " to the file " in line:
            (tmp_path / line.partition(" to the file ")[2].partition(",")[0]).write_text("a-secret-of-a-file")
    checked = called("check", "gateway.yaml", folder=tmp_path, **VARIABLES)
    assert (checked.returncode, checked.stdout[:35]) == (0, "gateway.yaml: 8 models, 40 keys, 13"), checked.stderr
    values = yaml.safe_load(text)
    assert (values["compat"], values["listen"]) == ("litellm", {"port": 4000, "host": "0.0.0.0"})
    assert values["spend"] == {"currency": "USD", "daily": True}
    assert [budget["per"] for budget in values["budgets"]] == ["week"]
    assert values["teams"] == TEAMS
    assert values["models"]["qwen"]["workers"] == ["http://gpu-2:8000", "http://gpu-3:8000"]
    assert values["models"]["gpt-4o"]["split"] == [{"model": "gpt-4o@api.openai.com", "share": 0.25}]
    assert values["models"]["gpt-4o"]["fallback"] == ["gpt-4o@api.openai.com", "qwen"]
    assert values["reply_cache"] == {"store": "redis"}
    assert values["request_policies"]["llama"]["defaults"] == {"temperature": 0.2, "max_tokens": 64}
    again = called(*words, folder=tmp_path)
    assert (again.returncode, again.stderr) == (2, "dragoman: gateway.yaml cannot be made: File exists\n")


def test_keys_may_go_into_the_store(tmp_path: Path) -> None:
    """gateway.yaml has none of them then, and passes with an admin's key; teams are among its lines."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(litellm.config(), sort_keys=False))
    rows = litellm.rows()
    rows["teams"].append({"team_id": "later", "rpm_limit": 3})  # a team whose keys are still to be made
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    words = ("import", "litellm", "config.yaml", "--keys", "rows.json", "--stored-keys", "keys.jsonl")
    made = called(*words, "--out", "gateway.yaml", folder=tmp_path)
    assert made.returncode == 1
    assert "8 models, 40 keys and 3 teams: " in made.stderr.splitlines()[-1]
    assert "keys import --key-file admin.key keys.jsonl" in made.stderr
    values = yaml.safe_load((tmp_path / "gateway.yaml").read_text())
    assert values["keys_store"] == "redis"
    assert values.keys().isdisjoint({"keys", "teams"})
    assert [budget["match"] for budget in values["budgets"]] == [{"key": ["app-3"]}]
    lines = [json.loads(line) for line in (tmp_path / "keys.jsonl").read_text().splitlines()]
    teams, keys = lines[:3], lines[3:]
    own = TEAMS | {"later": {"limits": {"team-requests": 3}}}
    assert teams == [{"kind": "team", "name": name, **team} for name, team in own.items()]
    assert len(keys) == 40
    assert {one["name"] for one in keys if one.get("disabled")} == {"app-7"}
    assert litellm.MARK not in (tmp_path / "keys.jsonl").read_text()
    for line in made.stderr.splitlines():
        if " to the file " in line:
            (tmp_path / line.partition(" to the file ")[2].partition(",")[0]).write_text("a-secret-of-a-file")
    (tmp_path / "admins.yaml").write_text(new_key("root")[1])
    checked = called("check", "gateway.yaml", folder=tmp_path, **VARIABLES)
    assert (checked.returncode, checked.stdout[:35]) == (0, "gateway.yaml: 8 models, 0 keys, 13 "), checked.stderr
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model_list": [deployment()]}))
    without = called(*words, folder=tmp_path)
    assert (without.returncode, "names none" in without.stderr) == (2, True)


def test_without_keys_other_machines_are_not_served() -> None:
    values, _ = imported({"model_list": [deployment(input_cost_per_token=1e-6)]})
    assert values["listen"] == {"port": 4000}
    assert values["spend"] == {"currency": "USD"}, "sums for reports need Redis"


def test_keys_of_the_sample_work_with_their_secrets() -> None:
    with Stack() as worker:
        config = litellm.config(worker.sim.url)
        config["model_list"] = [one for one in config["model_list"] if litellm.MARK not in json.dumps(one)]
        config["model_list"][0]["litellm_params"]["model"] = "hosted_vllm/sim"
        del config["router_settings"]
        rows = [one for kind in litellm.rows().values() for one in kind]
        values, _ = imported(config, rows)
        with Stack((), values, environ=VARIABLES) as stack:

            def status(number: int, model: str) -> int:
                body = {"model": model, "messages": [{"role": "user", "content": "a"}]}
                secret = {"authorization": f"Bearer {litellm.secret(number)}"}
                return httpx.post(stack.url + "/chat/completions", json=body, headers=secret, timeout=30).status_code

            assert status(0, "llama") == 200  # its team's key, for all models
            assert status(3, "llama") == 200
            assert status(3, "qwen") == 404  # neither the key nor its team may use it
            assert status(7, "llama") == 401  # it is blocked
            assert status(40, "llama") == 401  # there is none
            record = next(one for one in stack.records() if one["key"] == "app-3")
            assert (record["team"], record["model"], record["status"]) == ("red", "llama", 200)
        asked = [json.loads(one.body) for one in worker.sim.entries if one.body]
        assert [body["max_tokens"] for body in asked] == [64, 64]


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


def test_deployments_that_agree_are_workers_and_others_are_models() -> None:
    """Workers of one model may differ in speed, room, and how long they are waited for."""
    found = models(
        deployment(weight=1, timeout=5, max_parallel_requests=4),
        deployment(api_base="http://w:2", weight=3, timeout=9, input_cost_per_token=1e-6),
        deployment(api_base="http://w:3", weight=4, api_key="os.environ/OTHER"),
        deployment(api_base="http://w:3", weight=4, model="hosted_vllm/n"),
        deployment(api_base="http://w:4", weight=4, input_cost_per_token=2e-6),
    )
    assert found["m"]["workers"] == ["http://w:1", "http://w:2"]
    assert found["m"]["worker_options"] == {"http://w:1": {"weight": 0.5, "capacity": 4}, "http://w:2": {"weight": 1.5}}
    assert (found["m"]["deadlines"], found["m"]["price"]) == ({"first_byte_s": 9}, {"input": "1"})
    others = ["m@2", "m@n", "m@4"]
    assert [one for one in found if one != "m"] == others
    assert [name for name, model in found.items() if model.get("listed", True)] == ["m"]
    assert [model.get("upstream_model") for model in found.values()] == [None, "m", "n", "m"], "as LiteLLM asked"
    assert found["m"]["split"] == [{"model": name, "share": 0.25} for name in others]
    assert found["m"]["fallback"] == others
    assert found["m@4"]["fallback"] == ["m", "m@2", "m@n"]
    alike = models(deployment(max_parallel_requests=4), deployment(api_base="http://w:2", max_parallel_requests=4))
    assert (alike["m"]["max_in_flight"], "worker_options" in alike["m"]) == (4, False)
    ordered = models(deployment(order=2), deployment(api_base="http://x:2", order=1))
    assert (ordered["m"]["workers"], ordered["m"]["fallback"]) == (["http://x:2"], ["m@w"])
    assert "split" not in ordered["m"]


def test_names_that_a_pattern_covers_are_models_once_somebody_names_them() -> None:
    """LiteLLM asks the nearest pattern; names that nobody mentions would be guesses."""
    pattern = {"model_name": "openai/*", "litellm_params": {"model": "openai/*", "api_key": "os.environ/A"}}
    wide = {"model_name": "*", "litellm_params": {"model": "hosted_vllm/*", "api_base": "http://w:9"}}
    config = {
        "model_list": [deployment(), pattern, wide],
        "router_settings": {"fallbacks": [{"m": ["openai/gpt-4o", "plain"]}], "model_group_alias": {"x": "openai/o3"}},
    }
    draft = Draft()
    LiteLLM(draft, config, lambda name: None, ["openai/gpt-4.1", "openai/*", "m"])
    found = draft.values["models"]
    assert {name: model.get("upstream_model") for name, model in found.items()} == {
        "m": None,
        "openai/gpt-4.1": "gpt-4.1",
        "openai/gpt-4o": "gpt-4o",
        "openai/o3": "o3",
        "plain": None,
    }
    assert found["plain"]["workers"] == ["http://w:9"]
    assert found["m"]["fallback"] == ["openai/gpt-4o", "plain"]
    assert found["openai/o3"]["aliases"] == ["x"]
    draft.settle()
    assert "model_list[1] (openai/*: openai): this model is a pattern: " in "\n".join(draft.lines())


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


def test_models_of_litellms_interface_come_from_its_answer(tmp_path: Path) -> None:
    """Those of its file stand in the answer, too, and count once."""
    made = {
        "model_name": "made",
        "litellm_params": {"model": "hosted_vllm/x", "api_base": "http://w:7/v1", "use_in_pass_through": False},
        "model_info": {"id": "1", "db_model": True, "mode": "chat", "max_tokens": 9, "input_cost_per_token": 1e-6},
    }
    listed = {**deployment(), "model_info": {"id": "2", "db_model": False, "max_tokens": 9}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model_list": [deployment()]}))
    (tmp_path / "models.json").write_text(json.dumps({"data": [listed, made]}))
    imported = called("import", "litellm", "config.yaml", "--models", "models.json", folder=tmp_path)
    values = yaml.safe_load(imported.stdout)["models"]
    assert values["m"]["workers"] == ["http://w:1"]
    assert values["made"] == {
        "backend": "vllm",
        "workers": ["http://w:7"],
        "upstream_model": "x",
        "price": {"input": "1"},
    }
    assert "use_in_pass_through: has no counterpart" in imported.stdout
    assert "give the model made its key, if it needs one" in imported.stderr
    (tmp_path / "models.json").write_text("[]")
    refused = called("import", "litellm", "config.yaml", "--models", "models.json", folder=tmp_path)
    assert (refused.returncode, "is not what /model/info answers" in refused.stderr) == (2, True)


def test_prices_are_those_of_litellms_list_where_a_model_has_none(tmp_path: Path) -> None:
    """And 0, with a comment, if there is none at all: without a price no budget would be left."""
    params = {"model": "azure/eu", "api_base": "https://e.openai.azure.com", "api_key": "os.environ/A"}
    entries = [
        {"model_name": "a", "litellm_params": params, "model_info": {"base_model": "azure/gpt-4o"}},
        {"model_name": "b", "litellm_params": {"model": "mistral/large"}},
        {"model_name": "c", "litellm_params": {"model": "gpt-4o", "input_cost_per_token": 1e-6}},
    ]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model_list": entries}))
    known = {"azure/gpt-4o": {"input_cost_per_token": 2.5e-6, "output_cost_per_token": 1e-5}, "sample_spec": "x"}
    known |= {"mistral/large": {"output_cost_per_token": 6e-6}, "gpt-4o": {"input_cost_per_token": 9}}
    (tmp_path / "prices.json").write_text(json.dumps(known))
    made = called("import", "litellm", "config.yaml", "--prices", "prices.json", folder=tmp_path)
    values = yaml.safe_load(made.stdout)
    prices = {name: model["price"] for name, model in values["models"].items()}
    assert prices == {"a": {"input": "2.5", "output": "10"}, "b": {"output": "6"}, "c": {"input": "1"}}
    values, text = imported({"model_list": [deployment()]}, [row(max_budget=5, budget_duration="30d")])
    assert values["keys"]["k"]["limits"] == {"budget": "5"}
    assert values["models"]["m"]["price"] == {"input": "0", "output": "0"}
    assert "price of m: is in LiteLLM's own list" in text


def test_a_rule_for_a_team_without_keys_is_left_out_as_a_whole() -> None:
    """Without its match it would bound all others."""
    team = {"team_id": "empty", "max_parallel_requests": 3, "max_budget": 9}
    values, text = imported({"model_list": [deployment(input_cost_per_token=1)]}, [row(rpm_limit=5), team])
    assert values.keys().isdisjoint({"limits", "budgets"})
    found = [line for line in text.splitlines() if line.startswith("# ") and line.endswith("no key has this team")]
    assert len(found) == 2
    assert values.keys().isdisjoint({"teams"})


def test_what_is_written_in_other_ways_counts_too() -> None:
    """One callback as text, a weight that only some have, TLS of the cache, names of groups beside patterns."""
    groups = {"access_groups": ["large"]}
    values, text = imported(
        {
            "model_list": [
                deployment(weight=3, output_cost_per_image=0.04) | {"model_info": groups},
                deployment(api_base="http://x:1"),
                deployment("*", model="hosted_vllm/*", api_base="http://w:9"),
            ],
            "litellm_settings": {"callbacks": "prometheus", "cache_params": {"host": "r", "port": 1, "ssl": True}},
            "router_settings": {"redis_host": "r", "redis_port": 1},
        },
        [
            row(models=["large", "all-team-models"], model_rpm_limit={"a/b": 3, "a-b": 4}),
            row(token="1" * 64, key_alias="l", budget_limits=[{"budget_duration": "1d", "max_budget": 2}, {"x": 1}]),
        ],
    )
    assert values["models"]["m"]["worker_options"] == {"http://w:1": {"weight": 1.5}, "http://x:1": {"weight": 0.5}}
    assert values["models"]["m"]["price"] == {"image": "0.04"}
    assert list(values["models"]) == ["m"], "nobody but a key's limit names others"
    assert values["redis"] == {"addresses": ["r:1"], "tls": True}
    assert values["keys"]["k"]["models"] == []
    assert values["budgets"][0] == {
        "name": "key-budget-1d",
        "scope": ["key"],
        "match": {"key": ["l"]},
        "amount": "2",
        "per": "day",
    }
    for line in ("callbacks.prometheus: needs no option", "budget_limits: is of another form: THE KEY MAY SPEND MORE"):
        assert line in text
    values, _ = imported(
        {"model_list": [deployment("a/b"), deployment("a-b")]}, [row(model_rpm_limit={"a/b": 3, "a-b": 4})]
    )
    assert len({limit["name"] for limit in values["limits"]}) == 2


def test_defaults_of_the_router_are_those_of_all_models() -> None:
    values, text = imported(
        {
            "model_list": [deployment(), deployment("n", max_parallel_requests=2)],
            "router_settings": {
                "default_max_parallel_requests": 9,
                "default_litellm_params": {"temperature": 0.1, "other": 1},
                "retry_policy": {"TimeoutErrorRetries": 3},
            },
            "litellm_settings": {"callbacks": ["prometheus", "langfuse"], "cache": True, "cache_params": {"ttl": 60}},
            "general_settings": {"completion_model": "m", "enforce_user_param": True, "allowed_ips": ["10.0.0.1"]},
            "guardrails": [{"guardrail_name": "pii", "litellm_params": {"guardrail": "presidio"}}],
        }
    )
    assert [values["models"][name]["max_in_flight"] for name in ("m", "n")] == [9, 2]
    assert values["request_policies"] == {"default": {"defaults": {"temperature": 0.1}}}
    assert values["reply_cache"] == {"ttl_s": 60}
    assert (values["dialects"], values["end_users"]) == ({"openai": {"default_model": "m"}}, {"required": True})
    for line in (
        "guardrails: is the section guards",
        "callbacks.prometheus: needs no option",
        "callbacks.langfuse: is prompt_log with traces",
        "allowed_ips: has no counterpart: CALLERS MAY DO MORE",
        "retry_policy: has no counterpart",
        "default_litellm_params.other: has no counterpart",
    ):
        assert line in text
    semantic, text = imported(
        {
            "model_list": [deployment()],
            "litellm_settings": {"cache": True, "cache_params": {"type": "qdrant-semantic"}},
        }
    )
    assert "reply_cache" not in semantic
    assert "a cache of the kind qdrant-semantic" in text


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


def test_an_address_that_is_not_a_url_leaves_its_deployment_out() -> None:
    _, text = imported({"model_list": [deployment(), deployment(api_base="http://["), deployment("n", api_key="k")]})
    assert "# model_list[1] (m): its address is not a URL" in text


def test_fallbacks_follow_the_router_and_what_is_left_out_is_named() -> None:
    config = {
        "model_list": [deployment(), deployment("n"), deployment("o")],
        "litellm_settings": {"fallbacks": [{"m": ["o"]}], "default_fallbacks": ["o"], "num_retries": 9},
        "router_settings": {
            "fallbacks": [{"m": ["n", "gone"]}],
            "context_window_fallbacks": [{"m": ["o"]}],
            "num_retries": 1,
        },
    }
    values, text = imported(config)
    assert values["models"]["m"]["fallback"] == ["n", "o"]
    assert values["models"]["m"]["fallback_on"] == ["transient", "account", "context_length"]
    assert values["models"]["n"]["fallback"] == ["o"]
    assert "fallback" not in values["models"]["o"]
    assert values["retry"] == {"attempts": 2}
    assert "# fallbacks.m.gone: this model is left out" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "config.yaml is not YAML: ParserError"),
        ("- a", "config.yaml is not a mapping of options"),
        ("model_list: []", "there is nothing to write: must hold at least one model"),
        ("model_list: &a [*a]", "config.yaml is not YAML: ValueError"),
    ],
)
def test_what_cannot_be_imported_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    made = called("import", "litellm", "config.yaml", folder=tmp_path)
    assert made.returncode in (1, 2)
    assert made.stdout == ""
    assert made.stderr.startswith(f"dragoman: {said}")


def test_rows_may_be_lines_but_not_hashes_alone(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model_list": [deployment()]}))
    (tmp_path / "a.json").write_text(json.dumps(row()) + "\n" + json.dumps({"team_id": "t", "keys": []}) + "\n")
    (tmp_path / "b.json").write_text(json.dumps({"keys": [{"token": "1" * 64}], "total_pages": 1}))
    (tmp_path / "c.json").write_text("[1]")
    (tmp_path / "d.json").write_text(json.dumps({"keys": ["1" * 64]}))
    words = ("import", "litellm", "config.yaml", "--keys", "a.json", "--keys", "b.json")
    made = called(*words, folder=tmp_path)
    assert (made.returncode, set(yaml.safe_load(made.stdout)["keys"])) == (0, {"k", "litellm-111111111111"})
    strange = [{"token": {"a": 1}, "team_id": "t"}, {"token": 3}, {"token": "\ud800", "key_alias": "half"}]
    (tmp_path / "e.json").write_text(json.dumps(strange))
    made = called(*words, "--keys", "e.json", folder=tmp_path)
    assert (made.returncode, "half" in yaml.safe_load(made.stdout)["keys"]) == (1, True), made.stderr
    assert "# --keys: 2 rows have a token that is not text" in made.stdout
    (tmp_path / "c.json").write_text("[" * 100_000)
    deep = called(*words, "--keys", "c.json", folder=tmp_path)
    assert deep.stderr == "dragoman: c.json is neither JSON nor lines of JSON\n"
    (tmp_path / "c.json").write_text("[1]")
    refused = called(*words, "--keys", "c.json", folder=tmp_path)
    assert refused.stderr == "dragoman: c.json holds something other than rows of keys, teams and budgets\n"
    bare = called(*words, "--keys", "d.json", folder=tmp_path)
    assert bare.stderr.startswith("dragoman: d.json holds hashes without options: ")


@pytest.mark.long
def test_keys_beyond_the_room_of_a_configuration_need_a_file(tmp_path: Path) -> None:
    rows = [row(token=f"{number:064x}", key_alias=f"key-{number}", blocked=True) for number in range(6000)]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model_list": [deployment()]}))
    (tmp_path / "keys.json").write_text(json.dumps(rows))
    made = called("import", "litellm", "config.yaml", "--keys", "keys.json", folder=tmp_path)
    assert "`keys_file` names: gateway.yaml is too large" in made.stderr
    entries = made.stdout.partition("\nkeys:\n")[2]
    (tmp_path / "keys.yaml").write_text("\n".join(line.removeprefix("  ") for line in entries.splitlines()))
    (tmp_path / "gateway.yaml").write_text(made.stdout.partition("\nkeys:\n")[0] + "\nkeys_file: keys.yaml\n")
    checked = called("check", "gateway.yaml", folder=tmp_path)
    assert "1 model, 6000 keys" in checked.stdout, checked.stderr


SECTIONS = ("litellm_params", "router_settings", "litellm_settings", "general_settings", "row", "team")
NAMES = """model api_base api_key rpm tpm weight order timeout temperature max_tokens stop extra_headers
    extra_body organization max_parallel_requests input_cost_per_token additional_drop_params
    fallbacks default_fallbacks num_retries model_group_alias redis_host redis_port redis_url
    cache_params allowed_fails cooldown_time max_budget budget_duration max_request_size_mb
    global_max_parallel_requests rpm_limit tpm_limit models aliases expires blocked key_alias
    default_litellm_params default_max_parallel_requests cache callbacks completion_model base_model
    budget_limits model_rpm_limit model_max_budget spend model_name
    team_id metadata other"""
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 10**13)
    | st.floats()
    | st.sampled_from(["m", "1e5", "no", "http://w:2", "os.environ/A", "a\nb: c", "7d", "\ud800"])
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["m", "x-a", "api_key"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=examples(200), deadline=None)
@given(st.dictionaries(st.tuples(st.sampled_from(SECTIONS), st.sampled_from(NAMES.split())), VALUES, max_size=6))
@example({("litellm_params", "max_parallel_requests"): 2.0**63})
@example({("litellm_params", "model"): False, ("litellm_params", "other"): False})
@example({("litellm_params", "temperature"): float("inf"), ("router_settings", "other"): float("nan")})
@example({("litellm_params", "temperature"): {None: 1}})
@example({("row", "litellm_budget_table"): [1], ("team", "litellm_budget_table"): "b"})
def test_whatever_is_written_there_a_configuration_without_secrets_comes_out(
    options: dict[tuple[str, str], Any],
) -> None:
    """Of values that have no sense, too; and an option that is not known has a comment."""
    secret = f"sk-{litellm.MARK}"
    parts: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for (section, name), value in options.items():
        parts[section][name] = value
    held, team, params = parts.pop("row"), parts.pop("team"), parts.pop("litellm_params")
    secrets: dict[str, Any] = {"api_key": secret, "extra_headers": {"x-key": secret}, "extra_body": {"api_key": secret}}
    parts["router_settings"] |= {"redis_password": secret}
    parts["general_settings"] |= {"master_key": secret, "database_url": f"postgresql://u:{litellm.MARK}@db"}
    config = {
        "model_list": [
            deployment(),
            deployment("n", **params),
            deployment(**secrets),
            deployment("o", api_base=f"http://u:{litellm.MARK}@w", weight=1),
            deployment("o", weight=2),
        ],
        "environment_variables": {"A": secret},
        "credential_list": [{"credential_name": "c", "credential_values": {"api_key": secret}}],
        **parts,
    }
    rows = [{"team_id": "t", **held, "token": "0" * 64}, {"token": secret}, {"team_alias": "b", **team, "team_id": "t"}]
    values, text = imported(config, rows)
    assert litellm.MARK not in text
    of_model = params if "n" in values["models"] else {}  # one comment is for all options of one that is left out
    for where, given_there in (("litellm_params", of_model), ("router_settings", parts["router_settings"])):
        if given_there.get("other") not in (None, "", [], {}):
            assert f"{where}.other: has no counterpart" in text
