"""The paths that LiteLLM has and no other API: what a key may do and has spent, what models can do, health.

Source of the forms: LiteLLM's own client (litellm/proxy/client), the responses on https://docs.litellm.ai/docs/proxy
(virtual keys, health checks, model management), and what clients of these paths read: the spend and the budget of
their key, the context and the abilities of models.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Mapping, Sequence
from hashlib import sha256
from math import inf
from typing import Any
from urllib.parse import parse_qs

import msgspec

from gateway.auth import StoredKey
from gateway.config import Key
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import JSON_TYPE, Response, Route
from gateway.core.messages import ListModels, ModelCard
from gateway.core.money import NANO, Tariff
from gateway.core.ports import Dialect
from gateway.features import Parts
from gateway.kernel import Endpoint, Runtime
from gateway.kernel.call import Call
from gateway.kernel.models import list_models
from gateway.kernel.reading import identify, no_route
from gateway.kernel.way import OWN, Way
from gateway.light_task import become_task
from gateway.moments import iso
from gateway.ratelimit import BudgetRule, Subject
from gateway.ratelimit.model import LimitState, tightest

_encode = msgspec.json.Encoder().encode
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_PERIODS = {"day": "1d", "week": "7d", "month": "1mo"}
"""The periods of budgets as LiteLLM writes them; one in total has none there."""
_PER_TOKEN = NANO * 1_000_000
"""Prices here are nano for a million tokens, there they are for a token."""
_NOBODY = ["no-default-models"]
"""A list without a model means all models in LiteLLM; this name in it means none."""
_MINUTE_S = 60.0


class LiteLLMEndpoint(Endpoint):
    """One of these paths."""

    def __init__(self, answers: Answers, runtime: Runtime, dialect: Dialect, routes: Mapping[str, Route]) -> None:
        super().__init__(runtime, dialect, {**routes, "HEAD": routes["GET"]}, None)
        self._answers = answers
        self.way = Way(runtime.way.features, {**OWN, "read": self._read})

    async def _read(self, call: Call) -> None:
        """The innermost `read`."""
        call.pending = identify(call)
        if call.route is None:
            raise no_route(call)
        call.record.operation = call.route.name
        await call.way.receive(call)
        await become_task()
        call.client.watch(call.left)
        answer: Awaitable[Response] = getattr(self._answers, call.route.name)(call)
        await call.reply.respond(await answer)


class Answers:
    """The answers, by the names of their routes."""

    def __init__(self, parts: Parts) -> None:
        self._config = parts.config
        self._stored = parts.keys
        self._watched = parts.watched
        self._limiter = parts.offers.limiter

    async def liveness(self, call: Call) -> Response:
        return _json("I'm alive!")

    async def readiness(self, call: Call) -> Response:
        """As `/readyz`."""
        gateway = self._watched()
        if gateway.draining or gateway.starting:
            call.record.outcome = "refused"
            return _json({"status": "draining" if gateway.draining else "starting"}, 503)
        return _json({"status": "healthy"})

    async def model_info(self, call: Call) -> Response:
        """The models that the caller may use."""
        runtime = call.runtime

        def write(cards: Sequence[ModelCard]) -> Response:
            return _json({"data": [_model(card, runtime.models[card.name].tariff) for card in cards]})

        asked = ListModels(write=write)
        return list_models(runtime.models, runtime.patterns, asked, None, call.principal, runtime.active.draining)

    async def key_info(self, call: Call) -> Response:
        """The caller's own key. Raises GatewayError: FORBIDDEN for another one, OVERLOADED if the store of limits is
        away."""
        caller = call.principal
        key = self._key(caller.key)
        hashes = [] if key is None or key.hash is None else [key.hash.removeprefix("sha256:")]
        former = [one.hash.removeprefix("sha256:") for one in key.old] if isinstance(key, StoredKey) else []
        asked = parse_qs(call.request.query.decode("latin-1")).get("key")
        if asked is not None:
            digest = asked[-1] if _DIGEST.match(asked[-1]) else sha256(asked[-1].encode()).hexdigest()
            if digest not in (*hashes, *former):
                message = "a key may ask for itself alone; admins see others at /admin/v1/keys of the admin address"
                raise GatewayError(Kind.FORBIDDEN, message, param="key", code="another_key")
        models = [] if caller.usable is None else sorted(caller.usable) or _NOBODY
        info = {
            "key_alias": caller.key,
            "key_name": None,
            "team_id": caller.team,
            "user_id": None,
            "models": models,
            "aliases": {} if key is None else key.aliases,
            "expires": iso(key.expires.timestamp(), "seconds") if key is not None and key.expires is not None else None,
            "blocked": False,
            "metadata": {},
            **_limits(await self._states(caller.key, caller.team)),
        }
        return _json({"key": hashes[0] if hashes else None, "info": info})

    def _key(self, name: str) -> Key | StoredKey | None:
        """None for a caller with a token, or without a key."""
        stored = self._stored.keys if self._stored is not None else {}
        return self._config.keys.get(name) or stored.get(name)

    async def _states(self, key: str, team: str | None) -> list[LimitState]:
        """The limits that the key has for itself."""
        if self._limiter is None:
            return []
        states = await self._limiter.limiter.inspect(Subject(key, team))
        return [state for state in states if "key" in state.rule.scope]


def _limits(states: list[LimitState]) -> dict[str, Any]:
    """None where the key has no such limit. The sum that it spent is known for the period of a budget."""
    minute = [state for state in states if state.rule.per_s == _MINUTE_S]
    limits = {
        "rpm_limit": tightest(minute, "requests"),
        "tpm_limit": tightest(minute, "tokens"),
        "max_parallel_requests": tightest(states, "concurrency"),
    }
    found: dict[str, Any] = {name: None if state is None else state.limit for name, state in limits.items()}
    found |= dict.fromkeys(("spend", "max_budget", "budget_duration", "budget_reset_at"))
    if (budget := tightest(states, "cost")) is not None and isinstance(rule := budget.rule, BudgetRule):
        ends = rule.calendar.ends(time.time())
        found |= {
            "spend": budget.used / NANO,
            "max_budget": budget.limit / NANO,
            "budget_duration": _PERIODS.get(rule.calendar.per),
            "budget_reset_at": None if ends == inf else iso(ends, "seconds"),
        }
    return found


def _model(card: ModelCard, tariff: Tariff | None) -> dict[str, Any]:
    """One model. None where its options do not say it."""

    def has(feature: str) -> bool | None:
        if card.features is None:
            return False if feature in card.lacks else None
        return feature in card.features and feature not in card.lacks

    rates = tariff.now() if tariff is not None else None
    info = {
        "id": card.name,
        "max_tokens": card.max_context,
        "max_input_tokens": card.max_context,
        "supports_function_calling": has("tools"),
        "supports_vision": has("vision"),
        "supports_reasoning": has("reasoning"),
        "supports_response_schema": has("json_schema"),
        "input_cost_per_token": None if rates is None else rates.input / _PER_TOKEN,
        "cache_read_input_token_cost": None if rates is None else rates.cached / _PER_TOKEN,
        "output_cost_per_token": None if rates is None else rates.output / _PER_TOKEN,
    }
    return {"model_name": card.name, "litellm_params": {"model": card.name}, "model_info": info}


def _json(value: Any, status: int = 200) -> Response:
    return Response(status, [JSON_TYPE], _encode(value))
