"""Access to the console, and headers that restrict browsers.

With a key, every request for data must show it in `Authorization: Bearer`. A page of another origin cannot know it, and
no browser sends it by itself. Without a key the admin address is loopback, and any page in a browser on that machine
could try: by its own requests, which carry an `Origin` or `Sec-Fetch-Site` of another place, or by a host name of its
own that it lets point here (DNS rebinding), which shows in `Host`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest

from gateway.config import is_loopback
from gateway.core.http import Headers, header_value

SECURITY_HEADERS: Headers = [
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'none'; frame-ancestors 'none'; "
        b"require-trusted-types-for 'script'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
"""On every reply of the console: only its own files run, no other page frames it, nothing is kept."""

_BEARER = b"bearer "
# RFC 9110, section 7.2: a host and perhaps a port. Browsers write an address in its canonical form and never a zone.
_HOST = re.compile(rb"(?:\[([0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]{1,40})\]|([A-Za-z0-9.-]+))(?::[0-9]{1,5})?")


class Denied(Exception):
    """status, and a sentence for the caller."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Guard:
    """key is the console's, or None; local says that the admin address is loopback."""

    def __init__(self, key: str | None, local: bool) -> None:
        self._digest = sha256(key.encode()).digest() if key is not None else None
        self._local = local

    def check_place(self, headers: Headers) -> None:
        """Raises Denied when a browser was led here by a page of another place."""
        host = header_value(headers, b"host") or b""
        if self._local and self._digest is None and not is_loopback(_name(host)):
            raise Denied(
                421, "without a key the console is for this machine: call it localhost, or set console.key_file"
            )
        if (header_value(headers, b"sec-fetch-site") or b"none") not in (b"same-origin", b"none"):
            raise Denied(403, "pages of other origins may not call the console")
        origin = header_value(headers, b"origin")
        if origin is not None and origin not in (b"http://" + host, b"https://" + host):
            raise Denied(403, "pages of other origins may not call the console")

    def check_key(self, headers: Headers) -> None:
        """Raises Denied unless the key is shown, where there is one. Takes as long for any wrong key."""
        if self._digest is None:
            return
        shown = _shown([value for name, value in headers if name == b"authorization"])
        if not compare_digest(sha256(shown).digest(), self._digest):
            raise Denied(401, "the console's key is needed, in 'Authorization: Bearer'")


def _name(host: bytes) -> str:
    """The host of a Host header, without port and brackets; "" if the header is anything but a host and a port."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).decode() if found is not None else ""


def _shown(values: Sequence[bytes]) -> bytes:
    if len(values) != 1 or values[0][: len(_BEARER)].lower() != _BEARER:
        return b""
    return values[0][len(_BEARER) :].strip()
