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


def client_routes(config: Config) -> Routes:
    return {"openai": ROUTES} if config.compat == "litellm" else {}


def path_alias(config: Config) -> Callable[[str], str | None] | None:
    return _without_version if config.compat == "litellm" else None


def _without_version(path: str) -> str | None:
    return path.removeprefix(_VERSION) if path.startswith(f"{_VERSION}/") else None


def build(parts: Parts) -> Built | None:
    if parts.config.compat != "litellm":
        return None
    from gateway.features.litellm.answers import Answers, LiteLLMEndpoint  # not imported where it is off

    return Built(endpoint=partial(LiteLLMEndpoint, Answers(parts)))
