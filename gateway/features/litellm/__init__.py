"""The paths of LiteLLM's proxy, for clients and probes that were set up for it: `compat: litellm`.

Each path below `/v1` answers without it, too. The paths that only LiteLLM has are in answers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gateway.config import Config
from gateway.core.http import Route
from gateway.features import Built, Parts, Routes

ROUTES = (
    Route("GET", "/key/info", "key_info", absolute=True),
    Route("GET", "/v1/model/info", "model_info", absolute=True),
    Route("GET", "/health/readiness", "readiness", absolute=True, open=True),
    Route("GET", "/health/liveliness", "liveness", absolute=True, open=True),
    Route("GET", "/health/liveness", "liveness", absolute=True, open=True),
)
_VERSION = "/v1"
_KEYS = "keys are made, changed and listed at /admin/v1/keys of `metrics.listen`, by `dragoman keys` or on the console"
_TEAMS = "teams are made and changed at /admin/v1/teams of `metrics.listen`, by `dragoman teams` or on the console"
_USERS = "the users behind a key are named by requests, as `end_users` says"
_MODELS = "models stand in the configuration, which a reload reads again"
_SPENT = "`dragoman spend` and /spend.json of `metrics.listen` have the sums"
_HEALTH = "/health/readiness is for probes, and `dragoman check --probe` asks each worker"
_ELSEWHERE = {
    **dict.fromkeys(("key", "sso"), _KEYS),
    **dict.fromkeys(("team", "organization", "budget"), _TEAMS),
    **dict.fromkeys(("user", "customer", "end_user"), _USERS),
    **dict.fromkeys(("model", "model_group", "config"), _MODELS),
    **dict.fromkeys(("spend", "global"), _SPENT),
    "health": _HEALTH,
}
"""The first segments of LiteLLM's paths for operators, and what serves them here."""


def client_routes(config: Config) -> Routes:
    return {"openai": ROUTES} if config.compat == "litellm" else {}


def path_alias(config: Config) -> Callable[[str], str | None] | None:
    return _without_version if config.compat == "litellm" else None


def _without_version(path: str) -> str | None:
    return path.removeprefix(_VERSION) if path.startswith(f"{_VERSION}/") else None


def path_advice(config: Config) -> Callable[[str], str] | None:
    return _elsewhere if config.compat == "litellm" else None


def _elsewhere(path: str) -> str:
    found = _ELSEWHERE.get(path.strip("/").partition("/")[0])
    return f"; {found} (docs/from-litellm.md)" if found else ""


def build(parts: Parts) -> Built | None:
    if parts.config.compat != "litellm":
        return None
    from gateway.features.litellm.answers import Answers, LiteLLMEndpoint  # not imported where it is off

    return Built(endpoint=partial(LiteLLMEndpoint, Answers(parts)))
