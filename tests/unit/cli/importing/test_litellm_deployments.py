"""LiteLLM's deployments become workers and models."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from gateway.cli.importing.drafts import Draft
from gateway.cli.importing.litellm import LiteLLM
from tests.support.commands import called
from tests.unit.cli.importing.imports import deployment, imported, models, row


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


def test_an_address_that_is_not_a_url_leaves_its_deployment_out() -> None:
    _, text = imported({"model_list": [deployment(), deployment(api_base="http://["), deployment("n", api_key="k")]})
    assert "# model_list[1] (m): its address is not a URL" in text
