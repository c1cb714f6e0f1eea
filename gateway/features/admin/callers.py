"""Admins: callers of the admin API, each with a key of its own or a token of the identity provider."""

from __future__ import annotations

from hashlib import sha256

from gateway.auth import Admin, JwtVerifier, digest_of, find_key, refused
from gateway.config import Config
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers

ALL, TEAM = "dragoman-admin", "dragoman-team-admin"
"""The roles that a token may name."""


class Admins:
    """The admins of one configuration. verifier: reads tokens, if there are any."""

    def __init__(self, config: Config, verifier: JwtVerifier | None) -> None:
        self._by_digest = {
            digest_of(one.hash): Admin(name, None if one.teams is None else frozenset(one.teams))
            for name, one in config.admins.items()
        }
        self._verifier = verifier if config.jwt is not None and config.jwt.roles_claim is not None else None

    def __bool__(self) -> bool:
        return bool(self._by_digest) or self._verifier is not None

    def identify(self, headers: Headers) -> Admin:
        """Raises GatewayError: UNAUTHENTICATED, FORBIDDEN, or OVERLOADED if no token can be checked now."""
        shown = find_key(headers)
        if shown is None:
            raise refused("an admin's key is needed, in 'Authorization: Bearer'")
        if self._verifier is not None and self._verifier.like(shown):
            bearer = self._verifier.read(shown)
            name = "jwt:" + bearer.subject
            if ALL in bearer.roles:
                return Admin(name)
            if TEAM in bearer.roles and bearer.team is not None:
                return Admin(name, frozenset([bearer.team]))
            raise GatewayError(Kind.FORBIDDEN, "the token names no role here", code="role")
        found = self._by_digest.get(sha256(shown).digest())
        if found is None:
            raise refused("the key is not that of an admin")
        return found
