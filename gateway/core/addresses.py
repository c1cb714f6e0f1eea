"""Addresses of workers and of clients."""

from __future__ import annotations

from ipaddress import ip_network


def base_address(url: str) -> str:
    """The base address that `url` means, without a slash at its end. Clients of OpenAI's API are given addresses that
    end in `/v1`; our requests to workers have paths that begin with it."""
    url = url.rstrip("/")
    # A host may be called `v1`.
    return url.removesuffix("/v1") if not url.endswith("//v1") else url


def network_of(address: str) -> str:
    """The network of a client's address that one client has as a whole: of an IPv6 address the first 64 bits. Text that
    is not an IP address is returned unchanged."""
    if ":" not in address:
        return address
    try:
        return str(ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
