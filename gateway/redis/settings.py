"""How to log in to the Redis of the section `redis`: what is read at every connect."""

from __future__ import annotations

import ssl
from pathlib import Path

from gateway.config import Redis


def credentials(redis: Redis) -> tuple[str] | tuple[str, str] | None:
    """The arguments of AUTH: (password,) or (user, password); None without either. Reads `password_file` again, so that
    a rotated secret needs no restart. Raises OSError or UnicodeDecodeError when the file cannot be read."""
    server = redis.server
    password = server.password
    if redis.password_file is not None:
        password = Path(redis.password_file).read_text(encoding="utf-8").rstrip("\r\n")
    if server.username is not None:
        return server.username, password or ""
    return (password,) if password is not None else None


def context(redis: Redis) -> ssl.SSLContext | None:
    """TLS as configured, None without TLS. Reads files. Raises OSError (ssl.SSLError among them)."""
    if not redis.server.tls:
        return None
    found = ssl.create_default_context(cafile=redis.ca_file)
    if redis.cert_file is not None:
        found.load_cert_chain(redis.cert_file, redis.key_file)
    return found


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of `host:port`, without the brackets of an IPv6 address. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65_536 or not host:
        raise ValueError(f"redis address {address!r} is not host:port")
    return host.strip("[]"), int(port)
