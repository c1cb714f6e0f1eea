"""Options of what gateways share or count: Redis, limits, accounting."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.config.kinds import (
    Address,
    Budgeted,
    Bytes,
    Flag,
    Hash,
    KeySetUrl,
    Name,
    Network,
    RedisServer,
    RedisUrl,
    Seconds,
    Share,
    Variable,
    Whole,
    redis_server,
)
from gateway.config.section import Section

_DAY = 86400
MOST = 10**12
"""The most units that a limit may have."""

Dimension = Literal["key", "team", "model", "address", "end_user"]
Reserve = Literal["expected", "maximum"]
LimitHeadersOf = Literal["openai", "anthropic", "ietf"]
WrittenKind = Literal["requests", "tokens", "concurrency", "audio_seconds"]
KindOfLimit = Literal[WrittenKind, "cost"]
"""`cost` is that of budgets (`config.money.Budget`)."""


class Redis(Section):
    """A Redis or Valkey server that all gateways of a deployment share."""

    SECRETS = ("url", "password")
    ANY_OF = ("addresses", "url", "url_file", "url_env")

    addresses: tuple[Address, ...] = Field(default=(), min_length=1, max_length=100)
    """`host:port`: one for a single server, those of all Sentinels, or of some cluster nodes. Required, unless there is
    a URL."""
    url: RedisUrl | None = None
    """`redis://[user@]host[:port][/db]`, or `rediss://` for TLS; instead of `addresses`, `db`, `username` and `tls`."""
    url_file: str | None = Field(default=None, min_length=1)
    """File with such a URL, in which the password may stand too; relative to this file's folder."""
    url_env: Variable | None = None
    """Environment variable with such a URL, in which the password may stand too."""
    mode: Literal["single", "sentinel", "cluster"] = "single"
    """The kind of server that answers there."""
    sentinel_name: str = Field(default="mymaster", min_length=1)
    """The name under which the Sentinels know the primary."""
    namespace: str = Field(default="dragoman", pattern=r"^[A-Za-z0-9_.-]{1,128}$")
    """Every key begins with it: two deployments on one server need two. Workers that register need the same
    (`--namespace`)."""
    sentinel_auth: Flag = False
    """The Sentinels ask for the same user and password."""
    db: Whole = Field(default=0, ge=0, le=65535)
    """Number of the database; a cluster has only 0."""
    username: str | None = Field(default=None, min_length=1)
    """ACL user."""
    password_file: str | None = Field(default=None, min_length=1)
    """File with the password, read at every connect; relative to this file's folder."""
    password_env: Variable | None = None
    """Environment variable with the password."""
    tls: Flag = False
    """Connect by TLS."""
    ca_file: str | None = Field(default=None, min_length=1)
    """PEM bundle that its certificate must chain to. Absent: the system's."""
    cert_file: str | None = Field(default=None, min_length=1)
    """Certificate to show, PEM."""
    key_file: str | None = Field(default=None, min_length=1)
    """That certificate's private key, PEM."""
    timeout_s: Seconds = Field(default=0.05, ge=0.001, le=10)
    """How long a request waits for an answer at least; longer where answers are slow: docs/limits.md. Stores wait 2 s
    at least."""

    @property
    def call_s(self) -> float:
        """How long a store waits for an answer to a call that is rare."""
        return max(2.0, self.timeout_s)

    @property
    def database(self) -> tuple[object, ...]:
        """Names the database: it is the same however a gateway logs in, and how long it waits."""
        name = (self.sentinel_name,) if self.mode == "sentinel" else ()
        return self.mode, sorted(self.server.addresses), self.server.db, self.namespace, *name

    @property
    def server(self) -> RedisServer:
        """The server, by addresses or a URL, and what `load` read from files and environment."""
        url, password = self.held("url") or self.url, self.held("password")
        found = RedisServer(self.addresses, self.db, self.username, None, self.tls)
        found = redis_server(url) if url is not None else found
        return found if password is None else found._replace(password=password)


class Limit(Section):
    """One limit; see docs/limits.md."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Shown to clients. If several limits have one name, the first that matches a request applies."""
    kind: WrittenKind
    """Counts requests, tokens (input and output) or seconds of sound in a window, or requests in flight."""
    limit: Whole = Field(ge=1, le=MOST)
    """How many."""
    per_s: Seconds = Field(default=60.0, ge=0.1, le=31 * _DAY)
    """The window. Not for `concurrency`."""
    burst: Whole | None = Field(default=None, ge=1, le=MOST)
    """The most at once; the rest flows evenly. Absent: the whole limit. Not for `concurrency`."""
    scope: tuple[Dimension, ...] = ("key",)
    """Dimensions with counters of their own. Empty: one counter for all."""
    match: dict[Dimension, tuple[str, ...]] = {}
    """Applies only where these dimensions have one of these values."""
    shadow: Flag = False
    """Counts what it would refuse, and refuses nothing."""
    reserve: Reserve | None = None
    """The reservation of each request, for `tokens` alone. Absent: as `limiter.reserve`."""
    on_redis_failure: Literal["local", "open", "closed"] = "local"
    """While Redis is away: the limit's share counted here, no limit, or no request (503)."""


class KeyLimits(Section):
    """Limits of one key. The first three, a minute, are the same as limits of these names that match it alone; the
    last two hold for each gateway process by itself."""

    FEATURES = {
        "requests": "limits",
        "tokens": "limits",
        "concurrency": "limits",
        "budget": "limits",
        "streams": "caps",
        "connections": "caps",
    }

    requests: Whole | None = Field(default=None, ge=1, le=MOST)
    """Requests a minute."""
    tokens: Whole | None = Field(default=None, ge=1, le=MOST)
    """Tokens a minute, input and output."""
    concurrency: Whole | None = Field(default=None, ge=1, le=MOST)
    """Requests in flight."""
    budget: Budgeted | None = None
    """Most to spend in a month of the calendar, as a budget `budget` that matches it alone."""
    streams: Whole | None = Field(default=None, ge=1, le=MOST)
    """Streamed replies at once. Absent: `listen.max_streams_per_key`."""
    connections: Whole | None = Field(default=None, ge=1, le=MOST)
    """Connections at once. Absent: `listen.max_connections_per_key`."""


class Team(Section):
    """One team: bounds of all its keys and tokens together; see docs/keys.md."""

    FEATURES = {"limits": "limits", "budgets": "limits"}

    models: tuple[Name, ...] | None = None
    """Models (or aliases) that its callers may use at most. Absent: as each key says."""
    limits: dict[str, Annotated[Whole, Field(ge=1, le=MOST)]] = {}
    """Its own numbers, by the names of limits with `team` in their scope. `team-requests` and `team-tokens`, a minute,
    and `team-concurrency` need no such limit."""
    budgets: dict[str, Budgeted] = {}
    """Its own amounts, by the names of budgets with `team` in their scope. `team-budget`, a month, needs no such
    budget."""
    disabled: Flag = False
    """Refuse its callers for now."""
    description: str | None = Field(default=None, max_length=1000)
    """Shown to admins."""


class KeyMatch(Section):
    """Requests that are a key's without a key; see docs/keys.md for the risk."""

    address: tuple[Network, ...] = Field(min_length=1, max_length=1000)
    """Addresses and networks of their clients. No other key's may overlap."""


class Limiter(Section):
    """How limits are counted."""

    store: Literal["memory", "redis"] | None = None
    """Where: in this process alone, or for all gateways together. Absent: `redis` if there is one."""
    partitions: Whole = Field(default=1, ge=1, le=1024)
    """Hash slots of a Redis Cluster in use; more than 1 needs `partition_by`."""
    partition_by: Dimension | None = None
    """The dimension that chooses the slot; then every limit must have it in its scope."""
    replicas: Whole = Field(default=1, ge=1, le=10000)
    """Gateways to assume until Redis reports their number."""
    reserve: Reserve = "expected"
    """Reservations of token limits and budgets: prompt and `expected` output, whose excess later windows pay, or the
    `maximum` of a request."""
    bytes_per_token: Share = Field(default=3.0, ge=1, le=16)
    """For the estimate of a prompt before it is sent; 1 is never below the truth."""
    output_tokens: Whole = Field(default=1024, ge=1, le=10_000_000)
    """Assumed where neither the client nor the model's context bounds the output."""
    image_tokens: Whole = Field(default=1024, ge=0, le=10_000_000)
    """Assumed for an image."""
    headers: tuple[LimitHeadersOf, ...] = ("openai", "anthropic")
    """Headers of replies about limits: OpenAI's in every dialect; Anthropic's in its own; `RateLimit` and
    `RateLimit-Policy` of the IETF's draft in every dialect."""

    @property
    def common_headers(self) -> bool:
        return "openai" in self.headers

    @property
    def own_headers(self) -> bool:
        return "anthropic" in self.headers

    @property
    def draft_headers(self) -> bool:
        return "ietf" in self.headers


class Jwt(Section):
    """Tokens of an identity provider, beside or instead of keys. A claim in an object is named by its path, such as
    `realm_access.roles`."""

    FEATURES = {"roles_claim": "admin"}

    issuer: str = Field(min_length=1)
    """The claim `iss` must be this."""
    audience: str = Field(min_length=1)
    """The claim `aud` must be or hold this."""
    jwks_file: str | None = Field(default=None, min_length=1)
    """File with the provider's keys (JWKS); relative to this file's folder."""
    jwks_url: KeySetUrl | None = None
    """Address of those keys, read at the start and then every 5 minutes."""
    ca_file: str | None = Field(default=None, min_length=1)
    """PEM bundle that the certificate of `jwks_url` must chain to. Absent: that of the web's authorities."""
    team_claim: str | None = Field(default=None, min_length=1)
    """Claim that names the team."""
    models_claim: str | None = Field(default=None, min_length=1)
    """Claim that lists the models it may use. Absent: all models."""
    roles_claim: str | None = Field(default=None, min_length=1)
    """Claim that lists roles for the admin API: `dragoman-admin` for all keys, `dragoman-team-admin` for the team's.
    Absent: tokens have none."""

    @property
    def keys_text(self) -> str | None:
        """The content of `jwks_file`, read by `load`."""
        return self.held("keys_text")


class Admin(Section):
    """One admin of the keys in `keys_store`, by the hash of a key of its own. `dragoman keys new` makes one."""

    hash: Hash
    """`sha256:` and the SHA-256 of the whole key in hexadecimal."""
    id: str | None = Field(default=None, pattern=r"^[0-9a-z]{4,32}$")
    """The id inside a `dgm_` key, to find its entry by."""
    teams: tuple[Name, ...] | None = Field(default=None, min_length=1, max_length=1000)
    """Only keys of these teams. Absent: all keys."""


class StoredKeys(Section):
    """Bounds of the keys in `keys_store`."""

    hold_s: Seconds = Field(default=float(_DAY), ge=1, le=31 * _DAY)
    """How long the known keys go on working while Redis is away, or after it has lost them."""
    max_keys: Whole = Field(default=10_000, ge=1, le=100_000)
    """Most keys that are not revoked. As many of those that were revoked last are remembered."""
    max_audit: Whole = Field(default=100_000, ge=1000, le=10_000_000)
    """About how many changes the audit record holds."""


class SharedSecret(Section):
    """A section with a secret that all gateways of a deployment share."""

    SECRETS = ("secret",)
    ANY_OF = ("secret_file", "secret_env")

    secret_file: str | None = Field(default=None, min_length=1)
    """File with a secret of 32 characters or more, the same for all gateways; relative to this file's folder."""
    secret_env: Variable | None = None
    """Environment variable with that secret."""

    @property
    def secret(self) -> str:
        """Read by `load` from `secret_file` or `secret_env`."""
        return self.held("secret") or ""


class CacheSalt(SharedSecret):
    """Keeps the prompts of one team apart from those of others in the prefix caches of vLLM workers."""

    by: Literal["team", "key", "end_user"] = "team"
    """Callers that share a cache: a team, a key, or an end user of a team. A key without a team is one."""


class EndUsers(Section):
    """The end users of requests, as a dimension of limits, budgets, records and reports; see docs/end-users.md."""

    SECRETS = ("secret",)

    body: Flag = True
    """Take the name in the request's body: `safety_identifier`, `user`, or `metadata.user_id`."""
    header: str | None = Field(default=None, pattern=r"^[A-Za-z0-9-]{1,64}$")
    """A header that names them, from `listen.trusted_proxies` alone. It wins over the body."""
    required: Flag = False
    """Refuse requests that name none (400)."""
    secret_file: str | None = Field(default=None, min_length=1)
    """File with a secret of 32 characters or more, by which names are hashed; relative to this file's folder. Absent:
    they are kept plain."""
    secret_env: Variable | None = None
    """Environment variable with that secret."""

    @property
    def secret(self) -> str | None:
        """Read by `load` from `secret_file` or `secret_env`."""
        return self.held("secret")


class Seal(SharedSecret):
    """The secret that encrypts the reasoning which clients keep for the gateway."""


class Store(Section):
    """Responses that clients may refer to later: `previous_response_id` and `item_reference` of the Responses API."""

    where: Literal["nowhere", "memory", "redis"] = "nowhere"
    """`nowhere`: such references are refused. `memory`: of this gateway, lost when it stops. `redis`: shared by all
    gateways."""
    ttl_s: Seconds = Field(default=3600.0, ge=1, le=31 * _DAY)
    """How long they are kept."""
    max_bytes: Bytes = Field(default=268435456, ge=1 << 20, le=1 << 40)
    """Most bytes of all in memory; the oldest response of the caller with the most goes first."""


class Accounting(Section):
    """Usage, for a billing job to read. The request records in the log hold the same."""

    redis_stream: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.:{}-]{1,128}$")
    """Append the record of every request of a known caller to this stream of `redis`; its key is `NAMESPACE:NAME`."""
    max_length: Whole = Field(default=1_000_000, ge=1000, le=MOST)
    """About how many records the stream keeps."""
