"""From the key in a request's headers to its caller.

The configuration holds only the SHA-256 of a key. That is enough without salt or stretching, because the secret is
random. Every key is found by its hash alone, so a refusal takes no longer for an id that exists or for a secret that is
nearly right: a caller who does not know a key cannot bring its hash nearer to a known one.

A caller may also sign its requests with an AWS key pair (gateway.auth.sigv4). The head names the pair; only the whole
request proves it. Until then there is a `PendingAuth`.
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Container
from hashlib import sha256
from hmac import digest as hmac_digest

from msgspec import Struct

from gateway.auth import sigv4
from gateway.auth.headers import WHERE, find_key, holds_key, refused
from gateway.auth.jwt import Bearer, JwtVerifier
from gateway.auth.keys import well_formed
from gateway.auth.known import KnownKeys
from gateway.auth.principal import ANONYMOUS, PendingAuth, Principal
from gateway.auth.sealing import SealingSecrets
from gateway.config import Aliases, CacheSalt, Config
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers

_LONGEST = 1024


class _Entry(Struct, frozen=True):
    """The caller of a key. expires is in Unix seconds."""

    principal: Principal
    expires: float | None
    disabled: bool


class KeyTable:
    """The keys of one configuration, found by what callers send. Making it takes time in proportion to the keys, so a
    reload makes it in a thread.

    by_digest      SHA-256 of a key -> its caller
    by_access_key  id of an AWS pair -> its caller and its secret
    lasting        names of keys that never expire
    sealing        the secrets that seal the texts of callers
    salt           (key, team) -> the salt of the callers that share a cache
    """

    def __init__(self, config: Config) -> None:
        self.by_digest: dict[bytes, _Entry] = {}
        self.by_access_key: dict[str, tuple[_Entry, str]] = {}
        self.lasting = frozenset(name for name, key in config.keys.items() if key.expires is None)
        self.sealing = SealingSecrets(config.seal, config.keys)
        self.salt = _salts(config.cache_salt)
        streams, connections = config.listen.max_streams_per_key, config.listen.max_connections_per_key
        for name, key in config.keys.items():
            # A model that was removed stays in the set, so that the set is never empty by accident.
            models = None if key.models is None else frozenset(config.resolve(one) or one for one in key.models)
            dialects = None if key.dialects is None else frozenset(key.dialects)
            own = key.limits
            principal = Principal(
                name,
                key.team,
                models,
                dialects,
                key.priority,
                self.salt(name, key.team),
                own.streams if own is not None and own.streams is not None else streams,
                own.connections if own is not None and own.connections is not None else connections,
                self.sealing,
                Aliases({alias: config.resolve(one) or one for alias, one in key.aliases.items()})
                if key.aliases
                else None,
            )
            entry = _Entry(principal, key.expires.timestamp() if key.expires else None, key.disabled)
            if key.aws_access_key_id is not None and key.aws_secret is not None:
                self.by_access_key[key.aws_access_key_id] = (entry, key.aws_secret)
            if key.hash is not None:
                self.by_digest[bytes.fromhex(key.hash.removeprefix("sha256:"))] = entry

    def __repr__(self) -> str:
        return "KeyTable()"


class Keyring:
    """The callers of one configuration. A reload makes a new one.

    clock  returns Unix seconds
    known  learns every key that is used
    table  the keys of the configuration, if it was made before
    """

    def __init__(
        self,
        config: Config,
        clock: Callable[[], float] = time.time,
        verifier: JwtVerifier | None = None,
        known: KnownKeys | None = None,
        table: KeyTable | None = None,
    ) -> None:
        self.open = config.auth == "open"
        self._config = config
        self._table = table or KeyTable(config)
        self._clock = clock
        self._verifier = verifier
        self._known = known or KnownKeys()

    def __repr__(self) -> str:
        return f"Keyring(open={self.open}, keys={len(self._config.keys)})"

    @property
    def sums(self) -> Container[bytes]:
        """The SHA-256 sums of the configured keys."""
        return self._table.by_digest

    def identify(self, headers: Headers, dialect: str | None = None) -> PendingAuth:
        """As `authenticate`, and also for signed requests, which still have to be proven."""
        if self.open:
            return PendingAuth(ANONYMOUS, lasting=True)
        signature = sigv4.read(headers)
        if signature is None:
            principal = self.authenticate(headers, dialect)
            return PendingAuth(principal, lasting=principal.key in self._table.lasting)
        if holds_key(headers):
            raise refused("different API keys were sent in several headers")
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

    def authenticate(self, headers: Headers, dialect: str | None = None) -> Principal:
        """The caller whose key is in `headers` (lower-case names).

        Raises GatewayError: UNAUTHENTICATED for no key, several keys, or an invalid, disabled or expired one; FORBIDDEN
        when the key may not speak `dialect`.
        """
        if self.open:
            return ANONYMOUS
        token = find_key(headers)
        if token is None:
            raise refused(f"no API key was given; send it as {WHERE}")
        if self._verifier is not None and self._verifier.like(token):
            return self._bearer(self._verifier.read(token))
        return self._admit(self._lookup(token), dialect)

    def _bearer(self, bearer: Bearer) -> Principal:
        """The caller of a token is `jwt:` and its subject. No configured key has such a name: it may hold no colon."""
        models = bearer.models
        if models is not None:
            models = frozenset(self._config.resolve(one) or one for one in models)
        key = "jwt:" + bearer.subject
        salt = self._table.salt(key, bearer.team)
        return Principal(
            key,
            bearer.team,
            models,
            salt=salt,
            streams=self._config.listen.max_streams_per_key,
            connections=self._config.listen.max_connections_per_key,
            secrets=self._table.sealing,
        )

    def _admit(self, entry: _Entry, dialect: str | None) -> Principal:
        """The caller has shown the right secret, so it may learn that its key is disabled or has expired."""
        if entry.disabled:
            raise refused("the API key is disabled")
        if entry.expires is not None and self._clock() >= entry.expires:
            raise refused("the API key has expired")
        if dialect is not None and not entry.principal.may_speak(dialect):
            raise GatewayError(Kind.FORBIDDEN, "this API key may not use this API", code="dialect_not_allowed")
        return entry.principal

    def _lookup(self, token: bytes) -> _Entry:
        if len(token) > _LONGEST:
            raise refused("the API key is not valid")
        digest = sha256(token).digest()
        entry = self._table.by_digest.get(digest)
        if entry is None:
            if token.startswith(b"dgm_") and not well_formed(token):
                raise refused("the API key is mistyped or cut short: its checksum does not match")
            raise refused("the API key is not valid")
        self._known.add(token, digest)
        return entry


def _salts(options: CacheSalt | None) -> Callable[[str, str | None], str | None]:
    """(key, team) -> the salt of the callers that share a cache: 256 bits in 43 characters, as vLLM asks for. Gateways
    with the same secret make the same salt. Without the secret nobody can compute it."""
    if options is None:
        return lambda key, team: None
    secret, by_team = options.secret.encode(), options.by == "team"

    def salt(key: str, team: str | None) -> str:
        whose = f"team {team}" if by_team and team is not None else f"key {key}"
        return urlsafe_b64encode(hmac_digest(secret, whose.encode(), "sha256")).rstrip(b"=").decode()

    return salt
