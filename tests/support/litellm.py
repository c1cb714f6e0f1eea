"""A sample installation of LiteLLM: eight models, two teams, forty keys, two budgets; and the secrets that it holds."""

from __future__ import annotations

import hashlib
from typing import Any

MARK = "MARKER"
"""Part of each secret of the configuration: it may stand nowhere in what is written."""
ENVIRONMENT = ("AZURE_EU_KEY", "OPENAI_API_KEY", "REDIS_PASSWORD")
"""Variables that hold secrets here and there."""


def secret(number: int) -> str:
    """The secret of a key, which LiteLLM keeps as its SHA-256."""
    return f"sk-{number:04d}aBcDeFgHiJkLmNoPqR"


def config(worker: str = "http://gpu-1:8000") -> dict[str, Any]:
    """config.yaml. worker: the address of the model `llama`."""

    def model(name: str, info: dict[str, Any] | None = None, **params: object) -> dict[str, Any]:
        return {"model_name": name, "litellm_params": params} | ({"model_info": info} if info else {})

    priced = {"input_cost_per_token": 2.5e-06, "output_cost_per_token": 1e-05, "mode": "chat"}
    return {
        "model_list": [
            model(
                "llama", priced, model="hosted_vllm/m", api_base=f"{worker}/v1", rpm=600, temperature=0.2, max_tokens=64
            ),
            model("qwen", model="hosted_vllm/Qwen/Qwen3", api_base="http://gpu-2:8000/v1", api_key="none"),
            model("qwen", model="hosted_vllm/Qwen/Qwen3", api_base="http://gpu-3:8000/v1", api_key="none"),
            model(
                "gpt-4o",
                priced | {"access_groups": ["large"]},
                model="azure/gpt4o-eu",
                api_base="https://eu.openai.azure.com/",
                api_key="os.environ/AZURE_EU_KEY",
                api_version="2024-10-21",
                weight=3,
            ),
            model("gpt-4o", model="openai/gpt-4o", api_key=f"sk-{MARK}-literal", weight=1),
            model("o4-mini", model="o4-mini", additional_drop_params=["temperature"], timeout=120),
            model("embed", {"mode": "embedding"}, model="openai/bge", api_base="http://gpu-4:8000/v1", api_key="none"),
            model(
                "codestral",
                model="mistral/codestral-latest",
                api_key=f"{MARK}-mistral",
                extra_headers={"x-tenant": "a"},
            ),
            model("tgi", model="huggingface/tgi", api_base="http://gpu-5:8080", extra_headers={"x-key": f"{MARK}-key"}),
            model("claude", model="anthropic/claude-sonnet-4", api_key=f"sk-ant-{MARK}"),
        ],
        "router_settings": {
            "routing_strategy": "latency-based-routing",
            "num_retries": 2,
            "model_group_alias": {"gpt-4": "gpt-4o"},
            "redis_host": "redis",
            "redis_port": 6379,
            "redis_password": "os.environ/REDIS_PASSWORD",
        },
        "litellm_settings": {
            "request_timeout": 600,
            "fallbacks": [{"gpt-4o": ["qwen"]}, {"llama": ["qwen"]}],
            "context_window_fallbacks": [{"llama": ["gpt-4o"]}],
            "success_callback": ["langfuse"],
            "cache": True,
            "drop_params": True,
        },
        "general_settings": {
            "master_key": f"sk-{MARK}-master",
            "database_url": f"postgresql://litellm:{MARK}@db:5432/litellm",
            "global_max_parallel_requests": 500,
        },
        "environment_variables": {"LANGFUSE_SECRET_KEY": f"{MARK}-langfuse"},
    }


def rows() -> dict[str, list[dict[str, Any]]]:
    """Rows of keys, teams and budgets, as the database and the admin API print them."""
    teams = [
        {
            "team_id": "6f1c",
            "team_alias": "Team Blue",
            "max_budget": 500.0,
            "budget_duration": "30d",
            "tpm_limit": 10**6,
        },
        {"team_id": "9a2e", "team_alias": "red", "models": ["llama", "large"], "blocked": False},
    ]
    keys = [
        {
            "token": hashlib.sha256(secret(number).encode()).hexdigest(),
            "key_name": f"sk-...{secret(number)[-4:]}",
            "key_alias": f"app {number}" if number % 4 else None,
            "team_id": teams[number % 2]["team_id"],
            "models": [[], ["gpt-4"], ["all-team-models"], ["llama", "claude"]][number % 4],
            "rpm_limit": 600,
            "spend": 1.25,
            "expires": "2099-01-01T00:00:00" if number % 5 == 0 else None,
            "blocked": number == 7,
            "budget_id": "b1" if number == 3 else None,
            "metadata": {"owner": f"{MARK}@example.com"} if number == 1 else {},
        }
        for number in range(40)
    ]
    return {"keys": keys, "teams": teams, "budgets": [{"budget_id": "b1", "max_budget": 20, "budget_duration": "7d"}]}
