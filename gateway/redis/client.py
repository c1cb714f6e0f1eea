"""redis-py clients, used through redis-py's public interface only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from redis.asyncio import Redis as Client
from redis.asyncio import RedisCluster, Sentinel, SentinelConnectionPool
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import RedisClusterException, RedisError

from gateway.config import Redis
from gateway.redis.settings import credentials, split_address

FAILURES = (RedisError, RedisClusterException, OSError, UnicodeDecodeError)
"""Errors of a call if the server, the network or the file with the password fails. A time-out is an OSError."""
_CONNECT_S = 1.0
_ASK_SHARE = 0.3
"""Share of the time for a connection that one Sentinel gets when redis-py asks several in turn: one of them may be on a
machine that just died, and then there must be time for the next."""


def connect_s(settings: Redis) -> float:
    """Seconds to find the server and connect to it. If a call may take longer, so may the connection."""
    return max(_CONNECT_S, settings.timeout_s)


class _Login(CredentialProvider):
    """Reads the settings at every connect."""

    def __init__(self, settings: Redis) -> None:
        self._settings = settings

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        return credentials(self._settings) or ("",)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """The client calls this method; the inherited one warns at every connect."""
        return self.get_credentials()


def _options(settings: Redis, *, login: bool = True) -> dict[str, Any]:
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": None,  # each caller has a deadline of its own
        "socket_connect_timeout": connect_s(settings),
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,  # else CLIENT SETINFO at every connect, which an ACL need not allow
    }
    server = settings.server
    if login and (server.username or server.password is not None or settings.password_file is not None):
        options["credential_provider"] = _Login(settings)
    if server.tls:
        options |= {
            "ssl": True,
            "ssl_ca_certs": settings.ca_file,
            "ssl_certfile": settings.cert_file,
            "ssl_keyfile": settings.key_file,
        }
    return options


def _asking(settings: Redis, limit: float, *, login: bool = True) -> dict[str, Any]:
    """Options for one of several that may know where the server is: seconds to reach it, and again to answer."""
    return {**_options(settings, login=login), "socket_connect_timeout": limit, "socket_timeout": limit}


def sentinels(settings: Redis, addresses: Sequence[str], limit: float) -> Sentinel:
    """The Sentinels at `addresses`; the caller must close each of their `sentinels` in the end."""
    asking = _asking(settings, limit, login=settings.sentinel_auth)
    nodes = [split_address(one) for one in addresses]
    return Sentinel(nodes, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]  # redis-py has no types here


def node(settings: Redis, address: str) -> Client:
    """One node of a cluster, to be asked about the cluster."""
    host, port = split_address(address)
    return Client(host=host, port=port, **_asking(settings, connect_s(settings)))


class _Primary(Client):
    """The primary that Sentinels name. They are closed with it."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        try:
            await super().aclose(close_connection_pool)
        finally:
            pool = cast("SentinelConnectionPool", self.connection_pool)
            for one in pool.sentinel_manager.sentinels:
                await one.aclose()


def connect(settings: Redis) -> Any:
    """A client without retries of its own, whose `aclose` the caller calls. Does no I/O yet."""
    options = _options(settings)
    if settings.mode == "cluster":
        nodes = [ClusterNode(*split_address(one)) for one in settings.server.addresses]
        return RedisCluster(startup_nodes=nodes, **options)
    if settings.mode == "sentinel":
        sentinel = sentinels(settings, settings.server.addresses, _ASK_SHARE * connect_s(settings))
        return sentinel.master_for(settings.sentinel_name, _Primary, db=settings.server.db, **options)
    host, port = split_address(settings.server.addresses[0])
    return Client(host=host, port=port, db=settings.server.db, **options)
