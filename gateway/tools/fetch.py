"""The fetch of one page of the web, for a model that may follow the words of another page.

The model's words decide the address, so nothing of it is believed. A host is looked up once for each step, every
address that it has must be public, and the connection goes to the one that was checked: a second look-up could give
another one. Redirects are followed one by one, and each is checked like the first.
"""

from __future__ import annotations

import asyncio
import codecs
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import httpx

from gateway.config import WebFetch
from gateway.core.domains import host_of
from gateway.core.messages import Page, ServerCall
from gateway.resolve import look_up
from gateway.tools.bounded import Refused
from gateway.tools.exchange import Answer, Broken, Exchanges
from gateway.tools.page import text_of

_LONGEST_URL = 2048
_MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_TEXTS = re.compile(r"text/|application/(?:[\w.-]+\+)?(?:json|xml)\b|application/xhtml\+xml\b", re.I)
_HTML = re.compile(r"text/html\b|application/xhtml\+xml\b", re.I)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]{1,40})", re.I)
# Those of pages, as Python names them. Others of Python's take time that grows faster than their input (punycode), or
# make texts that cannot be written as JSON (unicode_escape).
_CHARSETS = re.compile(
    r"ascii|utf-8(-sig)?|utf-(16|32)(-[lb]e)?|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+|gb2312|gbk|gb18030|big5|hz"
    r"|euc_(jp|kr)|shift_jis|iso2022_(jp|kr)|tis-620"
)
# An IPv4 address is in the last 32 bits: NAT64's prefix.
_NAT64 = ip_network("64:ff9b::/96")
# Python's `is_global` is older than IANA's registries of special addresses. IANA gives out no IPv6 addresses but those
# of 2000::/3.
_RESERVED = tuple(map(ip_network, ("192.0.0.0/24", "192.88.99.0/24", "::/3", "4000::/2", "8000::/1", "3fff::/20")))

Network = IPv4Network | IPv6Network


class Fetch:
    """Fetches pages.

    allowed  networks that may be reached although they are not public
    aside    awaits a step that takes long, beside the event loop
    """

    def __init__(
        self,
        options: WebFetch,
        allowed: Sequence[Network] = (),
        aside: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._options = options
        self._allowed = allowed
        self._aside = aside
        # No connection is kept: the next request for its name might mean another host.
        self._exchanges = Exchanges(options.max_connections)

    async def run(self, call: ServerCall) -> None:
        """Gives the call its page, or the word for what went wrong."""
        try:
            async with asyncio.timeout(self._options.timeout_s):
                call.pages = (await self._page(call),)
        except Refused as refused:
            call.error = refused.word
        except (Broken, httpx.InvalidURL, OSError, TimeoutError, ValueError):
            # ValueError: of a host that cannot be a name, and of a redirect to no URL.
            call.error = "url_not_accessible"

    async def _page(self, call: ServerCall) -> Page:
        url = _checked(call.asked)
        for _ in range(_MOST_REDIRECTS + 1):
            if not call.tool.permits(str(url)):
                raise Refused("url_not_allowed")
            async with await self._send(url, call.tool.blocked) as answer:
                if answer.status not in _REDIRECTS:
                    return await self._read(call.asked, answer)
                url = _checked(str(url.join(answer.headers.get("location", ""))))
        raise Refused("url_not_accessible")

    async def _send(self, url: httpx.URL, blocked: Sequence[str]) -> AbstractAsyncContextManager[Answer]:
        """Asks for `url` at an address that was checked. Raises Refused for one that must not be reached, or that the
        client has blocked by its number."""
        port = url.port or (443 if url.scheme == "https" else 80)
        addresses = await look_up(url.host, port)
        if not addresses or not all(self.may_reach(address) for address in addresses):
            raise Refused("url_not_allowed")
        if any(host_of(address) == host_of(name) for address in addresses for name in blocked):
            raise Refused("url_not_allowed")
        named = ("host", url.netloc.decode("ascii"))
        headers = (named, ("accept", "*/*"), ("accept-encoding", "identity"), ("user-agent", "dragoman"))
        return self._exchanges.get(url, addresses[0].partition("%")[0], headers)

    def may_reach(self, address: str) -> bool:
        found = _inside(ip_address(address.partition("%")[0]))
        special = found.is_multicast or any(found in network for network in _RESERVED)
        public = found.is_global and not special
        return public or any(found in network for network in self._allowed)

    async def _read(self, asked: str, answer: Answer) -> Page:
        kind = answer.headers.get("content-type", "")
        if answer.status != 200:
            raise Refused("too_many_requests" if answer.status == 429 else "url_not_accessible")
        if not _TEXTS.match(kind) or answer.headers.get("content-encoding", "identity") != "identity":
            raise Refused("unsupported_content_type")
        body = await answer.body(self._options.max_bytes)
        title, text = await self._aside(_read, body, kind)
        return Page(asked, title, text[: self._options.max_text])

    async def close(self) -> None:
        """Nothing is kept between pages."""


def _read(body: bytes, kind: str) -> tuple[str, str]:
    """(title, text) of a body of this content type."""
    found = _CHARSET.search(kind)
    try:
        charset = codecs.lookup(found[1] if found is not None else "utf-8").name
    except LookupError:
        charset = ""
    text = body.decode(charset if _CHARSETS.fullmatch(charset) else "utf-8", "replace")
    return text_of(text) if _HTML.match(kind) else ("", text)


def _checked(text: str) -> httpx.URL:
    """The URL in `text`. Raises Refused for one that cannot be fetched."""
    if len(text) > _LONGEST_URL:
        raise Refused("url_too_long")
    try:
        url = httpx.URL(text.strip())
        if url.scheme not in ("http", "https") or not url.host or url.userinfo or "%" in url.host:
            raise Refused("invalid_tool_input")
    except (httpx.InvalidURL, UnicodeError, ValueError):
        raise Refused("invalid_tool_input") from None
    return url


def _inside(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address stands for, if it stands for one: that is the one that is reached."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None) or address
