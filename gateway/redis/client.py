"""redis-py clients, used through redis-py's public interface only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from gateway.redis.settings import RedisSettings, split_address

_CONNECT_S = 1.0
_ASK_SHARE = 0.3
"""Share of the time for a connection that one Sentinel gets when redis-py asks several in turn: one of them may be on a
machine that just died, and then there must be time for the next."""


def connect_s(settings: RedisSettings) -> float:
    """Seconds to find the server and connect to it. If a call may take longer, so may the connection."""
    return max(_CONNECT_S, settings.timeout)


class _Login(CredentialProvider):
    """Reads the settings at every connect."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        return self._settings.credentials() or ("",)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """The client calls this method; the inherited one warns at every connect."""
        return self.get_credentials()


def _options(settings: RedisSettings, *, login: bool = True) -> dict[str, Any]:
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": None,  # each caller has a deadline of its own
        "socket_connect_timeout": connect_s(settings),
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,  # else CLIENT SETINFO at every connect, which an ACL need not allow
    }
    if login and (settings.username or settings.password is not None or settings.password_file is not None):
        options["credential_provider"] = _Login(settings)
    if settings.tls:
        options |= {
            "ssl": True,
            "ssl_ca_certs": settings.ca_file,
            "ssl_certfile": settings.cert_file,
            "ssl_keyfile": settings.key_file,
        }
    return options


def _asking(settings: RedisSettings, limit: float, *, login: bool = True) -> dict[str, Any]:
    """Options for one of several that may know where the server is: seconds to reach it, and again to answer."""
    return {**_options(settings, login=login), "socket_connect_timeout": limit, "socket_timeout": limit}


def sentinels(settings: RedisSettings, addresses: Sequence[str], limit: float) -> Sentinel:
    """The Sentinels at `addresses`; the caller must close each of their `sentinels` in the end."""
    asking = _asking(settings, limit, login=settings.sentinel_auth)
    nodes = [split_address(one) for one in addresses]
    return Sentinel(nodes, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]  # redis-py has no types here


def node(settings: RedisSettings, address: str) -> Redis:
    """One node of a cluster, to be asked about the cluster."""
    host, port = split_address(address)
    return Redis(host=host, port=port, **_asking(settings, connect_s(settings)))


def connect(settings: RedisSettings) -> tuple[Any, list[Any]]:
    """(a client without retries of its own, all that must be closed in the end). Does no I/O yet."""
    options = _options(settings)
    if settings.mode == "cluster":
        nodes = [ClusterNode(*split_address(one)) for one in settings.addresses]
        cluster = RedisCluster(startup_nodes=nodes, **options)
        return cluster, [cluster]
    if settings.mode == "sentinel":
        sentinel = sentinels(settings, settings.addresses, _ASK_SHARE * connect_s(settings))
        primary = sentinel.master_for(settings.sentinel_name, db=settings.db, **options)
        return primary, [primary, *sentinel.sentinels]
    host, port = split_address(settings.addresses[0])
    single = Redis(host=host, port=port, db=settings.db, **options)
    return single, [single]
