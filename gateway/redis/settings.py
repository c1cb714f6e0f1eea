"""The addresses of Redis and the login for it."""

from __future__ import annotations

import ssl
from pathlib import Path

from msgspec import Struct

from gateway.config import Redis


class RedisSettings(Struct, frozen=True, kw_only=True):
    """The addresses of a server, and how to connect to it. Raises ValueError if the fields contradict each other.

    addresses      host:port (IPv6 in brackets): one for a single server, all Sentinels, or some nodes of a cluster
    mode           single, sentinel or cluster
    sentinel_name  the name under which the Sentinels know the primary
    db             database number; 0 in a cluster
    username       ACL user, also for the Sentinels if `sentinel_auth`
    password       the user's password, or
    password_file  the file that holds it; read at every connect, so that a rotated secret needs no restart
    tls            with ca_file to trust, cert_file and key_file to show
    timeout        seconds that a call may always take; see `gateway.ratelimit.redis.batcher`
    """

    addresses: tuple[str, ...]
    mode: str = "single"
    sentinel_name: str = "mymaster"
    sentinel_auth: bool = False
    db: int = 0
    username: str | None = None
    password: str | None = None
    password_file: str | None = None
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    timeout: float = 0.05

    def __post_init__(self) -> None:
        if self.mode not in ("single", "sentinel", "cluster"):
            raise ValueError("redis mode must be single, sentinel or cluster")
        if not self.addresses or (self.mode == "single" and len(self.addresses) != 1):
            raise ValueError("redis needs one address, or those of its sentinels or cluster nodes")
        if self.mode == "cluster" and self.db:
            raise ValueError("a redis cluster has only database 0")
        if not 0.001 <= self.timeout <= 10:
            raise ValueError("redis timeout must be 0.001 to 10 seconds")
        for one in self.addresses:
            split_address(one)

    def __repr__(self) -> str:
        return f"RedisSettings({self.mode}, {', '.join(self.addresses)})"

    @classmethod
    def of(cls, redis: Redis | None) -> RedisSettings:
        """The section `redis` of gateway.yaml. The caller has checked that it is there."""
        assert redis is not None
        server = redis.server
        return cls(
            addresses=server.addresses,
            mode=redis.mode,
            sentinel_name=redis.sentinel_name,
            sentinel_auth=redis.sentinel_auth,
            db=server.db,
            username=server.username,
            password=server.password,
            password_file=redis.password_file,
            tls=server.tls,
            ca_file=redis.ca_file,
            cert_file=redis.cert_file,
            key_file=redis.key_file,
            timeout=redis.timeout_s,
        )

    def credentials(self) -> tuple[str] | tuple[str, str] | None:
        """The arguments of AUTH: (password,) or (user, password); None without either. Reads `password_file`.
        Raises OSError or UnicodeDecodeError when the file cannot be read."""
        password = self.password
        if self.password_file is not None:
            password = Path(self.password_file).read_text(encoding="utf-8").rstrip("\r\n")
        if self.username is not None:
            return self.username, password or ""
        return (password,) if password is not None else None

    def context(self) -> ssl.SSLContext | None:
        """TLS as configured, None without TLS. Reads files. Raises OSError (ssl.SSLError among them)."""
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.cert_file is not None:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of `host:port`, without the brackets of an IPv6 address. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65_536 or not host:
        raise ValueError(f"redis address {address!r} is not host:port")
    return host.strip("[]"), int(port)
