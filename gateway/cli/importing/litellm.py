"""LiteLLM's config.yaml as gateway.yaml. Its options: https://docs.litellm.ai/docs/proxy/config_settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gateway.cli.importing.drafts import Draft, Options
from gateway.cli.importing.litellm_budgets import add_budget
from gateway.cli.importing.litellm_credentials import Credentials
from gateway.cli.importing.litellm_deployments import SAMPLING, Deployment, alike, label, listed, merged, with_patterns
from gateway.cli.importing.litellm_options import CALLBACKS, LOGS, REASONS

_PORT = 4000
_STRATEGIES = {
    "least-busy": "least_busy",
    "usage-based-routing": "least_tokens",
    "usage-based-routing-v2": "least_tokens",
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
        self.draft = draft
        self.names: dict[str, list[str]] = {}
        self.groups: dict[str, list[str]] = {}
        self._prices = {name: one for name, one in (prices or {}).items() if isinstance(one, dict)}
        self._meanings: dict[str, str] = {}
        whole = Options(draft, "", config)
        self._credentials = Credentials(draft, look_up, whole.inner("credential_list", list) or [])
        draft.section("models")
        sections = [config.get(one) for one in ("router_settings", "litellm_settings", "general_settings")]
        wanted = {*named, *(one for section in sections for one in _model_names(section))}
        self._models(with_patterns(whole.inner("model_list", list) or [], wanted))
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
                draft.left_out(where, CALLBACKS.get(str(one), LOGS))
        for one in (router, common, general, whole):
            one.rest(REASONS)
        draft.values["compat"] = "litellm"
        draft.note("Clients keep LiteLLM's paths. Take this out once all base URLs end in /v1.", ("compat",))
        draft.section("listen")["port"] = _PORT
        draft.note("LiteLLM's port, unless its command line named another one", ("listen",))

    def aliased(self, name: str) -> str:
        """The model_name that `name` means, itself or by an alias."""
        return self._meanings.get(name, name)

    def _models(self, entries: Iterable[object]) -> None:
        found: dict[str, list[Deployment]] = {}
        for index, entry in enumerate(entries):
            one = Deployment(self.draft, index, entry, self._credentials, self._prices)
            if one.usable:
                found.setdefault(one.name, []).append(one)
        for name, deployments in found.items():
            self._model(name, sorted(deployments, key=lambda one: one.order), found)
            for group in dict.fromkeys(group for one in deployments for group in one.groups):
                self.groups.setdefault(group, []).append(name)

    def _model(self, name: str, deployments: list[Deployment], taken: Mapping[str, object]) -> None:
        """One model for deployments that agree; else one for each kind, joined by split and fallback."""
        models = self.draft.values["models"]
        weighed = next(
            (kind for kind in ("weight", "rpm", "tpm") if all(one.weights[kind] for one in deployments)), None
        )
        if weighed is None and any(one.weights["weight"] for one in deployments):
            weighed = "weight"
            self.draft.note("An entry without a weight has the weight 1", ("models", name))
        kinds = alike(deployments)
        parts: list[str] = []
        shares: list[float] = []
        for kind in kinds:
            part, number = name, 1
            while part in models or (part != name and part in taken):
                part, number = f"{name}@{label(kind, kinds, number)}", number + 1
            weights: dict[str, float] = {}
            for one in kind:
                weights[one.worker] = weights.get(one.worker, 0.0) + ((weighed and one.weights[weighed]) or 1.0)
            shares.append(sum(weights.values()))
            parts.append(part)
            models[part] = merged(kind, weights)
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
        defaults = {name: value for name in SAMPLING if (value := params.take(name)) is not None}
        if defaults:
            self.draft.section("request_policies")["default"] = {"defaults": defaults}
        params.rest(REASONS)
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
        cache.rest(REASONS, ("redis",))
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
            self.draft.values["redis"] = self._credentials.secret("url", url, "the URL of Redis", "redis-url")
            return
        port, password = section.take(f"{prefix}port"), section.take(f"{prefix}password", str)
        if host is None:
            return
        name, number = self._credentials.value(host), self._credentials.value(str(port or 6379))
        if name is None or number is None:
            why = "is left out: set its variables and import again"
            self.draft.left_out(f"{section.where}.{prefix}host", why)
            return
        secret = self._credentials.secret("password", password, "the password of Redis", "redis-password")
        self.draft.values["redis"] = {"addresses": [f"{name}:{number}"], **secret}


def _model_names(section: object) -> Iterator[str]:
    """The models that options of a section name."""
    if not isinstance(section, dict):
        return
    for option in ("fallbacks", "context_window_fallbacks", "default_fallbacks"):
        for entry in listed(section.get(option)):
            for name, others in entry.items() if isinstance(entry, dict) else ((entry, ()),):
                yield from map(str, (name, *listed(others)))
    aliases = section.get("model_group_alias")
    for target in aliases.values() if isinstance(aliases, dict) else ():
        yield str(target.get("model") if isinstance(target, dict) else target)
    if isinstance(model := section.get("completion_model"), str):
        yield model
