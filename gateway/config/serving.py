"""Options of the gateway's own side: where it listens, which pages may call it, log, metrics, console and traces."""

from __future__ import annotations

import ipaddress
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field

from gateway.config.kinds import (
    Address,
    Bytes,
    CollectorUrl,
    Flag,
    HeaderName,
    Host,
    IssuerUrl,
    Name,
    Network,
    Origin,
    Seconds,
    ServiceUrl,
    Share,
    Variable,
    Whole,
)
from gateway.config.section import Section

_DAY = 86400


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address (an IPv6 address without brackets), means this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_private(url: str) -> bool:
    """Whether nobody on the way to `url` can read or change what passes: it has TLS, or is on this machine."""
    address = urlsplit(url)
    return address.scheme == "https" or is_loopback(address.hostname or "")


class Listen(Section):
    """Addresses to listen on, and bounds on what a client may send or hold open."""

    FEATURES = {
        "max_uploads_bytes": "uploads",
        "max_connections_per_key": "caps",
        "max_streams_per_key": "caps",
        "max_sockets": "sockets",
        "socket_idle_s": "sockets",
        "shed_lag_s": "shedding",
    }

    host: Host = "127.0.0.1"
    """Address to listen on. Anything but loopback needs keys or `auth: open`."""
    port: Whole = Field(default=8080, ge=0, le=65535)
    """TCP port; 0 takes any free one."""
    keep_alive_s: Seconds = Field(default=75.0, gt=0, le=3600)
    """How long an idle client connection is kept open. Longer than the proxy in front keeps it."""
    header_timeout_s: Seconds = Field(default=10.0, gt=0, le=600)
    """Longest time for a request's head to arrive."""
    body_timeout_s: Seconds = Field(default=60.0, gt=0, le=3600)
    """Longest pause while a request body arrives."""
    min_body_rate_bytes: Bytes = Field(default=500, ge=0, le=1 << 30)
    """Slowest average rate of a request body, in bytes a second, beyond the first `body_timeout_s`. 0: no limit."""
    write_idle_s: Seconds = Field(default=60.0, gt=0, le=3600)
    """A client that reads nothing for this long is dropped."""
    max_header_bytes: Bytes = Field(default=32768, ge=1024, le=1 << 20)
    """Largest request head; a larger one is answered 431."""
    max_header_count: Whole = Field(default=100, ge=8, le=10000)
    """Most header fields of a request; more are answered 431."""
    max_body_bytes: Bytes = Field(default=33554432, ge=1024, le=1 << 32)
    """Largest request body; a larger one is answered 413."""
    max_bodies_bytes: Bytes | None = Field(default=None, ge=1024)
    """Most bytes at once of request bodies above 64 KiB and of stored responses in use; more get 503. Absent: a tenth
    of the memory."""
    caller_share: Share = Field(default=0.5, gt=0, le=1)
    """Part of what others leave that one caller (team, key or address) may hold of `max_bodies_bytes`,
    `max_uploads_bytes`, `max_sockets` and `relay.continue_bytes`. 1: all."""
    max_uploads_bytes: Bytes = Field(default=4 << 30, ge=1024, le=1 << 50)
    """Most bytes at once of uploads of sound and images, in temporary files (`TMPDIR`); more are answered 503."""
    max_connections: Whole = Field(default=10000, ge=1, le=1000000)
    """Most client connections at once; more are answered 503. One key or address may have nine tenths, a trusted
    proxy all."""
    max_connections_per_key: Whole | None = Field(default=None, ge=1, le=1000000)
    """Most connections of one key; a request on one more is answered 429, and that connection is closed. Absent: nine
    tenths of `max_connections`."""
    max_streams_per_key: Whole | None = Field(default=None, ge=1, le=1000000)
    """Most streamed replies of one key at once; more are answered 429. Absent: no bound."""
    max_sockets: Whole = Field(default=1000, ge=0, le=1000000)
    """Most web sockets at once; one more is answered 426, and its client then uses POST. 0: none are served."""
    socket_idle_s: Seconds = Field(default=600.0, gt=0, le=3600)
    """A web socket on which no response has been under way for this long is closed."""
    shed_lag_s: Seconds = Field(default=0.5, ge=0, le=60)
    """While the event loop is later than this, requests are answered 503, those of the lowest priority first; see
    docs/reliability.md. 0: never."""
    trusted_proxies: tuple[Network, ...] = ()
    """Proxies, by address or network, whose `X-Forwarded-For` is believed."""

    @property
    def connections_share(self) -> float:
        """The part of what the others leave of `max_connections` that one caller may hold."""
        return 1.0 if self.caller_share == 1 else 0.9

    @property
    def connections_per_key(self) -> int | None:
        """Most connections of a key that has no bound of its own."""
        if self.max_connections_per_key is not None or self.caller_share == 1:
            return self.max_connections_per_key
        return max(1, int(self.max_connections * self.connections_share))

    @property
    def loopback(self) -> bool:
        """Only this machine can connect."""
        return is_loopback(self.host)


class Start(Section):
    """Readiness after a start, and knowledge that outlives a restart; see docs/production.md."""

    ready_within_s: Seconds = Field(default=300.0, ge=0, le=_DAY)
    """How long `/readyz` may stay 503 because sources of workers or keys could not be read since the start. 0: it is
    ready at once."""
    known_folder: str | None = Field(default=None, pattern=r"^/", max_length=1024)
    """A folder, by its whole path, for workers and keys as they were read last: a restart begins with them. Absent:
    memory alone."""


class Cors(Section):
    """Pages in browsers that may call the gateway from another origin. Without origins none may."""

    origins: tuple[Origin, ...] = Field(default=(), max_length=1000)
    """Origins of those pages, such as `https://chat.example.com`; `"*"` is every page there is."""
    headers: tuple[HeaderName, ...] | None = Field(default=None, max_length=1000)
    """Request headers that they may send, such as `authorization`. Absent: all."""
    max_age: Whole = Field(default=600, ge=0, le=_DAY)
    """For how many seconds a browser need not ask again for its permission."""


class Log(Section):
    """The log on standard output."""

    FEATURES = {"dangerously_log_prompts": "prompt_log"}

    requests: Flag = True
    """One record a request."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is written. `debug` adds the steps of every request from worker to worker, and every probe."""
    format: Literal["auto", "json", "console"] = "auto"
    """`json`: one JSON object a line. `console`: lines for people to read. `auto`: `console` if standard output is a
    terminal, else `json`."""
    dangerously_log_prompts: Flag = False
    """Log the body of every request, at level `info`, for every reader of the log to see. Not for production."""


class Metrics(Section):
    """Figures for Prometheus."""

    enabled: Flag = True
    """Serve `/metrics`."""
    listen: Address | None = None
    """A separate `host:port` for `/livez`, `/readyz`, `/status.json`, `/console` and, there alone, `/metrics`. Absent:
    `/metrics` is served where clients call, without a key."""
    genai: Flag = False
    """Also show requests, first tokens and token usage under OpenTelemetry's names (`gen_ai_*`)."""
    top_keys: Whole = Field(default=0, ge=0, le=1000)
    """Also show requests, tokens and cost of so many keys by name (`dragoman_key_*`), to all readers of `/metrics`."""


class ConsoleRoles(Section):
    """The roles of people who log in, by a claim of their token; the first that fits counts."""

    claim: str = Field(default="groups", min_length=1, max_length=200)
    """Claim that lists groups or roles. In an object it is named by its path, such as `realm_access.roles`."""
    admin: tuple[str, ...] = Field(default=(), max_length=1000)
    """Its values by which somebody may see and change everything."""
    lead: tuple[str, ...] = Field(default=(), max_length=1000)
    """Its values by which somebody may see and change what is the team's alone."""
    team_claim: str | None = Field(default=None, min_length=1, max_length=200)
    """Claim that names a lead's team, or lists several."""
    viewer: tuple[str, ...] = Field(default=(), max_length=1000)
    """Its values by which somebody may see everything, and change nothing."""


class ConsoleOidc(Section):
    """Login to the console by an identity provider (OpenID Connect); see docs/console.md."""

    SECRETS = ("client_secret", "session_secret")

    issuer: IssuerUrl
    """The provider, exactly as its tokens name it; `/.well-known/openid-configuration` is behind it."""
    client_id: str = Field(min_length=1, max_length=256)
    """The console's name at the provider."""
    client_secret_file: str | None = Field(default=None, min_length=1)
    """File with its secret there; relative to this file's folder. Absent, and no variable: it is a public client."""
    client_secret_env: Variable | None = None
    """Environment variable with that secret."""
    ca_file: str | None = Field(default=None, min_length=1)
    """PEM bundle that the provider's certificate must chain to, relative to this file's folder. Absent: that of the
    web's authorities."""
    url: ServiceUrl
    """Address of the admin side as browsers reach it, such as `https://ops.example.com`. The provider must allow
    `/console/callback` behind it, and `/console/logged-out` after a logout."""
    scopes: tuple[Name, ...] = Field(default=("openid",), min_length=1, max_length=50)
    """Scopes to ask for; `openid` is needed."""
    name_claim: str = Field(default="sub", min_length=1, max_length=200)
    """Claim by which the audit record names people, such as `email`: one that the provider gives to one person."""
    roles: ConsoleRoles
    """The roles of people who log in."""
    session_s: Seconds = Field(default=28800.0, ge=60, le=7 * _DAY)
    """How long a login holds."""
    session_secret_file: str | None = Field(default=None, min_length=1)
    """File, relative to this one, with a secret of 32 characters or more, the same for all gateways. Absent: a session
    is of one process."""
    session_secret_env: Variable | None = None
    """Environment variable with that secret."""

    @property
    def client_secret(self) -> str | None:
        """Read by `load` from `client_secret_file` or `client_secret_env`."""
        return self.held("client_secret")

    @property
    def session_secret(self) -> str | None:
        """Read by `load` from `session_secret_file` or `session_secret_env`."""
        return self.held("session_secret")


class Console(Section):
    """A page for operators at `/console` of `metrics.listen`: live plots, and a playground for single requests."""

    SECRETS = ("key",)

    enabled: Flag = False
    """Serve `/console`. Needs `metrics.listen`."""
    key_file: str | None = Field(default=None, min_length=1)
    """File, relative to this one, with the key of the page and of `/status.json`. Needed if clients need keys or
    `metrics.listen` is not loopback."""
    key_env: Variable | None = None
    """Environment variable with that key."""
    oidc: ConsoleOidc | None = None
    """People log in by an identity provider, beside the key or instead of it."""

    @property
    def key(self) -> str | None:
        """Read by `load` from `key_file` or `key_env`; None if no key is needed."""
        return self.held("key")


class Tracing(Section):
    """Traces by OpenTelemetry; needs the extra `tracing`."""

    endpoint: CollectorUrl
    """Address of a collector that takes OTLP over HTTP, such as `http://127.0.0.1:4318`; without a path it is
    `/v1/traces`."""
    sample: Share = Field(default=0.1, ge=0, le=1)
    """Share of requests that are recorded, of those whose client names no trace; else the client's trace decides."""
    service: Name = "dragoman"
    """The gateway's name in traces. `OTEL_SERVICE_NAME` comes first."""
    headers: dict[str, str] = Field(default={}, repr=False)
    """Extra headers to the collector, such as one with a key."""
