"""LiteLLM's config.yaml as gateway.yaml. Its options: https://docs.litellm.ai/docs/proxy/config_settings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from itertools import chain, zip_longest
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from gateway.app import KNOWN
from gateway.cli.importing.drafts import Draft, Options
from gateway.config.faults import masked

_ENVIRONMENT = "os.environ/"
_PORT = 4000
_SECRET = re.compile(r"key|token|secret|auth|password|cookie|credential", re.I)
_PATTERN = "is a pattern: names in fallbacks, aliases and keys are models of their own, others need an entry each"
_OPENAI_NAMES = re.compile(r"(gpt-|chatgpt-|o\d|text-embedding-|whisper|tts-|dall-e)")


class _Provider(NamedTuple):
    """The backend for a prefix of LiteLLM's model names, the address it means by itself, and the variable in which
    LiteLLM looks for its key."""

    backend: str
    base: str | None = None
    variable: str | None = None


_PROVIDERS = {
    "openai": _Provider("openai", "https://api.openai.com", "OPENAI_API_KEY"),
    "text-completion-openai": _Provider("openai", "https://api.openai.com", "OPENAI_API_KEY"),
    "azure": _Provider("openai", None, "AZURE_API_KEY"),
    "custom_openai": _Provider("openai"),
    "openai_like": _Provider("openai"),
    "litellm_proxy": _Provider("openai"),
    "hosted_vllm": _Provider("vllm"),
    "huggingface": _Provider("tgi"),
    "xinference": _Provider("openai"),
    "llamafile": _Provider("openai", "http://127.0.0.1:8080"),
    "lm_studio": _Provider("openai", "http://127.0.0.1:1234"),
    "ollama": _Provider("openai", "http://127.0.0.1:11434"),
    "ollama_chat": _Provider("openai", "http://127.0.0.1:11434"),
    "groq": _Provider("openai", "https://api.groq.com/openai", "GROQ_API_KEY"),
    "mistral": _Provider("openai", "https://api.mistral.ai", "MISTRAL_API_KEY"),
    "deepseek": _Provider("openai", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
    "together_ai": _Provider("openai", "https://api.together.xyz", "TOGETHERAI_API_KEY"),
    "fireworks_ai": _Provider("openai", "https://api.fireworks.ai/inference", "FIREWORKS_AI_API_KEY"),
    "openrouter": _Provider("openai", "https://openrouter.ai/api", "OPENROUTER_API_KEY"),
    "xai": _Provider("openai", "https://api.x.ai", "XAI_API_KEY"),
    "nvidia_nim": _Provider("openai", "https://integrate.api.nvidia.com", "NVIDIA_NIM_API_KEY"),
    "cerebras": _Provider("openai", "https://api.cerebras.ai", "CEREBRAS_API_KEY"),
}
_MEMBERS = """temperature max_tokens max_completion_tokens top_p top_k min_p n stop seed presence_penalty user
    frequency_penalty repetition_penalty logit_bias response_format reasoning_effort parallel_tool_calls"""
_SAMPLING = _MEMBERS.split()
_PRICES = {
    "input": ("input_cost_per_token", 1_000_000),
    "cached_input": ("cache_read_input_token_cost", 1_000_000),
    "output": ("output_cost_per_token", 1_000_000),
    "request": ("input_cost_per_request", 1),
    "image": ("output_cost_per_image", 1),
}
"""Options of a price -> LiteLLM's name, and how many of its units are one here."""
OF_MODELS = frozenset({*(name for name, _ in _PRICES.values()), "access_groups", "base_model", "team_id"})
"""Options among the facts about a model."""
_SPECIAL = frozenset({"all-team-models", "all-proxy-models", "no-default-models"})
"""Words for models in the rows of keys."""
_STRATEGIES = {
    "least-busy": "least_busy",
    "usage-based-routing": "least_tokens",
    "usage-based-routing-v2": "least_tokens",
}
_ALWAYS = "needs no option: the gateway always does so"
_PASSED = "needs no option: workers answer what they can"
_LOGS = "has no counterpart: metrics, traces and the log are those of docs/production.md"
_PROMPTS = "is prompt_log, with rules: docs/prompt-log.md"
_CALLBACKS = {
    "langfuse": "is prompt_log with traces: docs/prompt-log.md",
    "langfuse_otel": "is prompt_log with traces: docs/prompt-log.md",
    "arize_phoenix": "is prompt_log with traces: docs/prompt-log.md",
    "otel": "is the section tracing: docs/production.md",
    "prometheus": "needs no option: /metrics is there",
    "s3_v2": "is prompt_log with a bucket: docs/prompt-log.md",
    "gcs_bucket": "is prompt_log with a bucket: docs/prompt-log.md",
}
_BY_ADMINS = "has no counterpart: admins make keys, each with its options (docs/keys.md)"
_MORE = "has no counterpart: CALLERS MAY DO MORE THAN BEFORE"
_REASONS = {
    "api_version": "is not needed: Azure's v1 API, which the model uses, has no dates",
    "drop_params": "needs no option: what a worker cannot do is dropped or refused, and named in x-dragoman-dropped",
    "additional_drop_params": "is not a list of names",
    "enable_pre_call_checks": "needs no option: set max_context of the models",
    "json_logs": _ALWAYS,
    "background_health_checks": _ALWAYS,
    "health_check_interval": "is health.interval_s, of probes that cost no tokens: set it there",
    "cache": "is set by hand, as reply_cache: docs/reply-cache.md",
    "mode": _PASSED,
    "type": "is set by hand: docs/reply-cache.md",
    "callback_settings": _LOGS,
    "turn_off_message_logging": _PROMPTS,
    "store_prompts_in_spend_logs": _PROMPTS,
    "maximum_spend_logs_retention_period": "is keep_s of prompt_log; sums of spending are kept for 13 months",
    "alerting": "is budget_webhook and Prometheus' alerts: docs/spend.md, docs/runbooks.md",
    "alert_to_webhook_url": "is budget_webhook and Prometheus' alerts: docs/spend.md, docs/runbooks.md",
    "guardrails": "is the section guards, by services of yours: docs/guards.md",
    "mcp_servers": "has no counterpart: tools of the web are those of docs/web-tools.md",
    "pass_through_endpoints": "has no counterpart: paths are those of `dragoman routes`",
    "retry_policy": "has no counterpart: errors decide what is tried again (docs/reliability.md)",
    "model_group_retry_policy": "has no counterpart: errors decide what is tried again (docs/reliability.md)",
    "allowed_fails_policy": "has no counterpart: breaker.failures counts failures of workers alone",
    "retry_after": "needs no option: another worker is asked at once",
    "disable_cooldowns": "has no counterpart: breaker.max_eject_share bounds how many workers are left out",
    "enable_tag_filtering": "is split by headers of the request: docs/reliability.md",
    "tags": "are split by headers of the request: docs/reliability.md",
    "redis_db": "is a part of redis.url: redis://HOST:PORT/DB",
    "custom_auth": f"{_MORE}, or less; tokens are `jwt`: docs/keys.md",
    "enable_jwt_auth": "is the section jwt: docs/keys.md",
    "litellm_jwtauth": "is the section jwt: docs/keys.md",
    "allowed_ips": f"{_MORE}: bound addresses before the gateway",
    "allowed_routes": f"{_MORE}: bound keys by `dialects`",
    "litellm_key_header_name": "has no counterpart: keys come where each client API sends them",
    "forward_client_headers_to_llm_api": "is pass_headers of a request policy, by name: docs/request-policies.md",
    "upperbound_key_generate_params": _BY_ADMINS,
    "default_key_generate_params": _BY_ADMINS,
    "key_generation_settings": _BY_ADMINS,
    "default_internal_user_params": _BY_ADMINS,
    "default_team_settings": "has no counterpart: rules of limits, guards and prompt_log match teams",
    "max_internal_user_budget": "has no counterpart: users have no budgets, but their keys and teams have",
    "internal_user_budget_duration": "has no counterpart: users have no budgets, but their keys and teams have",
    "set_verbose": "is log.level: debug",
    "redact_user_api_key_info": _LOGS,
    "use_x_forwarded_for": "is listen.trusted_proxies, which names the proxies: docs/limits.md",
    "team_id": f"{_MORE}: the model was one team's, so name others in the `models` of all other keys",
    "ttl": "is reply_cache.ttl_s, without cache: true",
    "max_tokens": "has no counterpart: max_context is the room for prompt and reply together",
    "max_output_tokens": "has no counterpart: max_context is the room for prompt and reply together",
    "master_key": "is not taken over: keys come from --keys, and admins have keys of their own (docs/keys.md)",
    "database_url": "has no counterpart: keys come from --keys, and keys_store keeps later ones in Redis",
    "store_model_in_db": "has no counterpart: models made in LiteLLM's interface come from --models",
    "id": "needs no option: a worker is called by its address",
    "max_input_tokens": "has no counterpart: max_context is the room for prompt and reply together",
    "content_policy_fallbacks": "has no counterpart: a refusal by a provider's filter is the answer",
    "include": "is not followed: import that file, too",
}


class _Deployment:
    """One entry of model_list. `worker` is its address; entries of one name that agree in `alike` are workers of one
    model. Attribute `usable` is false where Dragoman has no backend for it. capacity, deadlines and price may differ
    among workers."""

    def __init__(self, draft: Draft, index: int, entry: object, importer: LiteLLM) -> None:
        self.index, where = index, f"model_list[{index}]"
        top = Options(draft, where, entry)
        self.name: str = top.take("model_name", str) or ""
        self.at = ("models", self.name)
        params = top.inner("litellm_params", dict) or {}
        params = importer.credentials.get(str(params.get("litellm_credential_name")), {}) | params
        given = Options(draft, f"{where} ({self.name}).litellm_params", params)
        given.take("litellm_credential_name")
        info = Options(draft, f"{where} ({self.name}).model_info", top.inner("model_info", dict))
        self.groups = [str(group) for group in info.take("access_groups", list) or []]
        self.options: dict[str, Any] = {}
        self.policy: dict[str, Any] = {}
        self.usable = self._worker(draft, given, importer)
        if not self.usable:
            return  # one comment is for all of its options
        self._common(given, info, importer)
        numbers = {name: given.number(name) for name in ("weight", "order", "rpm", "tpm")}
        self.weights = {name: numbers[name] for name in ("weight", "rpm", "tpm")}
        self.order = numbers["order"] or 0
        supports = {name: _PASSED for name in info.names() if name.startswith("supports_")}
        for one in (given, info, top):
            one.rest(_REASONS | supports, self.at)

    @property
    def alike(self) -> str:
        return json.dumps([self.options, self.policy, self.order], sort_keys=True, default=str)

    def _worker(self, draft: Draft, given: Options, importer: LiteLLM) -> bool:
        model: str = given.take("model", str) or ""
        provider, slash, upstream = model.partition("/")
        if (named := given.take("custom_llm_provider", str)) is not None:
            provider, upstream = named, upstream if provider == named else model
        elif not slash and _OPENAI_NAMES.match(model):
            provider, upstream = "openai", model
        found = _PROVIDERS.get(provider)
        if found is None or "*" in self.name + upstream or not self.name:
            why = "needs a backend that Dragoman lacks" if found is None else _PATTERN if self.name else "has no name"
            draft.left_out(f"model_list[{self.index}] ({self.name}: {provider})", f"this model {why}", self.at)
            return False
        given_base = given.take("api_base", str) or given.take("base_url", str)
        base = importer.value(given_base) if given_base is not None else found.base
        if base is None:
            variable = (given_base or "").removeprefix(_ENVIRONMENT)
            why = f"set the variable {variable} and import again" if given_base else "has no api_base"
            draft.left_out(f"model_list[{self.index}] ({self.name})", f"this model is left out: {why}", self.at)
            return False
        if (wrong := _wrong(base)) is not None:
            draft.left_out(f"model_list[{self.index}] ({self.name})", f"its address {wrong}", self.at)
            return False
        base = base.rstrip("/")
        if provider == "azure":
            base = base.partition("/openai/deployments")[0]
            base = base.removesuffix("/openai/v1").removesuffix("/openai") + "/openai/v1"
        self.worker = base.removesuffix("/v1")
        self.options |= {"backend": found.backend, "upstream_model": upstream}
        if upstream == self.name:
            del self.options["upstream_model"]
        key = given.take("api_key", str)
        if key is None and found.variable is not None and (given_base is None or provider == "azure"):
            key = _ENVIRONMENT + found.variable
        self.options |= importer.secret("api_key", key, f"the key of the model {self.name}", self.name)
        self._known_as = (f"{provider}/{upstream}", upstream)
        return True

    def _common(self, given: Options, info: Options, importer: LiteLLM) -> None:
        """The options of all providers."""
        headers = {}
        if (organization := given.take("organization", str)) is not None:
            headers["OpenAI-Organization"] = organization
        for name, value in (given.take("extra_headers", dict) or {}).items():
            if _may_be_secret(str(name), value):
                where = f"{given.where}.extra_headers.{name}"
                given.draft.left_out(where, "may be a secret: headers hold none, api_key_file does", self.at)
            else:
                headers[str(name)] = str(value)
        self.options |= _present(headers=headers)
        deadlines = {"first_byte_s": given.number("timeout"), "first_token_s": given.number("stream_timeout")}
        self.deadlines: dict[str, float] = _present(**deadlines)
        self.capacity: int | None = given.number("max_parallel_requests")
        own, common = ({name: found.number(name) for name, _ in _PRICES.values()} for found in (given, info))
        base = info.take("base_model", str)
        listed: Mapping[str, Any] = {}
        if not any(own.values()) and not any(common.values()):
            names = (*([] if base is None else [base]), *self._known_as)
            listed = next((importer.prices[name] for name in names if name in importer.prices), {})
        elif base is not None:
            given.draft.mapped -= 1
            given.draft.left_out(f"{info.where}.base_model", "is not needed: there is a price", self.at)
        self.price: dict[str, str] = _present(
            **{
                option: amount(
                    next((one[name] for one in (own, common, listed) if one.get(name) is not None), None), times
                )
                for option, (name, times) in _PRICES.items()
            }
        )
        defaults = {name: value for name in _SAMPLING if (value := given.take(name)) is not None}
        defaults |= given.take("extra_body", dict) or {}
        for name in [name for name, value in defaults.items() if name not in _SAMPLING and _may_be_secret(name, value)]:
            given.draft.left_out(f"{given.where}.{name}", "may be a secret: policies hold none", self.at)
            del defaults[name]
        for name, value in [*defaults.items()]:
            try:
                KNOWN.member(name, value)  # type: ignore[misc]  # it reads members
            except ValueError as error:
                given.draft.left_out(f"{given.where}.{name}", f"{error}", self.at)
                del defaults[name]
        self.policy = _present(defaults=defaults, drop=given.take("additional_drop_params", list))


def _alike(deployments: Iterable[_Deployment]) -> list[list[_Deployment]]:
    """Those that can be workers of one model together. A price that only some name is that of all."""
    found: dict[str, list[_Deployment]] = {}
    for one in deployments:
        same = found.setdefault(one.alike, [])
        price = next((other.price for other in same if other.price), one.price)
        if one.price and one.price != price:
            same = found.setdefault(f"{one.alike} {one.price}", [])
        same.append(one)
    return [*found.values()]


def _merged(kind: Sequence[_Deployment], weights: Mapping[str, float]) -> dict[str, Any]:
    """The model whose workers they are; weights: of the workers."""
    options, whole = kind[0].options, sum(weights.values())
    rooms: dict[str, int] = {}
    deadlines: dict[str, float] = {}
    for one in kind:
        if one.capacity is not None:
            rooms[one.worker] = rooms.get(one.worker, 0) + one.capacity
        deadlines |= {name: max(seconds, deadlines.get(name, 0)) for name, seconds in one.deadlines.items()}
    alike = len(rooms) == len(weights) and len(set(rooms.values())) == 1
    own: dict[str, dict[str, float]] = {}
    if len(set(weights.values())) > 1:
        own = {worker: {"weight": round(weight * len(weights) / whole, 2)} for worker, weight in weights.items()}
    for worker, room in () if alike else rooms.items():
        own.setdefault(worker, {})["capacity"] = room
    return {
        "backend": options["backend"],
        "workers": [*weights],
        **options,
        **_present(
            price=next((one.price for one in kind if one.price), None),
            deadlines=deadlines,
            max_in_flight=next(iter(rooms.values())) if alike else None,
            worker_options=own,
        ),
    }


class LiteLLM:
    """Writes a draft from LiteLLM's configuration.

    look_up  returns a variable of the environment, for addresses that stand there
    named    models that keys name: of a pattern, those that are named become models
    prices   LiteLLM's list of them, by its names of models
    names    model_name -> the models of gateway.yaml that its requests may reach
    groups   access group -> its model_names
    """

    def __init__(
        self,
        draft: Draft,
        config: Mapping[str, Any],
        look_up: Callable[[str], str | None],
        named: Iterable[str] = (),
        prices: Mapping[str, Any] | None = None,
    ) -> None:
        self.draft, self._look_up = draft, look_up
        self.prices = {name: one for name, one in (prices or {}).items() if isinstance(one, dict)}
        self.names: dict[str, list[str]] = {}
        self.groups: dict[str, list[str]] = {}
        self._files: dict[str, str] = {}
        self._meanings: dict[str, str] = {}
        whole = Options(draft, "", config)
        listed = whole.inner("credential_list", list) or []
        self.credentials: dict[str, dict[str, Any]] = {
            str(one.get("credential_name")): one["credential_values"]
            for one in listed
            if isinstance(one, dict) and isinstance(one.get("credential_values"), dict)
        }
        draft.section("models")
        sections = [config.get(one) for one in ("router_settings", "litellm_settings", "general_settings")]
        wanted = {*named, *(one for section in sections for one in _model_names(section))}
        self._models(_with_patterns(whole.inner("model_list", list) or [], wanted))
        router, common, general = map(whole.section, ("router_settings", "litellm_settings", "general_settings"))
        variables = whole.section("environment_variables")
        variables.rest(dict.fromkeys(variables.names(), "set it in the environment of the gateway, if it is needed"))
        self._aliases(router)
        self._fallbacks(router, common)
        self._reliability(router, common)
        self._for_all(router, general)
        self._shared(router, common, general)
        for option in ("callbacks", "success_callback", "failure_callback", "service_callbacks"):
            written = common.inner(option, str)
            for one in common.inner(option, list) or ([] if written is None else [written]):
                where = f"litellm_settings.{option}.{one if isinstance(one, str) else 'other'}"
                draft.left_out(where, _CALLBACKS.get(str(one), _LOGS))
        for one in (router, common, general, whole):
            one.rest(_REASONS)
        draft.values["compat"] = "litellm"
        draft.note("Clients keep LiteLLM's paths. Take this out once all base URLs end in /v1.", ("compat",))
        draft.section("listen")["port"] = _PORT
        draft.note("LiteLLM's port, unless its command line named another one", ("listen",))

    def aliased(self, name: str) -> str:
        """The model_name that `name` means, itself or by an alias."""
        return self._meanings.get(name, name)

    def value(self, written: str) -> str | None:
        """An address, looked up if it stands in the environment."""
        if written.startswith(_ENVIRONMENT):
            return self._look_up(written.removeprefix(_ENVIRONMENT))
        return written

    def secret(self, option: str, written: str | None, what: str, name: str) -> dict[str, str]:
        """The option for a secret, which never stands in the file."""
        if written is None or written.lower() in ("none", "empty", ""):
            return {}
        if written.startswith(_ENVIRONMENT):
            variable = written.removeprefix(_ENVIRONMENT)
            self.draft.todo[f"set {variable} in the gateway's environment"] = None
            return {f"{option}_env": variable}
        if written not in self._files:
            plain = re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:60].strip(".") or "secret"
            number = sum(file.startswith(f"{plain}.") for file in self._files.values())
            self._files[written] = f"{plain}.{number}.key" if number else f"{plain}.key"
            self.draft.todo[f"write {what} to the file {self._files[written]}, beside gateway.yaml"] = None
        return {f"{option}_file": self._files[written]}

    def _models(self, entries: Iterable[object]) -> None:
        found: dict[str, list[_Deployment]] = {}
        for index, entry in enumerate(entries):
            one = _Deployment(self.draft, index, entry, self)
            if one.usable:
                found.setdefault(one.name, []).append(one)
        for name, deployments in found.items():
            self._model(name, sorted(deployments, key=lambda one: one.order), found)
            for group in dict.fromkeys(group for one in deployments for group in one.groups):
                self.groups.setdefault(group, []).append(name)

    def _model(self, name: str, deployments: list[_Deployment], taken: Mapping[str, object]) -> None:
        """One model for deployments that agree; else one for each kind, joined by split and fallback."""
        models = self.draft.values["models"]
        weighed = next(
            (kind for kind in ("weight", "rpm", "tpm") if all(one.weights[kind] for one in deployments)), None
        )
        if weighed is None and any(one.weights["weight"] for one in deployments):
            weighed = "weight"
            self.draft.note("An entry without a weight has the weight 1", ("models", name))
        kinds = _alike(deployments)
        parts: list[str] = []
        shares: list[float] = []
        for kind in kinds:
            part, number = name, 1
            while part in models or (part != name and part in taken):
                part, number = f"{name}@{_label(kind, kinds, number)}", number + 1
            weights: dict[str, float] = {}
            for one in kind:
                weights[one.worker] = weights.get(one.worker, 0.0) + ((weighed and one.weights[weighed]) or 1.0)
            shares.append(sum(weights.values()))
            parts.append(part)
            models[part] = _merged(kind, weights)
            if part != name:
                models[part].setdefault("upstream_model", name)
            if any(one.deadlines != kind[0].deadlines for one in kind):
                self.draft.note("Its deployments had other deadlines, of which these are the longest", ("models", part))
            if kind[0].policy:
                policy = {"match": {"model": [part]}, **kind[0].policy}
                self.draft.section("request_policies")[part] = policy
        self.names[name] = parts
        if parts[1:]:
            self._join(name, parts, shares, [kind[0].order for kind in kinds])
        for option, kind_of in (("rpm", "requests"), ("tpm", "tokens")):
            rates = [one.weights[option] for one in deployments]
            if all(rates):
                limit = {"name": f"model-{kind_of}", "kind": kind_of, "limit": int(sum(rates)), "scope": []}
                self.draft.item("limits", limit | {"match": {"model": parts}})
            elif any(rates):
                where = f"model_list ({name}).{option}"
                self.draft.left_out(where, "is not a limit here: deployments without one have none", ("models", name))

    def _join(self, name: str, parts: list[str], shares: list[float], orders: list[float]) -> None:
        models = self.draft.values["models"]
        why = "their keys, names, prices or order differ"
        self.draft.note(
            f"{name} was one name for deployments that one model cannot hold, since {why}:", ("models", name)
        )
        self.draft.note(f"{', '.join(parts)} share its requests", ("models", name))
        level = [(part, share) for part, share, order in zip(parts, shares, orders, strict=True) if order == orders[0]]
        whole = sum(share for _, share in level)
        split = [{"model": part, "share": round(share / whole, 4)} for part, share in level[1:]]
        if split:
            models[name]["split"] = split
        for part in parts[1:]:
            models[part]["listed"] = False
        for part in parts:
            models[part]["fallback"] = [other for other in parts if other != part]

    def _aliases(self, router: Options) -> None:
        for alias, target in (router.take("model_group_alias", dict) or {}).items():
            model = target.get("model") if isinstance(target, dict) else target
            if isinstance(model, str) and model in self.names:
                self._meanings[str(alias)] = model
                self.draft.values["models"][model].setdefault("aliases", []).append(str(alias))
            else:
                self.draft.left_out(
                    f"router_settings.model_group_alias.{alias}", "is an alias of a model that is left out"
                )

    def _fallbacks(self, router: Options, common: Options) -> None:
        general: dict[str, list[str]] = {}
        longer: dict[str, list[str]] = {}
        for section in (common, router):  # the router's wins
            for option, found in (("fallbacks", general), ("context_window_fallbacks", longer)):
                for entry in section.take(option, list) or []:
                    for name, others in entry.items() if isinstance(entry, dict) else ():
                        found[str(name)] = [str(one) for one in others] if isinstance(others, list) else [str(others)]
            if (others := section.take("default_fallbacks", list)) is not None:
                general["*"] = [str(one) for one in others]
        everyone = general.pop("*", [])
        for name in dict.fromkeys([*general, *longer, *(self.names if everyone else ())]):
            chosen = general.get(name, [one for one in everyone if one != name])
            if name not in self.names:
                self.draft.left_out(f"fallbacks.{name}", "this model is left out")
                continue
            for part in self.names[name]:
                self._fall_back(part, name, chosen, longer.get(name, []))

    def _fall_back(self, part: str, name: str, chosen: list[str], longer: list[str]) -> None:
        model = self.draft.values["models"][part]
        others = []
        for one in dict.fromkeys([*chosen, *longer]):
            if one in self.names:
                others.append(one)
            else:
                self.draft.left_out(f"fallbacks.{name}.{one}", "this model is left out", ("models", part))
        own = model.get("fallback", [])
        every = [*own, *(one for one in others if one not in (*own, part))]
        if every:
            model["fallback"] = every
        if longer and every:
            model["fallback_on"] = (["transient", "account"] if chosen or own else []) + ["context_length"]
            if (chosen or own) and chosen != longer:
                self.draft.note(f"{part}: fallback is one list for all of its reasons", ("models", part, "fallback"))

    def _for_all(self, router: Options, general: Options) -> None:
        """Defaults of the models."""
        rooms = [general.number("max_parallel_requests"), router.number("default_max_parallel_requests")]
        room = next((one for one in reversed(rooms) if one), None)
        for model in self.draft.values["models"].values():
            bounded = "max_in_flight" in model or any(
                "capacity" in one for one in model.get("worker_options", {}).values()
            )
            if room is not None and not bounded:
                model["max_in_flight"] = room
        params = Options(
            self.draft, "router_settings.default_litellm_params", router.inner("default_litellm_params", dict)
        )
        defaults = {name: value for name in _SAMPLING if (value := params.take(name)) is not None}
        if defaults:
            self.draft.section("request_policies")["default"] = {"defaults": defaults}
        params.rest(_REASONS)
        if (model := general.take("completion_model", str)) in self.names:
            self.draft.section("dialects")["openai"] = {"default_model": model}
        elif model is not None:
            self.draft.left_out("general_settings.completion_model", "is a model that is left out")
        if general.take("enforce_user_param", bool):
            self.draft.section("end_users")["required"] = True

    def _reliability(self, router: Options, common: Options) -> None:
        def first(name: str, *more: str) -> Any:
            found = [section.number(one) for section in (router, common) for one in (name, *more)]
            return next((one for one in found if one is not None), None)

        if (retries := first("num_retries", "max_retries")) is not None:
            self.draft.section("retry")["attempts"] = min(int(retries) + 1, 10)
        if (seconds := first("timeout", "request_timeout")) is not None:
            self.draft.section("deadlines")["first_byte_s"] = seconds
        if (seconds := first("stream_timeout")) is not None:
            self.draft.section("deadlines")["first_token_s"] = seconds
        if (fails := first("allowed_fails")) is not None:
            self.draft.section("breaker")["failures"] = int(fails) + 1
        if (seconds := first("cooldown_time")) is not None:
            self.draft.section("breaker")["eject_s"] = seconds
        strategy = router.take("routing_strategy", str)
        if strategy in _STRATEGIES:
            for model in self.draft.values["models"].values():
                model["policy"] = _STRATEGIES[strategy]
        elif strategy is not None:
            self.draft.mapped -= 1
            why = "has no counterpart: requests go to the worker that holds their prompt's begin (docs/routing.md)"
            self.draft.left_out("router_settings.routing_strategy", why, ("models",))

    def _shared(self, router: Options, common: Options, general: Options) -> None:
        """Redis, and what holds for all requests."""
        cache = common.section("cache_params")
        for section, prefix in ((router, "redis_"), (cache, "")):
            if self.draft.values.get("redis") is None:
                self._redis(section, prefix)
        if (redis := self.draft.values.get("redis")) is not None:
            if cache.take("ssl", bool):
                redis["tls"] = True
            for name in ("host", "port", "password"):
                cache.refuse(name, "is not needed: all of the gateway has one Redis, the router's", ("redis",))
        kind, mode = cache.take("type", str), cache.take("mode", str)
        if kind in (None, "local", "redis") and mode != "default_off" and common.take("cache", bool):
            store = {"store": "redis"} if "redis" in self.draft.values else {}
            ttl = cache.number("ttl")
            self.draft.values["reply_cache"] = store | ({} if ttl is None else {"ttl_s": ttl})
            self.draft.note(
                "It is for requests with temperature 0, and for each team or key by itself", ("reply_cache",)
            )
        elif kind is not None or mode is not None:
            why = f"of the kind {kind} in the mode {mode} has no counterpart; another one: docs/reply-cache.md"
            self.draft.mapped -= (kind is not None) + (mode is not None)
            self.draft.left_out("litellm_settings.cache_params", f"a cache {why}")
        cache.rest(_REASONS, ("redis",))
        if (most := general.number("global_max_parallel_requests")) is not None:
            self.draft.item("limits", {"name": "all", "kind": "concurrency", "limit": int(most), "scope": []})
        if (mib := general.number("max_request_size_mb")) is not None:
            self.draft.section("listen")["max_body_bytes"] = int(mib * (1 << 20))
        budget, duration = common.number("max_budget"), common.take("budget_duration", str)
        if budget is not None:
            add_budget(self.draft, "litellm_settings", {"name": "all-budget", "scope": []}, budget, duration)

    def _redis(self, section: Options, prefix: str) -> None:
        url, host = section.take(f"{prefix}url", str), section.take(f"{prefix}host", str)
        if url is not None:
            self.draft.values["redis"] = self.secret("url", url, "the URL of Redis", "redis-url")
            return
        port, password = section.take(f"{prefix}port"), section.take(f"{prefix}password", str)
        if host is None:
            return
        name, number = self.value(host), self.value(str(port or 6379))
        if name is None or number is None:
            why = "is left out: set its variables and import again"
            self.draft.left_out(f"{section.where}.{prefix}host", why)
            return
        secret = self.secret("password", password, "the password of Redis", "redis-password")
        self.draft.values["redis"] = {"addresses": [f"{name}:{number}"], **secret}


_PERIODS = ((1, "day"), (7, "week"), (31, "month"))
_UNITS = {"s": 1 / 86_400, "m": 1 / 1440, "h": 1 / 24, "d": 1.0, "w": 7.0, "mo": 30.0}


def period(duration: str | None) -> tuple[str, bool]:
    """The calendar's period for a duration of LiteLLM's, such as 30d, and whether it is the same. One that the calendar
    lacks gets the next longer one, which is stricter. None is for ever."""
    if duration is None:
        return "total", True
    found = re.match(r"(\d{1,9}) ?(mo|[smhdw])\Z", duration)
    if found is None:
        return "total", False
    days = int(found[1]) * _UNITS[found[2]]
    for most, name in _PERIODS:
        if days <= most:
            return name, days in (1, 7, 30, 31)
    return "total", False


def amount(number: object, times: int = 1) -> str | None:
    """An amount of money with the nine decimals that it may have."""
    if number is None:
        return None
    try:
        return f"{round(Decimal(str(number)) * times, 9).normalize():f}"
    except InvalidOperation:  # beyond what an amount may be, which is a fault of the draft
        return str(number)


def nano(number: object) -> int:
    """An amount of money in billionths, as records have it; 0 for what is none. No amount may be larger."""
    try:
        found = Decimal(str(number))
        return int(min(max(found, Decimal(0)), Decimal(9_000_000)) * 10**9)
    except (InvalidOperation, ValueError):
        return 0


def add_budget(draft: Draft, where: str, entry: dict[str, Any], most: object, duration: str | None) -> None:
    per, same = period(duration)
    if not same:
        draft.left_out(f"{where}.budget_duration", f"has no counterpart: the budget is for a {per}, which is stricter")
    draft.item("budgets", {**entry, "amount": amount(most), "per": per})


def _model_names(section: object) -> Iterator[str]:
    """The models that options of a section name."""
    if not isinstance(section, dict):
        return
    for option in ("fallbacks", "context_window_fallbacks", "default_fallbacks"):
        for entry in _listed(section.get(option)):
            for name, others in entry.items() if isinstance(entry, dict) else ((entry, ()),):
                yield from map(str, (name, *_listed(others)))
    aliases = section.get("model_group_alias")
    for target in aliases.values() if isinstance(aliases, dict) else ():
        yield str(target.get("model") if isinstance(target, dict) else target)
    if isinstance(model := section.get("completion_model"), str):
        yield model


def _listed(value: object) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _with_patterns(entries: Sequence[object], wanted: Iterable[str]) -> list[object]:
    """The entries, and for each wanted name that only patterns cover one of the nearest pattern."""
    named = [one for one in entries if isinstance(one, dict) and isinstance(one.get("model_name"), str)]
    patterns = [one for one in named if "*" in one["model_name"]]
    groups = [one.get("model_info") or {} for one in named]
    names = {one["model_name"] for one in named} | _SPECIAL
    names |= {str(group) for one in groups if isinstance(one, dict) for group in _listed(one.get("access_groups"))}
    found: list[object] = [*entries]
    for name in sorted(set(wanted) - names):
        covering = [one for one in patterns if _matched(one["model_name"], name) is not None]
        nearest = max(
            (one["model_name"] for one in covering), key=lambda pattern: len(pattern.replace("*", "")), default=""
        )
        for entry in (one for one in covering if one["model_name"] == nearest):
            params = entry.get("litellm_params")
            if isinstance(params, dict) and "*" not in name:
                pieces, stars = str(params.get("model", "")).split("*"), _matched(nearest, name) or ()
                model = "".join(chain.from_iterable(zip_longest(pieces, stars[: len(pieces) - 1], fillvalue="")))
                found.append({**entry, "model_name": name, "litellm_params": {**params, "model": model}})
    return found


def _matched(pattern: str, name: str) -> tuple[str, ...] | None:
    """The parts of a name that the stars of a pattern stand for; None if it does not match."""
    match = re.fullmatch(re.escape(pattern).replace(r"\*", "(.*?)"), name)
    return None if match is None else match.groups()


def _label(kind: Sequence[_Deployment], kinds: Sequence[Sequence[_Deployment]], number: int) -> str:
    """A word for deployments among others of their name: the host, else their model there, else a number."""
    own = kinds.index(kind)
    hosts = [urlsplit(other[0].worker).hostname for other in kinds]
    models = [other[0].options.get("upstream_model") for other in kinds]
    for words in (hosts, models):
        if number == 1 and words[own] and words.count(words[own]) == 1:
            return str(words[own])
    return str(own + number)


def _wrong(base: str) -> str | None:
    """The reason why no worker has this address."""
    try:
        urlsplit(base)
    except ValueError:
        return "is not a URL"
    return "has a password or a query" if set(base) & set("@?#") else None


def _may_be_secret(name: str, value: object) -> bool:
    text = f"{name} {json.dumps(value, default=str)}"
    return _SECRET.search(text) is not None or _ENVIRONMENT in text or masked(text) != text


def _present(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, {}, [])}
