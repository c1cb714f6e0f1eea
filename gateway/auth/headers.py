"""Which headers carry keys. No other module knows the names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers, path_parameter

# Azure's own samples write `Bearer: K`.
_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr](?::[ \t]*|[ \t]+)([^\s,]+)[ \t]*\Z")
_EMPTY_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr]:?[ \t]*\Z")
_IN_PATH = re.compile(r"/+k/+([^/]+)", re.DOTALL)
# The last is the header of Azure's API Management.
KEY_HEADERS = frozenset([b"api-key", b"x-api-key", b"x-goog-api-key", b"ocp-apim-subscription-key"])
WHERE = "'Authorization: Bearer', 'api-key' or 'x-api-key'"
SEVERAL = "different API keys were sent in several places; send one, and no placeholder such as 'none' in another place"


def find_key(headers: Headers) -> bytes | None:
    """The one key in `headers`, or None.

    `Authorization: Bearer K` and `KEY_HEADERS` count; the same key in several of them is one key. Raises
    GatewayError(UNAUTHENTICATED) for different keys and for a repeated Authorization header: the gateway and a proxy
    before it could each accept a different one.
    """
    token: bytes | None = None
    present = False
    other = False
    for name, value in headers:
        if name == b"authorization":
            if present:
                raise refused("the Authorization header was sent twice")
            present = True
            found = _BEARER.match(value)
            if found is None:
                # Clients without a key send "Bearer " nevertheless.
                other = not _EMPTY_BEARER.match(value)
                continue
            value = found[1]
        elif name in KEY_HEADERS:
            value = value.strip()
            if not value:
                continue
        else:
            continue
        if token is not None and token != value:
            raise refused(SEVERAL)
        token = value
    if token is None and other:
        raise refused(f"the Authorization header holds no bearer key; send the API key as {WHERE}")
    return token


def from_query(query: bytes, headers: Headers, name: bytes) -> tuple[bytes, Headers]:
    """(`query` without the parameter `name`, `headers` with its value as a key). Nothing behind this sees a key in a
    query: neither a log nor a worker."""
    left: list[bytes] = []
    found: Headers = []
    for one in query.split(b"&"):
        given, _, value = one.partition(b"=")
        if unquote_to_bytes(given) == name:
            found.append((b"x-goog-api-key", unquote_to_bytes(value.replace(b"+", b" "))))
        else:
            left.append(one)
    return (b"&".join(left), [*headers, *found]) if found else (query, headers)


def from_path(path: str, raw: bytes, headers: Headers) -> tuple[str, bytes, Headers] | None:
    """(`path` and `raw` without a key at their begin, `/k/KEY`; `headers` with that as a key). None for a path
    without one. raw: the path before it was decoded, with the same slashes. As for `from_query`, nothing behind this
    sees the key; with another one in a header the request is refused."""
    found = _IN_PATH.match(path)
    if found is None:
        return None
    rest = raw.split(b"/", found[0].count("/") + 1)[found[0].count("/") + 1 :]
    key = (b"x-api-key", path_parameter(found[1]).encode())
    return path[found.end() :] or "/", b"/" + b"".join(rest), [*headers, key]


def holds_key(headers: Headers) -> bool:
    """Whether a header other than `Authorization` holds a key."""
    return any(name in KEY_HEADERS and value.strip() for name, value in headers)


def shown_keys(headers: Headers) -> Iterator[bytes]:
    """Whatever stands where keys stand, valid or not: `Bearer K`, `K` alone, the signature of a signed request."""
    for name, value in headers:
        if name in KEY_HEADERS or name == b"authorization":
            yield from value.split()[-1:]


def refused(message: str) -> GatewayError:
    return GatewayError(Kind.UNAUTHENTICATED, message)
