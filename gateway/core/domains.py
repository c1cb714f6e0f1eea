"""Whether a page is at one of the hosts that a client names: however its address is spelled."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import unquote, urlsplit

# Spellings that resolvers take for an IPv4 address (inet_aton): up to four numbers, each decimal, octal or hexadecimal,
# of which the last one stands for all bytes that are left.
_NUMBERS = re.compile(r"(?:0x[0-9a-f]{1,8}|[0-9]{1,12})(?:\.(?:0x[0-9a-f]{1,8}|[0-9]{1,12})){0,3}")


def host_of(text: str) -> str:
    """One spelling of a host for all that reach it: IPv4 addresses have four numbers, names are in lower case and in
    their ASCII form, without percent-encoding and without the dot at their end."""
    host = unquote(text).strip("[]").partition("%")[0].lower().rstrip(".")
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            return host
    try:
        if _NUMBERS.fullmatch(host):
            return _dotted(host.split("."))
        if ":" not in host:
            return host
        address = ip_address(host)
        return str((isinstance(address, IPv6Address) and address.ipv4_mapped) or address)
    except ValueError:
        return host


def _dotted(numbers: list[str]) -> str:
    """Raises ValueError if they are not an address."""
    *first, last = [int(one, 16 if one[1:2] == "x" else 8 if one[0] == "0" else 10) for one in numbers]
    bits = 8 * (4 - len(first))
    if any(one > 255 for one in first) or last >> bits:
        raise ValueError
    return str(IPv4Address(sum(one << 24 - 8 * at for at, one in enumerate(first)) + last))


def is_within(url: str, domains: Iterable[str]) -> bool:
    """Whether the page is at one of these hosts or below it, or below the path that stands behind one. Raises
    ValueError for text that is not a URL."""
    at = urlsplit(url)
    host, path = f".{host_of(at.hostname or '')}", _path_of(at.path)
    for domain in domains:
        name, _, below = domain.partition("/")
        if host.endswith(f".{host_of(name)}") and path.startswith(_path_of(below)):
            return True
    return False


def _path_of(text: str) -> str:
    """A path without what servers read past: percent-encoding, empty segments, and those of dots."""
    found: list[str] = []
    plain = unquote(text)
    for segment in plain.split("/"):
        if segment == "..":
            del found[-1:]
        elif segment not in ("", "."):
            found.append(segment)
    return "/".join(found) + ("/" if found and plain.endswith("/") else "")
