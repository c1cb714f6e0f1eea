"""LiteLLM's deployments, which are the entries of model_list, as models and workers of gateway.yaml."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from gateway.app import KNOWN
from gateway.cli.importing.drafts import Draft, Options
from gateway.cli.importing.litellm_budgets import amount
from gateway.cli.importing.litellm_credentials import ENVIRONMENT, Credentials, may_be_secret
from gateway.cli.importing.litellm_options import PASSED, PATTERN, REASONS

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
SAMPLING = _MEMBERS.split()
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


class Deployment:
    """One entry of model_list. `worker` is its address; entries of one name that agree in `alike` are workers of one
    model. Attribute `usable` is false where Dragoman has no backend for it. capacity, deadlines and price may differ
    among workers. prices: LiteLLM's list of them, by its names of models."""

    def __init__(
        self, draft: Draft, index: int, entry: object, credentials: Credentials, prices: Mapping[str, Any]
    ) -> None:
        self.index, where = index, f"model_list[{index}]"
        top = Options(draft, where, entry)
        self.name: str = top.take("model_name", str) or ""
        self.at = ("models", self.name)
        params = top.inner("litellm_params", dict) or {}
        params = credentials.named(params.get("litellm_credential_name")) | params
        given = Options(draft, f"{where} ({self.name}).litellm_params", params)
        given.take("litellm_credential_name")
        info = Options(draft, f"{where} ({self.name}).model_info", top.inner("model_info", dict))
        self.groups = [str(group) for group in info.take("access_groups", list) or []]
        self.options: dict[str, Any] = {}
        self.policy: dict[str, Any] = {}
        self.usable = self._worker(draft, given, credentials)
        if not self.usable:
            return  # one comment is for all of its options
        self._common(given, info, prices)
        numbers = {name: given.number(name) for name in ("weight", "order", "rpm", "tpm")}
        self.weights = {name: numbers[name] for name in ("weight", "rpm", "tpm")}
        self.order = numbers["order"] or 0
        supports = {name: PASSED for name in info.names() if name.startswith("supports_")}
        for one in (given, info, top):
            one.rest(REASONS | supports, self.at)

    @property
    def alike(self) -> str:
        return json.dumps([self.options, self.policy, self.order], sort_keys=True, default=str)

    def _worker(self, draft: Draft, given: Options, credentials: Credentials) -> bool:
        model: str = given.take("model", str) or ""
        provider, slash, upstream = model.partition("/")
        if (named := given.take("custom_llm_provider", str)) is not None:
            provider, upstream = named, upstream if provider == named else model
        elif not slash and _OPENAI_NAMES.match(model):
            provider, upstream = "openai", model
        found = _PROVIDERS.get(provider)
        if found is None or "*" in self.name + upstream or not self.name:
            why = "needs a backend that Dragoman lacks" if found is None else PATTERN if self.name else "has no name"
            draft.left_out(f"model_list[{self.index}] ({self.name}: {provider})", f"this model {why}", self.at)
            return False
        given_base = given.take("api_base", str) or given.take("base_url", str)
        base = credentials.value(given_base) if given_base is not None else found.base
        if base is None:
            variable = (given_base or "").removeprefix(ENVIRONMENT)
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
            key = ENVIRONMENT + found.variable
        self.options |= credentials.secret("api_key", key, f"the key of the model {self.name}", self.name)
        self._known_as = (f"{provider}/{upstream}", upstream)
        return True

    def _common(self, given: Options, info: Options, prices: Mapping[str, Any]) -> None:
        """The options of all providers."""
        headers = {}
        if (organization := given.take("organization", str)) is not None:
            headers["OpenAI-Organization"] = organization
        for name, value in (given.take("extra_headers", dict) or {}).items():
            if may_be_secret(str(name), value):
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
        usual: Mapping[str, Any] = {}
        if not any(own.values()) and not any(common.values()):
            names = (*([] if base is None else [base]), *self._known_as)
            usual = next((prices[name] for name in names if name in prices), {})
        elif base is not None:
            given.draft.mapped -= 1
            given.draft.left_out(f"{info.where}.base_model", "is not needed: there is a price", self.at)
        self.price: dict[str, str] = _present(
            **{
                option: amount(
                    next((one[name] for one in (own, common, usual) if one.get(name) is not None), None), times
                )
                for option, (name, times) in _PRICES.items()
            }
        )
        defaults = {name: value for name in SAMPLING if (value := given.take(name)) is not None}
        defaults |= given.take("extra_body", dict) or {}
        for name in [name for name, value in defaults.items() if name not in SAMPLING and may_be_secret(name, value)]:
            given.draft.left_out(f"{given.where}.{name}", "may be a secret: policies hold none", self.at)
            del defaults[name]
        for name, value in [*defaults.items()]:
            try:
                KNOWN.member(name, value)  # type: ignore[misc]  # it reads members
            except ValueError as error:
                given.draft.left_out(f"{given.where}.{name}", f"{error}", self.at)
                del defaults[name]
        self.policy = _present(defaults=defaults, drop=given.take("additional_drop_params", list))


def alike(deployments: Iterable[Deployment]) -> list[list[Deployment]]:
    """Those that can be workers of one model together. A price that only some name is that of all."""
    found: dict[str, list[Deployment]] = {}
    for one in deployments:
        same = found.setdefault(one.alike, [])
        price = next((other.price for other in same if other.price), one.price)
        if one.price and one.price != price:
            same = found.setdefault(f"{one.alike} {one.price}", [])
        same.append(one)
    return [*found.values()]


def merged(kind: Sequence[Deployment], weights: Mapping[str, float]) -> dict[str, Any]:
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


def with_patterns(entries: Sequence[object], wanted: Iterable[str]) -> list[object]:
    """The entries, and for each wanted name that only patterns cover one of the nearest pattern."""
    named = [one for one in entries if isinstance(one, dict) and isinstance(one.get("model_name"), str)]
    patterns = [one for one in named if "*" in one["model_name"]]
    groups = [one.get("model_info") or {} for one in named]
    names = {one["model_name"] for one in named} | _SPECIAL
    names |= {str(group) for one in groups if isinstance(one, dict) for group in listed(one.get("access_groups"))}
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


def label(kind: Sequence[Deployment], kinds: Sequence[Sequence[Deployment]], number: int) -> str:
    """A word for deployments among others of their name: the host, else their model there, else a number."""
    own = kinds.index(kind)
    hosts = [urlsplit(other[0].worker).hostname for other in kinds]
    models = [other[0].options.get("upstream_model") for other in kinds]
    for words in (hosts, models):
        if number == 1 and words[own] and words.count(words[own]) == 1:
            return str(words[own])
    return str(own + number)


def listed(value: object) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _wrong(base: str) -> str | None:
    """The reason why no worker has this address."""
    try:
        urlsplit(base)
    except ValueError:
        return "is not a URL"
    return "has a password or a query" if set(base) & set("@?#") else None


def _present(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, {}, [])}
