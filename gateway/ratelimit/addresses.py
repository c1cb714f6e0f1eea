"""The address of a request's client."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

from gateway.core.addresses import network_of

Scope = MutableMapping[str, Any]
Networks = Sequence[IPv4Network | IPv6Network]

_MOST_PROXIES = 16
_HIDDEN = "unknown"
"""Entries of proxies that do not know or do not tell the address (RFC 7239, section 6.2; Squid's
`forwarded_for off`)."""


def client_address(scope: Scope, trusted: Networks) -> str | None:
    """The client's IP: the peer, or behind trusted proxies the right-most untrusted X-Forwarded-For entry. None when
    it is unknown: there is no peer, or a trusted proxy hides its client.

    trusted holds networks (`ipaddress`). Only the last 16 entries are read, because a client inside a trusted network
    could write thousands. An entry that is not an address ends the search; the address found before it counts.
    """
    client = scope.get("client")
    if client is None:
        return None
    peer = canonical(client[0])
    return _vouched(peer, scope, trusted)[0] if trusted else peer


def client_network(scope: Scope, trusted: Networks) -> str | None:
    """As `client_address`; of an IPv6 address the network of 64 bits, which one client has as a whole."""
    address = client_address(scope, trusted)
    return None if address is None else network_of(address)


def sole_address(scope: Scope, trusted: Networks) -> str | None:
    """As `client_address`; None where anybody but trusted proxies has forwarded the request, or where that is the
    address of a trusted proxy: the client behind is unknown. `Forwarded` (RFC 7239) is not read: a request that has it
    was forwarded by somebody whom no entry of X-Forwarded-For may name."""
    client = scope.get("client")
    if client is None or any(name == b"forwarded" for name, _ in scope["headers"]):
        return None
    address, others = _vouched(canonical(client[0]), scope, trusted)
    return None if others or address is None or _within(address, trusted) else address


def _vouched(peer: str, scope: Scope, trusted: Networks) -> tuple[str | None, int]:
    """(the address as of `client_address`, how many entries of X-Forwarded-For are left that no trusted proxy wrote)"""
    address, written = peer, [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    entries = b",".join(written).decode("latin-1").rsplit(",", _MOST_PROXIES) if written else []
    others = len(entries)
    for one in reversed(entries[-_MOST_PROXIES:]):
        if not _within(address, trusted):
            break
        entry = one.strip()
        if entry.lower() == _HIDDEN:
            return None, others
        found = _forwarded(entry)
        if found is None:
            break
        address, others = found, others - 1
    return address, others


def comes_from(scope: Scope, networks: Networks) -> bool:
    """Whether the peer of a connection is in one of `networks`."""
    client = scope.get("client")
    return client is not None and _within(canonical(client[0]), networks)


def canonical(address: str) -> str:
    """`address` in canonical form. An IPv4-mapped IPv6 address (`::ffff:192.0.2.1`), as dual-stack sockets show it,
    becomes IPv4. Text that is not an IP address is returned unchanged."""
    if ":" not in address:
        return address  # IPv4 has one form only
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)


def _forwarded(text: str) -> str | None:
    """The address in an entry of X-Forwarded-For, or None. Some proxies (Azure's, and AWS's if configured) add a port:
    `192.0.2.1:4711`, `[2001:db8::1]:4711`."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return canonical(str(ip_address(text)))
    except ValueError:
        return None


def _within(address: str, networks: Networks) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return any(found in network for network in networks)
