"""From the key in a request's headers to its caller.

The configuration holds only the SHA-256 of a key. That is enough without salt or stretching, because the secret is
random. Every key is found by its hash alone, so a refusal takes no longer for an id that exists or for a secret that is
nearly right: a caller who does not know a key cannot bring its hash nearer to a known one.

A caller may also sign its requests with an AWS key pair (gateway.auth.sigv4). The head names the pair; only the whole
request proves it. Until then there is a `PendingAuth`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, MutableMapping
from hashlib import sha256
from typing import Any

from gateway.auth import sigv4
from gateway.auth.headers import SEVERAL, WHERE, find_key, holds_key, refused
from gateway.auth.jwt import Bearer, JwtVerifier
from gateway.auth.keys import well_formed
from gateway.auth.masking import KnownKeys
from gateway.auth.principal import ANONYMOUS, Absent, PendingAuth, Principal
from gateway.auth.table import Entry, KeyTable, identity_of
from gateway.config import Config
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers

Scope = MutableMapping[str, Any]

_LONGEST = 1024
_RETRY_S = 5.0
_TOKEN = "jwt:"


class Keyring:
    """The callers of one configuration. A reload makes a new one.

    clock  returns Unix seconds
    known  learns every key that is used
    table  the keys of the configuration, if it was made before
    address  the address of a request's client by its ASGI scope, None where it is unknown
    """

    def __init__(
        self,
        config: Config,
        clock: Callable[[], float] = time.time,
        verifier: JwtVerifier | None = None,
        known: KnownKeys | None = None,
        table: KeyTable | None = None,
        address: Callable[[Scope], str | None] = lambda scope: None,
    ) -> None:
        self.open = config.auth == "open"
        self._config = config
        self._table = table if table is not None else KeyTable(config)
        self._clock = clock
        self._verifier = verifier
        self._known = known or KnownKeys()
        self._address = address
        self._issuer = identity_of(config.jwt.issuer) if config.jwt is not None else ""

    def __repr__(self) -> str:
        return f"Keyring(open={self.open}, keys={len(self._config.keys)})"

    @property
    def sums(self) -> Container[bytes]:
        """The SHA-256 sums of the configured keys."""
        return self._table.by_digest

    def identify(self, headers: Headers, dialect: str | None = None, scope: Scope | None = None) -> PendingAuth:
        """The caller whose key is in `headers` (lower-case names); without a key, the one whose network the client of
        `scope` is in. A signed request still has to be proven.

        Raises GatewayError: UNAUTHENTICATED for no key, several keys, or an invalid, disabled or expired one; FORBIDDEN
        when the key may not speak `dialect`; OVERLOADED for an unknown key while the store of keys cannot be read.
        """
        if self.open:
            return PendingAuth(ANONYMOUS, lasting=True)
        signature = sigv4.read(headers)
        if signature is None:
            return self._caller(headers, dialect, scope)
        if holds_key(headers):
            raise refused(SEVERAL)
        found = self._table.by_access_key.get(signature.access_key)
        if found is None:
            raise GatewayError(
                Kind.UNAUTHENTICATED,
                "The security token included in the request is invalid: its access key id is not known here.",
                code="unknown_access_key",
            )
        sigv4.check_time(signature, self._clock())
        entry, secret = found

        def prove(method: str, path: bytes, query: bytes, body: bytes) -> None:
            if not sigv4.matches(signature, secret, method, path, query, headers, body):
                raise sigv4.mismatch()
            self._admit(entry, dialect)

        return PendingAuth(entry.principal, prove)

    def absent(self, who: Absent, dialect: str) -> Principal:
        """The caller that has shown its key or token before, as keys are now: the same key, and the same team.

        Raises GatewayError as `identify` does.
        """
        if self.open:
            return ANONYMOUS
        if who.key.startswith(_TOKEN):
            if self._verifier is None:
                raise refused("tokens are not accepted any more")
            found = self._bearer(Bearer(who.key.removeprefix(_TOKEN), who.team, who.models, 0.0, frozenset()))
        else:
            found = self._named(who.key, dialect)
        known = found.identity == who.identity if who.identity is not None else found.since <= who.since
        if not known or not found.owns(who.owner, who.since):
            raise _gone()
        return found

    def confirm(self, caller: Principal, headers: Headers, dialect: str) -> Principal:
        """Looks again, after a wait, whether the caller that was identified by these `headers` may still call. Returns
        it as it is now.

        Raises GatewayError as `identify` does.
        """
        if self.open:
            return caller
        # A signature is good for minutes alone, and was proven.
        token = caller.key.startswith(_TOKEN)
        found = self.identify(headers, dialect).principal if token else self._named(caller.key, dialect)
        if found.identity != caller.identity:
            raise _gone()
        return found

    def may_use(self, caller: Principal, model: str) -> bool:
        """Whether a caller of this configuration may use a model by its name in an earlier one, which may be an alias
        now."""
        return caller.may_use(self._config.resolve(model) or model)

    def _named(self, name: str, dialect: str) -> Principal:
        entry = self._table.named(name)
        if entry is not None:
            return self._admit(entry, dialect)
        raise _away() if self._table.away else _gone()

    def _caller(self, headers: Headers, dialect: str | None, scope: Scope | None) -> PendingAuth:
        token = find_key(headers)
        if token is None:
            near = self._table.near(self._address(scope)) if scope is not None and self._table.has_networks else None
            if near is None:
                raise refused(f"no API key was given{self._in_path(scope)}; send it as {WHERE}")
            return PendingAuth(self._admit(near, dialect), lasting=near.expires is None)
        if self._verifier is not None and self._verifier.like(token):
            return PendingAuth(self._bearer(self._verifier.read(token)))
        entry = self._lookup(token)
        return PendingAuth(self._admit(entry, dialect), lasting=entry.expires is None)

    def _in_path(self, scope: Scope | None) -> str:
        """The reason why none was found in a path that should have one."""
        if scope is None or not scope["path"].startswith("/k/"):
            return ""
        if not self._config.path_keys:
            return ": a key in the path is not read here, because `path_keys` is off"
        return ": it is missing in the path, where it follows /k/, as in /k/KEY/v1/models"

    def _bearer(self, bearer: Bearer) -> Principal:
        """The caller of a token is `jwt:` and its subject. No key has such a name: none may begin with `jwt:`."""
        models = bearer.models
        if models is not None:
            models = frozenset(self._config.resolve(one) or one for one in models)
        bounds = self._table.bounds(bearer.team)
        if bounds.disabled:
            raise refused("the team of the token is disabled")
        key = _TOKEN + bearer.subject
        salt = self._table.salt(key, bearer.team, self._issuer)
        return Principal(
            key,
            bearer.team,
            models,
            salt=salt,
            streams=self._config.listen.max_streams_per_key,
            connections=self._config.listen.connections_per_key,
            secrets=self._table.sealing,
            identity=self._issuer,
            bounds=bounds,
        )

    def _admit(self, entry: Entry, dialect: str | None) -> Principal:
        """The caller has shown the right secret, so it may learn that its key is disabled or has expired."""
        if entry.disabled:
            raise refused("the API key is disabled")
        if entry.principal.bounds.disabled:
            raise refused("the team of the API key is disabled")
        if entry.expires is not None and self._clock() >= entry.expires:
            raise refused("the API key has expired")
        if dialect is not None and not entry.principal.may_speak(dialect):
            raise GatewayError(Kind.FORBIDDEN, "this API key may not use this API", code="dialect_not_allowed")
        return entry.principal

    def _lookup(self, token: bytes) -> Entry:
        if len(token) > _LONGEST:
            raise refused("the API key is not valid")
        digest = sha256(token).digest()
        entry = self._table.by_digest.get(digest)
        if entry is None:
            if token.startswith(b"dgm_") and not well_formed(token):
                raise refused("the API key is mistyped or cut short: its checksum does not match")
            if digest in self._table.revoked:
                raise refused("the API key was revoked")
            if self._table.away:
                raise _away()
            raise refused("the API key is not valid")
        self._known.add(token, digest)
        return entry


def _gone() -> GatewayError:
    return refused("the API key is not valid any more")


def _away() -> GatewayError:
    message = "the API key is not known, and the store of keys cannot be read now"
    return GatewayError(Kind.OVERLOADED, message, code="keys_unavailable", retry_after=_RETRY_S)
