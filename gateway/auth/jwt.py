"""Tokens of an identity provider (JWT, RFC 7519): who the bearer is. PyJWT checks the signatures.

Only RS256, PS256 and ES256 are accepted. Each key has one of them, so a public key can never be taken for a shared
secret. The key set comes from a file, or from a URL that is read again in the background; no request waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

import jwt
from msgspec import Struct

from gateway.auth.headers import refused
from gateway.background import cancel_tasks, keep_running
from gateway.config import Jwt
from gateway.config.kinds import checked_name
from gateway.core.errors import GatewayError, Kind

T = TypeVar("T")

_ALGORITHMS = {"RSA": ("RS256", "PS256"), "EC": ("ES256",)}
"""By kind of key; the first is that of a key that names none."""
_PUBLIC = ("kty", "n", "e", "crv", "x", "y")
_LEAST_RSA_BITS = 2048
_LEEWAY_S = 30.0
_LONGEST = 8192
_REMEMBERED = 10_000
_EVERY_S = 300.0
_RETRY_S = 10.0

Fetch = Callable[[str], Any]
"""Awaited with a URL; returns the body. It needs a timeout of its own: start and reload wait for it."""


class ProviderKey(NamedTuple):
    """A public key of the provider, as PyJWT takes it, and the one algorithm that it verifies."""

    key: Any
    algorithm: str


class Bearer(Struct, frozen=True):
    """The bearer of a valid token. models None means all models; until is Unix seconds; roles are for the admin API."""

    subject: str
    team: str | None
    models: frozenset[str] | None
    until: float
    roles: frozenset[str] = frozenset()


def read_keys(text: str | bytes) -> dict[str | None, ProviderKey]:
    """Key id -> key. Raises ValueError when there is none that can be used.

    Skipped, as RFC 7517 says: keys of other kinds, keys whose `use` or `key_ops` is not to verify signatures, and RSA
    keys below 2,048 bits (RFC 7518, section 3.3). A private key, which no provider should show, counts as
    its public half.
    """
    found: dict[str | None, ProviderKey] = {}
    try:
        read = json.loads(text)
    except ValueError as error:
        raise ValueError("is not JSON") from error
    except RecursionError as error:
        raise ValueError("is not a set of keys (RFC 7517)") from error
    try:
        listed = read["keys"]
        for one in listed:
            of_kind = _ALGORITHMS.get(one.get("kty", ""), ())
            algorithm = one.get("alg", *of_kind[:1])
            fits = one.get("use", "sig") == "sig" and algorithm in of_kind
            # The operations of a private key are those of its private half.
            needed = "sign" if "d" in one else "verify"
            fits = fits and (needed in one.get("key_ops", (needed,)) or "verify" in one["key_ops"])
            if not fits or (algorithm == "ES256" and one.get("crv") != "P-256"):
                continue
            if algorithm == "PS256" and one.get("kid") in found:  # some list a key once for each of its algorithms
                continue
            public = {name: one[name] for name in _PUBLIC if name in one}
            key = jwt.PyJWK(public, algorithm).key
            if algorithm != "ES256" and key.key_size < _LEAST_RSA_BITS:
                continue
            found[one.get("kid")] = ProviderKey(key, algorithm)
    except (KeyError, TypeError, AttributeError, jwt.PyJWTError) as error:
        raise ValueError("is not a set of keys (RFC 7517)") from error
    if not found:
        raise ValueError("holds no RSA key of 2048 bits or more and no P-256 key for signatures")
    return found


class JwtVerifier:
    """Raises ValueError when the file of `options` holds no usable key.

    clock returns Unix seconds. on_event is called with a log level and a sentence when the keys of a URL cannot be
    read, and when they can again. before is the object of the configuration before this one: keys that it read from the
    same URL stay known.
    """

    def __init__(
        self,
        options: Jwt,
        clock: Callable[[], float],
        on_event: Callable[[str, str], None] | None = None,
        before: JwtVerifier | None = None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._on_event = on_event
        self._keys: dict[str | None, ProviderKey] = {}
        self._known: dict[bytes, Bearer] = {}
        self._reading: asyncio.Task[None] | None = None
        self._trouble = ""
        self._body: bytes | str = b""
        self._unknown = asyncio.Event()
        if options.keys_text is not None:
            self._keys = read_keys(options.keys_text)
        elif before is not None and before._options.jwks_url == options.jwks_url:
            self._keys, self._body, self._trouble = before._keys, before._body, before._trouble

    @staticmethod
    def like(token: bytes) -> bool:
        """Whether `token` has the form of a JWT."""
        return token.startswith(b"eyJ") and token.count(b".") == 2

    def read(self, token: bytes) -> Bearer:
        """Verifies a token. Raises GatewayError, whose message holds nothing of the token: UNAUTHENTICATED; OVERLOADED
        while the provider's keys have never been read, which says nothing about the token."""
        digest = sha256(token).digest()
        known = self._known.get(digest)
        if known is None:
            known = self.verified(token, self._bearer)
            if len(self._known) >= _REMEMBERED:
                for old in list(self._known)[: _REMEMBERED // 2]:
                    del self._known[old]
            self._known[digest] = known
        if self._clock() >= known.until + _LEEWAY_S:
            raise refused("the token has expired")
        return known

    def verified(self, token: bytes, read: Callable[[Mapping[str, Any]], T]) -> T:
        """The result of `read`, which gets the claims of a token once its signature, issuer, audience and times are
        right. `read` may raise ValueError and GatewayError. Raises as `self.read`."""
        if len(token) > _LONGEST:
            raise refused("the token is too long")
        try:
            kid = jwt.get_unverified_header(token).get("kid")
            only = next(iter(self._keys)) if kid is None and len(self._keys) == 1 else kid
            key, algorithm = self._keys[only]
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._options.audience,
                issuer=self._options.issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            if isinstance(claims["exp"], (str, bool)):  # PyJWT reads "123"; RFC 7519, section 2, wants a number
                raise refused("the token's claim 'exp' must be a number")
            return read(claims)
        except KeyError:
            if not self._keys:
                message = "the keys of the identity provider could not be read yet"
                raise GatewayError(
                    Kind.OVERLOADED, message, code="identity_unavailable", retry_after=_RETRY_S
                ) from None
            self._unknown.set()
            raise refused("the token is not signed by a known key") from None
        # The provider signed the token, so its bearer may learn what is wrong.
        except jwt.MissingRequiredClaimError as error:
            raise refused(f"the token has no claim '{error.claim}'") from None
        except tuple(_WHY) as error:
            raise refused(_WHY[type(error)]) from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
            raise refused("the token is not valid") from None

    def _bearer(self, claims: Mapping[str, Any]) -> Bearer:
        options = self._options
        team = claim_of(claims, options.team_claim) if options.team_claim is not None else None
        models = None
        if options.models_claim is not None:
            # A missing claim allows nothing: the restriction is meant for all tokens.
            models = values(claims, options.models_claim, "models")
        subject = named("sub", claims["sub"])
        team = None if team is None else named(str(options.team_claim), team)
        roles = frozenset[str]() if options.roles_claim is None else values(claims, options.roles_claim, "roles")
        return Bearer(subject, team, models, float(claims["exp"]), roles)

    @property
    def url(self) -> str | None:
        """The address of the keys, unless they are in a file."""
        return self._options.jwks_url

    @property
    def ca_file(self) -> str | None:
        """The authorities that the certificate of `url` must chain to; None for those of the web."""
        return self._options.ca_file

    @property
    def outdated(self) -> bool:
        """Whether a token came that is signed by none of the keys that were read last."""
        return self._unknown.is_set()

    @property
    def unread(self) -> bool:
        """Whether the provider's keys were not read yet."""
        return self._options.jwks_url is not None and not self._keys

    @property
    def body(self) -> bytes:
        """The provider's keys as they were read from the URL; empty before that."""
        return self._body.encode() if isinstance(self._body, str) else self._body

    def restore(self, body: bytes) -> None:
        """The provider's keys as a process before this one read them; they hold until they are read. Raises
        ValueError."""
        if self.unread:
            self._keys, self._body = read_keys(body), body

    # -- a key set that is read from a URL ----------------------------------------------------------------------

    async def start(self, fetch: Fetch) -> None:
        """Reads the URL, if there is one, and keeps reading it in the background."""
        if self._options.jwks_url is not None:
            await self.refresh(fetch, self._options.jwks_url)
            self._reading = asyncio.create_task(self._go_on(fetch, self._options.jwks_url))

    async def _go_on(self, fetch: Fetch, url: str) -> None:
        while True:
            await asyncio.sleep(_RETRY_S)
            if not self._trouble:
                # A token with an unknown key may be a sign that the provider has just changed its keys.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_EVERY_S - _RETRY_S):
                        await self._unknown.wait()
            with keep_running("keys of tokens"):
                await self.refresh(fetch, url)

    async def refresh(self, fetch: Fetch, url: str) -> None:
        """Reads the keys at `url` now."""
        self._unknown.clear()
        try:
            body = await fetch(url)
            keys = read_keys(body)
        except Exception as error:  # whatever the provider does, the known keys stay
            self._announce(f"the keys of tokens cannot be read: {type(error).__name__}")
            return
        if body != self._body:
            self._known.clear()  # tokens signed with a withdrawn key are no longer valid
        self._keys, self._body = keys, body
        self._announce("")

    def _announce(self, trouble: str) -> None:
        if trouble != self._trouble and self._on_event is not None:
            level = "warning" if trouble else "info"
            self._on_event(level, trouble or "the keys of tokens can be read again")
        self._trouble = trouble

    async def close(self) -> None:
        await cancel_tasks(self._reading)


_WHY: dict[type[jwt.PyJWTError], str] = {
    jwt.ExpiredSignatureError: "the token has expired",
    jwt.ImmatureSignatureError: "the token is not valid yet",
    jwt.InvalidAudienceError: "the token is for another audience",
    jwt.InvalidIssuerError: "the token is from another issuer",
}
"""The faults of a token whose signature is good, as its bearer reads them."""


def claim_of(claims: Mapping[str, Any], name: str) -> Any:
    """The claim called `name`, or None. A claim of exactly this name wins; else the name is a path into objects, as
    `realm_access.roles`. Names on the path may contain dots: the longest that fits wins."""
    if name in claims:
        return claims[name]
    for dot in (at for at in range(len(name) - 1, 0, -1) if name[at] == "."):
        inner = claims.get(name[:dot])
        if isinstance(inner, dict) and (found := claim_of(inner, name[dot + 1 :])) is not None:
            return found
    return None


def values(claims: Mapping[str, Any], claim: str, what: str) -> frozenset[str]:
    """The values that a claim lists; none where the claim is missing. Raises GatewayError."""
    listed = claim_of(claims, claim)
    if listed is None:
        return frozenset()
    if not isinstance(listed, (str, list)):
        raise refused(f"the token's claim '{claim}' must be a list of {what}")
    return frozenset(listed.split() if isinstance(listed, str) else [str(one) for one in listed])


def named(claim: str, value: object) -> str:
    """The value of a claim that must be a name; a number counts as one. Raises GatewayError."""
    try:
        if isinstance(value, (list, dict, bool)):  # all whose list is empty would be one team
            raise ValueError("must be one name")
        return checked_name(str(value))
    except ValueError as error:
        raise refused(f"the token's claim '{claim}' {error}") from None
