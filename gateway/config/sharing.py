"""Options of what gateways share or count: Redis, limits, accounting."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, PrivateAttr, SecretStr

from gateway.config.kinds import (
    Address,
    Bytes,
    Flag,
    KeySetUrl,
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
_MOST = 10**12

Dimension = Literal["key", "team", "model", "address"]


class Redis(Section):
    """A Redis or Valkey server that all gateways of a deployment share."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": [name]} for name in ("addresses", "url", "url_file", "url_env")]}
    )

    addresses: tuple[Address, ...] = Field(
        default=(),
        min_length=1,
        max_length=100,
        description="`host:port`: one for a single server, those of all Sentinels, or of some cluster nodes. Required,"
        " unless there is a URL.",
    )
    url: RedisUrl | None = Field(
        default=None,
        description="`redis://[user@]host[:port][/db]`, or `rediss://` for TLS; instead of `addresses`, `db`,"
        " `username` and `tls`.",
    )
    url_file: str | None = Field(
        default=None,
        min_length=1,
        description="File with such a URL, in which the password may stand too; relative to this file's folder.",
    )
    url_env: Variable | None = Field(
        default=None, description="Environment variable with such a URL, in which the password may stand too."
    )
    mode: Literal["single", "sentinel", "cluster"] = Field(default="single", description="What answers there.")
    sentinel_name: str = Field(
        default="mymaster", min_length=1, description="The name under which the Sentinels know the primary."
    )
    namespace: str = Field(
        default="dragoman",
        pattern=r"^[A-Za-z0-9_.-]{1,128}$",
        description="Every key begins with it: two deployments on one server need two. Workers that register need the"
        " same (`--namespace`).",
    )
    sentinel_auth: Flag = Field(default=False, description="The Sentinels ask for the same user and password.")
    db: Whole = Field(default=0, ge=0, le=65535, description="Number of the database; a cluster has only 0.")
    username: str | None = Field(default=None, min_length=1, description="ACL user.")
    password_file: str | None = Field(
        default=None,
        min_length=1,
        description="File with the password, read at every connect; relative to this file's folder.",
    )
    password_env: Variable | None = Field(default=None, description="Environment variable with the password.")
    tls: Flag = Field(default=False, description="Connect by TLS.")
    ca_file: str | None = Field(
        default=None, min_length=1, description="PEM bundle that its certificate must chain to. Absent: the system's."
    )
    cert_file: str | None = Field(default=None, min_length=1, description="Certificate to show, PEM.")
    key_file: str | None = Field(default=None, min_length=1, description="That certificate's private key, PEM.")
    timeout_s: Seconds = Field(
        default=0.05,
        ge=0.001,
        le=10,
        description="How long a request waits for an answer at least; longer where answers are slow: docs/limits.md.",
    )

    _url: SecretStr | None = PrivateAttr(None)
    _password: SecretStr | None = PrivateAttr(None)

    @property
    def server(self) -> RedisServer:
        """Where it is, however that was written; what `load` read from files and environment included."""
        url = self.url if self._url is None else self._url.get_secret_value()
        found = RedisServer(self.addresses, self.db, self.username, None, self.tls)
        found = redis_server(url) if url is not None else found
        return found if self._password is None else found._replace(password=self._password.get_secret_value())


class Limit(Section):
    """One limit; see docs/limits.md."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
        description="Shown to clients. Of limits with one name the first that matches a request applies.",
    )
    kind: Literal["requests", "tokens", "concurrency"] = Field(
        description="What is counted: requests or tokens (input and output) in a window, or requests in flight."
    )
    limit: Whole = Field(ge=1, le=_MOST, description="How many.")
    per_s: Seconds = Field(default=60.0, ge=0.1, le=31 * _DAY, description="The window. Not for `concurrency`.")
    burst: Whole | None = Field(
        default=None,
        ge=1,
        le=_MOST,
        description="The most at once; the rest flows evenly. Absent: the whole limit. Not for `concurrency`.",
    )
    scope: tuple[Dimension, ...] = Field(
        default=("key",), description="Who has a counter of their own. Empty: one counter for all."
    )
    match: dict[Dimension, tuple[str, ...]] = Field(
        default={}, description="Applies only where these dimensions have one of these values."
    )
    shadow: Flag = Field(default=False, description="Counts what it would refuse, and refuses nothing.")
    on_redis_failure: Literal["local", "open", "closed"] = Field(
        default="local",
        description="While Redis is away: the limit's share counted here, no limit, or no request (503).",
    )


class KeyLimits(Section):
    """Limits of one key. The first three, a minute, are the same as limits of these names that match it alone; the
    others hold for each gateway process by itself."""

    requests: Whole | None = Field(default=None, ge=1, le=_MOST, description="Requests a minute.")
    tokens: Whole | None = Field(default=None, ge=1, le=_MOST, description="Tokens a minute, input and output.")
    concurrency: Whole | None = Field(default=None, ge=1, le=_MOST, description="Requests in flight.")
    streams: Whole | None = Field(
        default=None, ge=1, le=_MOST, description="Streamed replies at once. Absent: `listen.max_streams_per_key`."
    )
    connections: Whole | None = Field(
        default=None, ge=1, le=_MOST, description="Connections at once. Absent: `listen.max_connections_per_key`."
    )


class Limiter(Section):
    """How limits are counted."""

    store: Literal["memory", "redis"] | None = Field(
        default=None,
        description="Where: in this process alone, or for all gateways together. Absent: `redis` if there is one.",
    )
    partitions: Whole = Field(
        default=1, ge=1, le=1024, description="Hash slots of a Redis Cluster in use; more than 1 needs `partition_by`."
    )
    partition_by: Dimension | None = Field(
        default=None, description="The dimension that chooses the slot; then every limit must have it in its scope."
    )
    replicas: Whole = Field(
        default=1, ge=1, le=10000, description="Gateways to assume until Redis has told how many there are."
    )
    bytes_per_token: Share = Field(
        default=3.0,
        ge=1,
        le=16,
        description="For the estimate of a prompt before it is sent; 1 is never below the truth.",
    )
    output_tokens: Whole = Field(
        default=1024,
        ge=1,
        le=10_000_000,
        description="Assumed where neither the client nor the model's context bounds the output.",
    )
    image_tokens: Whole = Field(default=1024, ge=0, le=10_000_000, description="Assumed for an image.")


class Jwt(Section):
    """Tokens of an identity provider, beside or instead of keys."""

    issuer: str = Field(min_length=1, description="What the claim `iss` must be.")
    audience: str = Field(min_length=1, description="What the claim `aud` must be or hold.")
    jwks_file: str | None = Field(
        default=None, min_length=1, description="File with the provider's keys (JWKS); relative to this file's folder."
    )
    jwks_url: KeySetUrl | None = Field(
        default=None, description="Address of those keys, read at the start and then every 5 minutes."
    )
    team_claim: str | None = Field(default=None, min_length=1, description="Claim that names the team.")
    models_claim: str | None = Field(
        default=None, min_length=1, description="Claim that lists the models it may use. Absent: all models."
    )

    _keys_text: str | None = PrivateAttr(None)

    @property
    def keys_text(self) -> str | None:
        """What `jwks_file` holds, read by `load`."""
        return self._keys_text


class SharedSecret(Section):
    """A section with a secret that all gateways of a deployment share."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["secret_file"]}, {"required": ["secret_env"]}]}
    )

    secret_file: str | None = Field(
        default=None,
        min_length=1,
        description="File with a secret of 32 characters or more, the same for all gateways; relative to this file's"
        " folder.",
    )
    secret_env: Variable | None = Field(default=None, description="Environment variable with that secret.")

    _secret: SecretStr | None = PrivateAttr(None)

    @property
    def secret(self) -> str:
        """Read by `load` from `secret_file` or `secret_env`."""
        return self._secret.get_secret_value() if self._secret else ""


class CacheSalt(SharedSecret):
    """Keeps the prompts of one team apart from those of others in the prefix caches of vLLM workers."""

    by: Literal["team", "key"] = Field(
        default="team", description="Who shares a cache: the keys of a team, or nobody. A key without a team is alone."
    )


class Seal(SharedSecret):
    """The secret that encrypts the reasoning which clients keep for the gateway."""


class Store(Section):
    """Responses that clients may refer to later: `previous_response_id` and `item_reference` of the Responses API."""

    where: Literal["nowhere", "memory", "redis"] = Field(
        default="nowhere",
        description="`nowhere`: such references are refused. `memory`: of this gateway, lost when it stops."
        " `redis`: shared by all gateways.",
    )
    ttl_s: Seconds = Field(default=3600.0, ge=1, le=31 * _DAY, description="How long they are kept.")
    max_bytes: Bytes = Field(
        default=268435456,
        ge=1 << 20,
        le=1 << 40,
        description="Of all in memory; the oldest of the caller with the most goes first.",
    )


class Accounting(Section):
    """What was used, for a billing job to read. The request records in the log hold the same."""

    redis_stream: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_.:{}-]{1,128}$",
        description="Append the record of every request of a known caller to this stream of `redis`; its key is"
        " `NAMESPACE:NAME`.",
    )
    max_length: Whole = Field(
        default=1_000_000, ge=1000, le=_MOST, description="About how many records the stream keeps."
    )
