"""The identity provider of the console's logins: what it says of itself, its keys, and codes for tokens.

It is asked when somebody logs in and never before, so no start waits for it. All that comes from it is bounded in time
and size (`tools.bounded.fetch_soon`); `auth.JwtVerifier` reads its keys and checks what it has signed.

Sources: OpenID Connect Core 1.0, Discovery 1.0 and RP-Initiated Logout 1.0; RFC 7636 (PKCE).
"""

from __future__ import annotations

import asyncio
import math
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote_plus

import httpx
import msgspec
from msgspec import Struct

from gateway.auth import JwtVerifier
from gateway.auth.jwt import claim_of
from gateway.config import ConsoleOidc, Jwt, is_private
from gateway.core.errors import GatewayError, Kind
from gateway.features.console.guard import Denied
from gateway.tools.bounded import fetch_soon

T = TypeVar("T")

MOST = 4
"""Codes that are exchanged at once: anybody who reaches the address can begin logins."""
_HOLDS_S = 300.0
_RETRY_S = 2.0
"""How long what the provider said of itself holds, and how long it is left alone after it did not answer."""
_CLIENT_ERRORS = range(400, 500)


class Described(Struct):
    """The description that a provider gives of itself. Members that are not used are left out."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    end_session_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)

    @property
    def addresses(self) -> Iterator[str]:
        every = (self.authorization_endpoint, self.token_endpoint, self.jwks_uri)
        yield from (one for one in (*every, self.userinfo_endpoint, self.end_session_endpoint) if one is not None)


class _Tokens(Struct):
    id_token: str
    access_token: str | None = None


class Provider:
    """on_event: called with a log level and a sentence when its keys cannot be read, and when they can again. fetch: as
    `fetch_soon`. clock: seconds."""

    def __init__(
        self,
        options: ConsoleOidc,
        on_event: Callable[[str, str], None],
        fetch: Callable[..., Awaitable[bytes]] = fetch_soon,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._on_event = on_event
        self._fetch = fetch
        self._clock = clock
        self._reading = asyncio.Lock()
        self._known: Described | Denied = Denied(503, "")
        self._until = -math.inf
        self._keys_until = -math.inf
        self._exchanging = 0
        self._verifier: JwtVerifier | None = None

    async def described(self) -> Described:
        """Raises Denied: 503 if it does not answer, 502 if its answer is not that of this provider."""
        async with self._reading:  # several may log in at once
            if self._clock() >= self._until:
                try:
                    self._known = await self._read()
                    self._until = self._clock() + _HOLDS_S
                except Denied as denied:
                    self._known, self._until = denied, self._clock() + _RETRY_S
            if isinstance(self._known, Denied):
                raise Denied(self._known.status, self._known.message)
            return self._known

    async def _read(self) -> Described:
        url = self._options.issuer.rstrip("/") + "/.well-known/openid-configuration"
        found = _decoded(await self._asked(url), Described)
        if found.issuer != self._options.issuer:
            slash = found.issuer.rstrip("/") == self._options.issuer.rstrip("/")
            how = ": they differ by the slash at the end" if slash else ""
            raise Denied(502, f"the identity provider names another issuer than console.oidc.issuer{how}")
        if not all(map(is_private, found.addresses)):
            raise Denied(502, "the identity provider has addresses without TLS: what passes there could be changed")
        return found

    async def _asked(self, url: str, form: Mapping[str, str] | None = None, **headers: str) -> bytes:
        try:
            return await self._fetch(url, form, ca_file=self._options.ca_file, **headers)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if form is not None and status in _CLIENT_ERRORS:
                raise Denied(
                    502,
                    f"the identity provider refused the exchange of the code for a token (status {status}): the login "
                    "was too old or was used before, or client_id, its secret or the redirect address is wrong",
                ) from None
            raise Denied(503, f"the identity provider failed (status {status})") from None
        except Exception as error:  # whatever it does, the person who logs in has done nothing wrong
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                wrong = "the identity provider's certificate is not trusted here (console.oidc.ca_file)"
                raise Denied(503, wrong) from None
            raise Denied(503, f"the identity provider does not answer ({type(error).__name__})") from None

    async def login(
        self, code: str, verifier: str, back: str, missing: Callable[[Mapping[str, Any]], Collection[str]]
    ) -> tuple[Mapping[str, Any], str]:
        """The claims of the ID token for `code`, and the token. verifier: that of PKCE; back: the address to which the
        provider sent the code. missing: gets the claims, as `read` of `JwtVerifier.verified`, and returns the names of
        those that it lacks; they are looked for at the userinfo endpoint. Raises Denied."""
        if self._exchanging >= MOST:
            raise Denied(429, f"{MOST} logins are under way: try again in a moment")
        self._exchanging += 1
        try:
            described = await self.described()
            tokens = await self._exchange(described, code, verifier, back)
            with accepted():
                read = await self._read_token(described, tokens.id_token.encode(), lambda own: (own, missing(own)))
            claims, names = read
            if names and tokens.access_token and described.userinfo_endpoint is not None:
                claims = await self._completed(claims, names, described.userinfo_endpoint, tokens.access_token)
            return claims, tokens.id_token
        finally:
            self._exchanging -= 1

    async def _completed(
        self, claims: Mapping[str, Any], names: Collection[str], url: str, token: str
    ) -> Mapping[str, Any]:
        """`claims` with what the userinfo endpoint has beside them; OpenID Connect Core, section 5.3."""
        more = _decoded(await self._asked(url, authorization=f"Bearer {token}"), dict[str, Any])
        if more.get("sub") != claims["sub"]:
            raise Denied(502, "the identity provider's userinfo is about somebody else than its token")
        found = {name: claim_of(more, name) for name in names}
        return {**more, **claims, **{name: one for name, one in found.items() if one is not None}}

    async def _exchange(self, described: Described, code: str, verifier: str, back: str) -> _Tokens:
        options, headers = self._options, {}
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": back, "code_verifier": verifier}
        form["client_id"] = options.client_id
        if (secret := options.client_secret) is not None:
            if "client_secret_basic" in described.token_endpoint_auth_methods_supported:
                pair = f"{quote_plus(options.client_id)}:{quote_plus(secret)}"  # RFC 6749, section 2.3.1
                headers["authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
            else:
                form["client_secret"] = secret
        return _decoded(await self._asked(described.token_endpoint, form, **headers), _Tokens)

    async def _read_token(self, described: Described, token: bytes, read: Callable[[Mapping[str, Any]], T]) -> T:
        url, options = described.jwks_uri, self._options
        if self._verifier is None or self._verifier.url != url:
            try:
                jwt = Jwt(issuer=options.issuer, audience=options.client_id, jwks_url=url)
            except ValueError:
                raise Denied(502, "the identity provider names no address of its keys") from None
            self._verifier = JwtVerifier(jwt, time.time, self._on_event)
        verifier, fetch = self._verifier, partial(self._fetch, ca_file=options.ca_file)
        if verifier.unread or self._clock() >= self._keys_until:
            self._keys_until = self._clock() + _HOLDS_S
            await verifier.refresh(fetch, url)
        try:
            return verifier.verified(token, read)
        except GatewayError:
            if not verifier.outdated:
                raise
        await verifier.refresh(fetch, url)  # the provider may have just changed its keys
        return verifier.verified(token, read)


@contextmanager
def accepted() -> Iterator[None]:
    """Raises Denied for a GatewayError, which is about a token or its claims."""
    try:
        yield
    except GatewayError as error:
        status = {Kind.OVERLOADED: 503, Kind.FORBIDDEN: 403}.get(error.kind, 502)
        what = "" if status != 502 else "the identity provider's token is not accepted: "
        raise Denied(status, what + error.message) from None


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Denied(502, "the identity provider's answer is not what OpenID Connect asks for") from None
