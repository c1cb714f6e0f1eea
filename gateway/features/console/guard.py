"""Access to the console, and headers that restrict browsers.

With a key, every request for data must show it in `Authorization: Bearer`. A page of another origin cannot know it, and
no browser sends it by itself. With a login, a session may stand in its place. Browsers send its cookie by themselves,
so what changes something must have the header `CHANGE`, which pages of other origins cannot send.

Without either the admin address is loopback, and any page in a browser on that machine could try: by its own requests,
which carry an `Origin` or `Sec-Fetch-Site` of another site, or by a host name of its own that it lets point here (DNS
rebinding), which shows in `Host`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import TYPE_CHECKING

from gateway.auth import Admin
from gateway.config import is_loopback
from gateway.core.errors import GatewayError
from gateway.core.http import Headers, header_value

if TYPE_CHECKING:
    from gateway.features.console.login import Login

CHANGE = b"x-dragoman-console"
"""A header, with any value."""
KEY_HOLDER = Admin("console")
"""A caller who shows the console's key, or needs none."""

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
    """Decides who may come in to the console.

    key is the console's, or None; local says that the admin address is loopback. login: of people, if there is one.

    ways  how one may come in, by what a page can offer: "key", "login"; empty where anybody may
    """

    def __init__(self, key: str | None, local: bool, login: Login | None = None) -> None:
        self._digest = sha256(key.encode()).digest() if key is not None else None
        self._local = local
        self._login = login
        self.ways = {"key": key is not None, "login": login is not None}
        self._open = not any(self.ways.values())

    def check_origin(self, headers: Headers, *, led: bool = False) -> None:
        """Raises Denied when a browser was led here by a page of another origin. led: that is what the path is for."""
        host = header_value(headers, b"host") or b""
        if self._local and self._open and not is_loopback(_name(host)):
            raise Denied(
                421, "without a key the console is for this machine: call it localhost, or set console.key_file"
            )
        if led:
            return
        if (header_value(headers, b"sec-fetch-site") or b"none") not in (b"same-origin", b"none"):
            raise Denied(403, "pages of other origins may not call the console")
        origin = header_value(headers, b"origin")
        if origin is not None and origin not in (b"http://" + host, b"https://" + host):
            raise Denied(403, "pages of other origins may not call the console")

    def caller(self, headers: Headers, method: str) -> Admin:
        """Raises Denied: 401 unless the key is shown, or there is a session; 403 for a change that may be none of the
        page's. Takes as long for any wrong key."""
        if self._open:
            return KEY_HOLDER
        if self._login is not None and not any(name == b"authorization" for name, _ in headers):
            return self._session(self._login, headers, method)
        if self._digest is None:
            raise Denied(401, "this console has no key: log in with a browser")
        shown = _shown([value for name, value in headers if name == b"authorization"])
        if not compare_digest(sha256(shown).digest(), self._digest):
            raise Denied(401, "the console's key is needed, in 'Authorization: Bearer'")
        return KEY_HOLDER

    def _session(self, login: Login, headers: Headers, method: str) -> Admin:
        admin = login.caller(headers)
        if admin is None:
            way = ", or the console's key in 'Authorization: Bearer'" if self._digest is not None else ""
            raise Denied(401, f"a login is needed{way}")
        if method not in ("GET", "HEAD") and header_value(headers, CHANGE) is None:
            raise Denied(403, f"a change needs the header '{CHANGE.decode()}'")
        return admin


def check_role(admin: Admin, method: str) -> None:
    """Raises Denied if a viewer wants to change something."""
    try:
        admin.check(method)
    except GatewayError as error:
        raise Denied(403, error.message) from None


def _name(host: bytes) -> str:
    """The host of a Host header, without port and brackets; "" if the header is anything but a host and a port."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).decode() if found is not None else ""


def _shown(values: Sequence[bytes]) -> bytes:
    if len(values) != 1 or values[0][: len(_BEARER)].lower() != _BEARER:
        return b""
    return values[0][len(_BEARER) :].strip()
