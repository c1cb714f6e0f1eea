"""Forward proxies to workers: their URLs, and what the environment says of them."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from gateway.core.addresses import is_host

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
"""The usual variables. Programs read their names in lower case first, and then in upper case."""


def proxy_url(text: str) -> str:
    """The URL that `text` means: `[http[s]://][user:password@]host[:port]`. Raises ValueError for any other."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.port != 0 and parts.path in ("", "/")
        valid = valid and bool(parts.hostname) and is_host(parts.hostname or "")
    except ValueError:
        valid = False
    if not valid or set(url) & set("?#\\ ") or not url.isprintable():
        raise ValueError("must be http://[user:password@]host[:port], or https:// for TLS to the proxy")
    return url


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The proxies that `environ` names, by the names of `VARIABLES`."""
    found = {name: environ.get(name) or environ.get(name.upper()) for name in VARIABLES}
    return {name: text.strip() for name, text in found.items() if text and text.strip()}


def proxy_of(address: str, found: Mapping[str, str]) -> str | None:
    """The URL of the proxy for `address`, scheme://host[:port]/..., by `variables`; None for none."""
    parts = urlsplit(address)
    proxy = found.get(f"{parts.scheme}_proxy") or found.get("all_proxy")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return (
        None if not proxy or _is_left_out(parts.hostname or "", port, found.get("no_proxy", "")) else proxy_url(proxy)
    )


def shown(url: str) -> str:
    """`url` with `***` in place of its user and password."""
    scheme, _, rest = url.partition("://")
    _, user, address = rest.rpartition("@")
    return f"{scheme}://{'***@' if user else ''}{address}"


def _is_left_out(host: str, port: int, listed: str) -> bool:
    """Whether `no_proxy` has this host: by its name or that of a domain around it, its address or a network, each with
    a port or without; `*` is all of them."""
    for entry in (one.strip().lower() for one in listed.split(",")):
        name, _, wanted = entry.rpartition(":")
        if name and wanted.isdecimal() and (":" not in name or name.endswith("]")):
            entry = name if int(wanted) == port else ""
        entry = entry.strip("[]").removeprefix("*").lstrip(".") if entry != "*" else entry
        if entry == "*" or (entry and (host == entry or host.endswith(f".{entry}") or _within(host, entry))):
            return True
    return False


def _within(host: str, network: str) -> bool:
    try:
        return ip_address(host) in ip_network(network, strict=False)
    except ValueError:
        return False
