"""Addresses of workers and of clients."""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network

_MEANT_AS_ADDRESS = re.compile(r"[0-9.]+\Z|[^%]*:")


def is_host(text: str) -> bool:
    """Whether `text` can be a host: a name, or an IP address without brackets that is valid. Resolvers look up
    `256.1.1.1` as if it were a name, and `10.1` as 10.0.0.1."""
    if not _MEANT_AS_ADDRESS.match(text):
        return True
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


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
