"""The tree of options: frozen values, each option with the sentence that documents it.

Constructing `Config(...)` reads nothing but its arguments; `load` is what reads the file and the environment.
Durations are floats in seconds (names end in `_s`), sizes are integers in bytes (names end in `_bytes`).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from gateway.config.aliases import Aliases
from gateway.config.batches import Batches
from gateway.config.guards import Guard
from gateway.config.kinds import (
    Address,
    Alias,
    Bytes,
    Expiry,
    Feature,
    Flag,
    Hash,
    Name,
    Prefix,
    ProxyUrl,
    Seconds,
    Share,
    UrlPath,
    Variable,
    Whole,
    WorkerUrl,
    all_of_openai,
    is_pattern,
)
from gateway.config.money import Budget, BudgetWebhook, Prices, Spend
from gateway.config.prompt_log import PromptLog
from gateway.config.proxies import VARIABLES, proxy_of, proxy_url
from gateway.config.reply_cache import ReplyCache
from gateway.config.request_policies import RequestPolicies
from gateway.config.routing import KvEvents, Mirror, Policy, Prefill, Queue, Reason, Routing, SplitRule, WorkerOptions
from gateway.config.section import Section
from gateway.config.serving import Console, Cors, Listen, Log, Metrics, Start, Tracing
from gateway.config.sharing import (
    Accounting,
    Admin,
    CacheSalt,
    EndUsers,
    Jwt,
    KeyLimits,
    KeyMatch,
    Limit,
    Limiter,
    Redis,
    Seal,
    Store,
    StoredKeys,
    Team,
)
from gateway.config.tools import Tools
from gateway.core.ports import Capabilities, Moves, Settings
from gateway.core.ports import Deadlines as TransportDeadlines

PREFIX = "DRAGOMAN_"
"""The begin of our environment variables' names."""

_DAY = 86400


class Key(Section):
    """One client key, by its hash. `dragoman keys new` prints the key once, and this entry."""

    SECRETS = ("aws_secret",)
    ANY_OF = ("hash", "aws_access_key_id", "match")
    FEATURES = {"log_prompts_until": "prompt_log"}

    hash: Hash | None = None
    """`sha256:` and the SHA-256 of the whole key in hexadecimal. Required, unless `aws_access_key_id` or
    `match` is there."""
    id: str | None = Field(default=None, pattern=r"^[0-9a-z]{4,32}$")
    """The id inside a `dgm_` key, to find its entry by. Absent for a key that was made elsewhere."""
    team: Name | None = None
    """The team it belongs to, for usage records and for limits that several keys share."""
    models: tuple[Name, ...] | None = None
    """Models (or aliases) it may use. Absent: all."""
    aliases: dict[Alias, Name] = {}
    """Names for this key alone, each with its model, patterns too. They win over all other names."""
    dialects: tuple[Name, ...] | None = None
    """Dialects it may speak. Absent: all."""
    expires: Expiry | None = None
    """From this moment it is refused. A bare date lasts through the end of that day, UTC."""
    disabled: Flag = False
    """Refuse it for now."""
    priority: Whole = Field(default=0, ge=-100, le=100)
    """Requests that wait for a worker go in this order, highest first; an overloaded gateway refuses the lowest first.
    Callers without a key have 0."""
    limits: KeyLimits | None = None
    """Limits of its own."""
    log_prompts_until: Expiry | None = None
    """Until this moment its prompts and replies are logged, by `prompt_log`. Absent: as the rules there say."""
    match: KeyMatch | None = None
    """Requests that are this key's without a key, for clients that can send none."""
    aws_access_key_id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{4,128}$")
    """Id of a key pair that signs requests (AWS Signature Version 4), beside a hash or instead of one."""
    aws_secret_file: str | None = Field(default=None, min_length=1)
    """File with that pair's secret; relative to the folder of gateway.yaml."""
    aws_secret_env: Variable | None = None
    """Environment variable with that secret."""

    @property
    def aws_secret(self) -> str | None:
        """The pair's secret, read by `load` from `aws_secret_file` or `aws_secret_env`."""
        return self.held("aws_secret")


class Deadlines(Section):
    """How long a worker may take."""

    FEATURES = {"first_token_s": "leave", "unstreamed_s": "leave"}

    connect_s: Seconds = Field(default=2.0, gt=0, le=60)
    """To accept a connection."""
    first_byte_s: Seconds = Field(default=600.0, gt=0, le=_DAY)
    """From the request to the response head. Long prompts take minutes to read."""
    idle_s: Seconds = Field(default=300.0, gt=0, le=_DAY)
    """Between two pieces of a reply."""
    first_byte_per_1000_s: Seconds = Field(default=0.0, ge=0, le=3600)
    """Added to `first_byte_s` and `first_token_s` for every 1,000 tokens of the prompt."""
    first_token_s: Seconds | None = Field(default=None, gt=0, le=_DAY)
    """To the first token of a stream, or to the reply of embeddings and scores; a later request moves to another
    worker. Absent: none moves."""
    unstreamed_s: Seconds | None = Field(default=None, gt=0, le=_DAY)
    """The same for generated replies that are not streamed, whose first token comes with the last."""
    total_s: Seconds | None = Field(default=None, gt=0, le=_DAY)
    """The whole reply. Absent: no limit."""

    @property
    def for_transport(self) -> TransportDeadlines:
        """Those that the transport watches over."""
        late = self.first_token_s, self.unstreamed_s
        moves = Moves(*late) if late != (None, None) else None
        return TransportDeadlines(self.connect_s, self.first_byte_s, self.idle_s, moves)


class Discover(Section):
    """Places to find workers while the gateway runs, beside those that are listed."""

    redis: Flag = False
    """In the registry that workers join, in the server of `redis`."""
    dns: Address | None = None
    """`name:port`: every address of the name is a worker, called by plain HTTP."""
    interval_s: Seconds = Field(default=1.0, ge=0.1, le=3600)
    """Between two look-ups of the name."""


class Model(Section):
    """One model as clients name it, and the workers that serve it."""

    SECRETS = ("api_key", "proxy")
    ANY_OF = ("workers", "discover")
    FEATURES = {
        "price": "pricing",
        "prefill": "prefill",
        "kv_events": "kv_events",
        "continue_streams": "resume",
        "mirror": "mirror",
        "hedge_s": "hedge",
    }

    backend: Name
    """The API of its workers: vllm, openai, tgi or llamacpp."""
    workers: tuple[WorkerUrl, ...] = Field(default=(), min_length=1, max_length=1000)
    """Base addresses, `scheme://host:port[/base]`; at least one, unless there is `discover`. A `/v1` at the end is left
    out."""
    discover: Discover | None = None
    """Further workers, found while the gateway runs."""
    aliases: tuple[Alias, ...] = ()
    """Further names that clients may use for it. One that ends in `*`, such as `claude-*`, stands
    for all names that begin like it."""
    listed: Flag = True
    """Name it, and its aliases, in the lists of models that clients ask for."""
    upstream_model: str | None = Field(default=None, min_length=1)
    """The name its workers know it by. Absent: its name here, or the one that a worker serves."""
    max_context: Whole | None = Field(default=None, ge=1)
    """Its context in tokens. Absent: the workers decide."""
    price: Prices = ()
    """The price of its requests, or a list of prices, each valid `from` a day; see docs/spend.md."""
    features: frozenset[Feature] | None = None
    """Its abilities; a request for more is refused early. Absent: nothing is refused beforehand."""
    system: Literal["merge", "keep"] | None = None
    """`merge` system messages, or `keep` them as sent; see docs/workers.md. Absent: `keep` for OpenAI itself."""
    api_key_file: str | None = Field(default=None, min_length=1)
    """File with the key that its workers ask for; relative to this file's folder. Changes are picked up within 2 s."""
    api_key_env: Variable | None = None
    """Environment variable with that key."""
    headers: dict[str, str] = Field(default={}, repr=False)
    """Extra headers to its workers."""
    ca_file: str | None = Field(default=None, min_length=1)
    """PEM bundle that its https workers' certificates must chain to."""
    proxy: ProxyUrl | None = None
    """Forward proxy to its workers, `http://proxy:3128`, or `environment`: that of HTTPS_PROXY, HTTP_PROXY, ALL_PROXY
    and NO_PROXY. Absent: none, whatever the environment says; see docs/workers.md."""
    proxy_file: str | None = Field(default=None, min_length=1)
    """File with the URL of a proxy that asks for a password; relative to this file's folder. Changes are
    picked up within 2 s."""
    proxy_env: Variable | None = None
    """Environment variable with that URL."""
    http2: Flag = False
    """Speak HTTP/2 to its workers: https workers that do not know it get HTTP/1.1, http workers must know it. Slower
    than HTTP/1.1; see docs/workers.md."""
    paths: tuple[UrlPath, ...] | None = Field(default=None, min_length=1)
    """The only paths that are called on its workers, such as `/v1/chat/completions`; a request that needs another is
    refused. Absent: those that its backend knows."""
    policy: Policy = "prefix"
    """How a worker is picked; see docs/routing.md."""
    worker_options: dict[WorkerUrl, WorkerOptions] = {}
    """Options of single workers, by address: those of `workers`, or found by `discover`."""
    adapters: Flag = False
    """Offer the LoRA adapters that its workers have loaded as models, to all callers of this one."""
    prefill: Prefill | None = None
    """Prefill and decode apart: these workers compute prompts, `workers` generate. Absent: `workers` do both."""
    kv_events: KvEvents | None = None
    """Pick by what the workers' engines report as cached; see docs/routing.md. Absent: by what they were sent."""
    max_in_flight: Whole | None = Field(default=None, ge=1)
    """Most requests at once on each worker; more wait in the queue. Absent: what the engine is seen to take, see
    `queue.learn_capacity`."""
    deadlines: Deadlines | None = None
    """Deadlines of its own; what is absent is as in `deadlines`."""
    continue_streams: Flag = True
    """Another worker goes on with a stream of plain text whose worker fails or leaves; see docs/reliability.md."""
    fallback: tuple[Name, ...] = Field(default=(), max_length=10)
    """Models that are asked, in this order, where this one cannot answer; see docs/reliability.md."""
    fallback_on: tuple[Reason, ...] = Field(default=("transient", "account"), min_length=1)
    """Reasons to ask them: `unavailable` (no worker answers), `overloaded` (all are busy), `transient` (both),
    `account` (they refuse the gateway), `context_length` (too long a prompt)."""
    split: tuple[SplitRule, ...] = Field(default=(), max_length=20)
    """Requests of this model that another model answers instead. The first rule that takes a request counts; what none
    takes stays."""
    split_by: Literal["session", "key"] = "session"
    """The requests that stay together in a `share`: those of a session (`routing.session_headers`; without one each is
    drawn for itself), or all of a key."""
    mirror: Mirror | None = None
    """Copies for another model, whose replies are dropped."""
    hedge_s: Seconds | None = Field(default=None, gt=0, le=3600)
    """Embeddings: after this long without an answer a second worker is asked too, and the first answer counts. Absent:
    never."""

    queue: Queue | None = None
    """A queue of its own; what is absent is as in the common `queue`."""

    def served_name(self, name: str) -> str:
        """The name that its workers know it by, as far as these options say. name: the model's."""
        return self.upstream_model or name

    def declared(self, name: str) -> Capabilities:
        """The abilities of its workers, as far as these options declare them. name: the model's."""
        keeps = "system_turns" in (self.features or ()) or (self.backend == "openai" and all_of_openai(self.workers))
        system = self.system or ("keep" if keeps else "merge")
        return Capabilities(self.served_name(name), self.max_context, self.features, system=system)

    @property
    def api_key(self) -> str | None:
        """The workers' key, read by `load` from `api_key_file` or `api_key_env`."""
        return self.held("api_key")

    @property
    def has_proxy(self) -> bool:
        return self.proxy is not None or self.proxy_file is not None or self.proxy_env is not None

    def proxy_for(self, address: str) -> str | None:
        """The URL of the proxy to the worker at `address`, once `load` has read it; None for none."""
        if self.proxy == "environment":
            return proxy_of(address, {name: self.held(name) or "" for name in VARIABLES})
        held = self.held("proxy")
        return self.proxy or (held and proxy_url(held))


class DialectOptions(Section):
    """How one dialect is offered."""

    enabled: Flag = True
    """Offer it."""
    prefixes: tuple[Prefix, ...] | None = Field(default=None, min_length=1)
    """Path prefixes it answers under; `/` is the root. Absent: its own."""
    default_model: Name | None = None
    """Model for requests that name none, or a placeholder such as `dummy`. Absent: those are refused."""
    extras: Literal["pass", "drop", "error"] | None = None
    """Unknown fields, and members inside them: `pass` them on, `drop` and report them, or answer with an `error`.
    Absent: see its page in docs/dialects."""
    default_api_version: str | None = Field(default=None, pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}(-preview)?$")
    """Azure: the `api-version` of requests that name none. Absent: those are refused."""

    @property
    def settings(self) -> Settings:
        """Those that the dialect itself follows."""
        return Settings(self.prefixes, self.extras, self.default_api_version)


class Relay(Section):
    """Carrying replies."""

    FEATURES = {"continue_bytes": "resume"}

    keepalive_s: Seconds = Field(default=15.0, ge=0, le=3600)
    """Longest silence towards a streaming client; then the gateway sends a keep-alive, also before any worker has
    answered. 0: off."""
    drain_s: Seconds = Field(default=30.0, ge=0, le=_DAY)
    """On SIGTERM, how long running replies may still take."""
    notice_s: Seconds = Field(default=0.0, ge=0, le=3600)
    """On SIGTERM, how long it keeps serving even when idle, so that load balancers see that `/readyz` is 503. Part of
    `drain_s`."""
    max_reply_bytes: Bytes = Field(default=67108864, ge=1024, le=1 << 32)
    """Most bytes of one reply held in memory: of one that is not streamed, or of what a stream repeats at its end."""
    continue_bytes: Bytes | None = Field(default=None, ge=0, le=1 << 40)
    """Most bytes held of prompts and replies of streams for `continue_streams`; a stream beyond it is not continued.
    Absent: a tenth of the memory."""
    native: Flag = True
    """Ordinary chunks of streams pass through the native relay, if it was built (`dragoman --version`)."""


class Retry(Section):
    """Other workers for requests that one has failed."""

    attempts: Whole = Field(default=3, ge=1, le=10)
    """Most workers tried for one request; 1: without retries."""
    budget: Share = Field(default=0.2, ge=0, le=1)
    """Most retries, as a share of requests."""
    min_per_second: Share = Field(default=3.0, ge=0, le=10000)
    """Retries a second that are allowed in any case."""
    wait_s: Seconds = Field(default=10.0, ge=0, le=_DAY)
    """Longest wait of a request that has lost its worker, while no other can take it: one may return. 0: none."""


class Health(Section):
    """Probing workers: one is ready while it answers with a status below 500."""

    interval_s: Seconds = Field(default=5.0, gt=0, le=3600)
    """Between two probes of a worker."""
    timeout_s: Seconds = Field(default=1.0, gt=0, le=600)
    """How long a probe may take; at most `interval_s`."""
    path: UrlPath = "/health"
    """Path of the probe. A worker without it answers 404, which counts as alive."""
    stalled_s: Seconds | None = Field(default=None, ge=0, le=_DAY)
    """How long a worker that owes answers may make no progress. 0: for ever. Absent: its history decides
    (docs/reliability.md)."""


class Breaker(Section):
    """Leaving out workers that fail."""

    FEATURES = {"quarantine_s": "quarantine"}

    failures: Whole = Field(default=5, ge=1, le=10000)
    """Failures in a row that eject a worker."""
    eject_s: Seconds = Field(default=30.0, gt=0, le=_DAY)
    """How long it is left out; longer each time in a row."""
    max_eject_share: Share = Field(default=0.5, ge=0, le=1)
    """Largest share of a model's workers left out at once."""
    slowstart_s: Seconds = Field(default=10.0, ge=0, le=3600)
    """How long its share grows after its return. 0 is off."""
    quarantine_s: Seconds = Field(default=60.0, ge=0, le=_DAY)
    """How long a request is refused after two workers died of it. 0: it is sent on."""


class Config(Section):
    """All options of the gateway.

    auth is "open" or "keys", resolved: if the file has neither, it is "keys" if there are keys, else "open".
    keys holds the entries of `keys_file` too, once loaded.
    """

    model_config = ConfigDict(title="gateway.yaml")
    _former: tuple[str, ...] = PrivateAttr(default=())
    FEATURES = {
        "keys_store": "limits",  # its keys may have some
        "limits": "limits",
        "budgets": "limits",
        "budget_webhook": "limits",
        "end_users": "end_users",
        "admins": "admin",
        "admins_file": "admin",
        "batches": "batches",
        "console": "console",
        "store": "stored",
        "tools": "web_tools",
        "guards": "guards",
        "prompt_log": "prompt_log",
        "request_policies": "request_policies",
        "reply_cache": "reply_cache",
        "compat": "litellm",
        "tracing": "tracing",
    }

    listen: Listen = Listen()
    start: Start = Start()
    auth: Literal["open", "keys"] = "open"
    """`keys` asks for a key, `open` does not. Absent: `keys` if there are any, else `open`, which is then allowed on
    loopback only."""
    keys: dict[Name, Key] = {}
    """Client keys by name."""
    keys_file: str | None = Field(default=None, min_length=1)
    """Another file with keys by name, such as a mounted secret; relative to this one. Changes are picked up within 2
    s."""
    keys_store: Literal["redis"] | None = None
    """Further keys, which are made and revoked while gateways run: those in the server of `redis`; see
    docs/keys.md."""
    path_keys: Flag = False
    """Take a key at the begin of a path, `/k/KEY/...`, too, for clients that can send none; see docs/keys.md for the
    risk."""
    stored_keys: StoredKeys = StoredKeys()
    teams: dict[Name, Team] = {}
    """Bounds of teams, by the names that keys and tokens have of theirs. With `keys_store` admins set others at run
    time."""
    admins: dict[Name, Admin] = {}
    """Admins of the keys in `keys_store`, by name."""
    admins_file: str | None = Field(default=None, min_length=1)
    """Another file with admins by name; relative to this one. Changes are picked up within 2 s."""
    models: dict[Name, Model] = {}
    """Models by the name that clients use."""
    dialects: dict[Name, DialectOptions] = {}
    """Dialects by name; those that are not named here are offered in their own way."""
    compat: Literal["litellm"] | None = None
    """`litellm`: answer at LiteLLM's paths, too, for clients with a base URL of LiteLLM's; see docs/from-litellm.md.
    Absent: the dialects' paths alone."""
    deadlines: Deadlines = Deadlines()
    relay: Relay = Relay()
    retry: Retry = Retry()
    health: Health = Health()
    breaker: Breaker = Breaker()
    queue: Queue = Queue()
    routing: Routing = Routing()
    """Which worker takes a request; see docs/routing.md."""
    jwt: Jwt | None = None
    """Tokens of an identity provider, beside or instead of keys."""
    redis: Redis | None = None
    """A Redis or Valkey server that all gateways of a deployment share."""
    limits: tuple[Limit, ...] = Field(default=(), max_length=10000)
    """Limits on requests, tokens and requests in flight."""
    cache_salt: CacheSalt | None = None
    """Keeps the prompts of one team apart from those of others in the prefix caches of vLLM workers. Absent: all share
    them."""
    seal: Seal | None = None
    """The secret that encrypts the reasoning which clients keep for the gateway; see docs/keys.md. Absent: each key's
    own hash."""
    end_users: EndUsers | None = None
    """The end users of requests; see docs/end-users.md. Absent: they are not looked at."""
    limiter: Limiter = Limiter()
    store: Store = Store()
    """Responses that clients may refer to later; each caller to its own alone."""
    spend: Spend = Spend()
    """Money: the currency of prices and budgets, and what is shown of costs."""
    budgets: tuple[Budget, ...] = Field(default=(), max_length=10000)
    """The most that may be spent; see docs/spend.md."""
    batches: Batches | None = None
    """Batches of requests, answered on idle capacity. Absent: none."""
    budget_webhook: BudgetWebhook | None = None
    """An address that gets events of budgets. Absent: they are in log and metrics alone."""
    accounting: Accounting = Accounting()
    """Usage, for a billing job to read."""
    cors: Cors = Cors()
    log: Log = Log()
    metrics: Metrics = Metrics()
    console: Console = Console()
    tools: Tools = Tools()
    guards: dict[Name, Guard] = {}
    """Services that are asked about requests and replies, by name, in their order; see docs/guards.md."""
    request_policies: RequestPolicies = {}
    """Changes of requests by key, team or model, by name; see docs/request-policies.md."""
    reply_cache: ReplyCache | None = None
    """Answers equal requests with temperature 0, and for embeddings, from memory; see docs/reply-cache.md. Absent: each
    request asks a worker."""
    prompt_log: PromptLog | None = None
    """Logs prompts and replies of keys, teams and models that you choose; see docs/prompt-log.md. Absent: none."""
    tracing: Tracing | None = None
    """Traces by OpenTelemetry; needs the extra `tracing`. Absent: none."""

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, data: Any) -> Any:
        """YAML reads a section whose lines are all commented out as null: it has its defaults."""
        if not isinstance(data, dict):
            return data
        found = {name: value for name, value in data.items() if value is not None}
        named = any(found.get(name) for name in ("keys", "keys_file", "keys_store", "jwt"))
        return {"auth": "keys" if named else "open"} | found

    def resolve(self, name: str) -> str | None:
        """The model that `name` means: itself, or the one it is an alias of; None when unknown."""
        return self.model_names.get(name)

    def alias(self, name: str) -> str | None:
        """The alias of a model that `name` is, or the pattern that covers it; None if there is none."""
        return name if name in self._aliases else self.patterns.pattern(name)

    @cached_property
    def model_names(self) -> dict[str, str]:
        """Every name and alias of a model -> the model's name. Without patterns: those name no model."""
        names = {alias: model for alias, model in self._aliases.items() if not is_pattern(alias)}
        return {**names, **{name: name for name in self.models}}

    @cached_property
    def patterns(self) -> Aliases:
        """The aliases of models that are patterns."""
        return Aliases({alias: model for alias, model in self._aliases.items() if is_pattern(alias)})

    @cached_property
    def _aliases(self) -> dict[str, str]:
        return {alias: model for model, options in self.models.items() for alias in options.aliases}

    @property
    def former(self) -> tuple[str, ...]:
        """A warning for each former name in it, found by `load`."""
        return self._former

    def dialect(self, name: str) -> DialectOptions:
        """The options of dialect `name`, defaults when the configuration does not mention it."""
        return self.dialects.get(name) or DialectOptions()

    def deadlines_for(self, model: str) -> Deadlines:
        """The deadlines of `model`: its own if it sets them, else the common ones. Raises KeyError if unknown."""
        return self.deadlines.overridden(self.models[model].deadlines)

    def queue_for(self, model: str) -> Queue:
        """The queue of `model`: its own options if it sets them, else the common ones. Raises KeyError if unknown."""
        return self.queue.overridden(self.models[model].queue)
