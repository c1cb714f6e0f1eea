"""Sections of LiteLLM's file: whatever they hold, a configuration without secrets comes out."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support import litellm
from tests.support.sampled import examples
from tests.unit.cli.importing.imports import deployment, imported, row


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
