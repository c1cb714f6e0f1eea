"""Who is calling: from the key in a request's headers to a `Principal`.

A key of ours reads `dgm_<id>_<secret>_<checksum>`:

    id        10 characters, the first a letter, by which people find the entry. It is no secret and may be logged
    secret    43 characters of base 62, 256 random bits
    checksum  6 characters of base 62, the CRC-32 of all before its underscore. With it a typing error is recognised
              without a table, here and in secret scanners. It gives no protection against forgery

The configuration holds only the SHA-256 of a key. That is enough without salt or stretching, because the secret is
random. Every key is found by its hash alone, so a refusal takes no longer for an id that exists or for a secret that is
nearly right: a caller who does not know a key cannot bring its hash nearer to a known one.

A caller may also sign its requests with an AWS key pair (gateway.sigv4). The head says whose pair it is; only the whole
request proves it. Until then there is a `PendingAuth`.
"""

from __future__ import annotations

import re
import secrets
import time
from base64 import urlsafe_b64encode
from binascii import crc32
from collections.abc import Callable
from hashlib import sha256
from hmac import digest

from msgspec import Struct

from gateway import sigv4
from gateway.config import CacheSalt, Config
from gateway.config.checks import key_name_fault
from gateway.config.kinds import checked_name
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers
from gateway.tokens import Bearer, Tokens

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LETTERS, _ID_DIGITS = "abcdefghijklmnopqrstuvwxyz", "0123456789abcdefghijklmnopqrstuvwxyz"
_OURS = re.compile(rb"(dgm_[0-9a-z]{4,32}_[0-9A-Za-z]{43})_([0-9A-Za-z]{6})\Z")
# Azure's own samples write `Bearer: K`.
_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr](?::[ \t]*|[ \t]+)([^\s,]+)[ \t]*\Z")
_EMPTY_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr]:?[ \t]*\Z")
# The last is what Azure's API Management takes.
KEY_HEADERS = frozenset([b"api-key", b"x-api-key", b"ocp-apim-subscription-key"])
_LONGEST = 1024
_WHERE = "'Authorization: Bearer', 'api-key' or 'x-api-key'"
_PLAIN_YAML = re.compile(r"[A-Za-z][A-Za-z0-9_-]*\Z")
_YAML_WORDS = frozenset(["true", "false", "null", "yes", "no", "on", "off", "y", "n"])


class Principal(Struct, frozen=True):
    """On whose behalf a request runs, and what it may do.

    key       the name of the key in the configuration, never the key; "anonymous" when everybody may call
    team      whose key it is, or None
    models    models it may use, aliases resolved; None is all
    dialects  dialects it may speak; None is all
    priority  among waiting requests the highest goes first
    streams   most streams at once in one process, or None
    connections  likewise
    salt      keeps prefix caches of workers apart from those of other callers; None where all share them
    """

    key: str
    team: str | None = None
    models: frozenset[str] | None = None
    dialects: frozenset[str] | None = None
    priority: int = 0
    salt: str | None = None
    streams: int | None = None
    connections: int | None = None

    def __repr__(self) -> str:
        return f"Principal({self.key!r}, team={self.team!r})"  # who knows the salt can find out what is cached

    @property
    def tenant(self) -> str:
        """Who shares what is stored, and takes turns with others where requests wait: its team, else the key alone. No
        team is called like a key."""
        return f"team {self.team}" if self.team is not None else f"key {self.key}"

    def may_use(self, model: str) -> bool:
        """model is the configured name, not an alias. Answer a forbidden one as if it did not exist."""
        return self.models is None or model in self.models

    def may_speak(self, dialect: str) -> bool:
        return self.dialects is None or dialect in self.dialects


ANONYMOUS = Principal("anonymous")


class PendingAuth(Struct, frozen=True):
    """The caller that a request names. Where there is a `prove`, call it with (method, raw path, raw query, body)
    before anything is done for the request. It raises GatewayError when the signature is wrong.

    lasting  the same headers mean the same caller for as long as this configuration holds: no clock was asked
    """

    principal: Principal
    prove: Callable[[str, bytes, bytes, bytes], None] | None = None
    lasting: bool = False


class _Entry:
    """The caller of a key. expires is in Unix seconds."""

    __slots__ = ("disabled", "expires", "principal")

    def __init__(self, principal: Principal, expires: float | None, disabled: bool) -> None:
        self.principal = principal
        self.expires = expires
        self.disabled = disabled


class Keyring:
    """The keys of one configuration. clock returns Unix seconds. A reload makes a new one."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.time, tokens: Tokens | None = None) -> None:
        self.open = config.auth == "open"
        self._clock = clock
        self._by_digest: dict[bytes, _Entry] = {}
        self._lasting = frozenset(name for name, key in config.keys.items() if key.expires is None)
        self._by_access_key: dict[str, tuple[_Entry, str]] = {}
        self._count = len(config.keys)
        self._resolve = config.resolve
        self._salt = _salts(config.cache_salt)
        self._tokens = tokens
        self._streams = config.listen.max_streams_per_key
        self._connections = config.listen.max_connections_per_key
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
                self._salt(name, key.team),
                own.streams if own is not None and own.streams is not None else self._streams,
                own.connections if own is not None and own.connections is not None else self._connections,
            )
            entry = _Entry(principal, key.expires.timestamp() if key.expires else None, key.disabled)
            if key.aws_access_key_id is not None and key.aws_secret is not None:
                self._by_access_key[key.aws_access_key_id] = (entry, key.aws_secret)
            if key.hash is not None:
                self._by_digest[bytes.fromhex(key.hash.removeprefix("sha256:"))] = entry

    def __repr__(self) -> str:
        return f"Keyring(open={self.open}, keys={self._count})"

    def identify(self, headers: Headers, dialect: str | None = None) -> PendingAuth:
        """As `authenticate`, and also for signed requests, which still have to be proven."""
        if self.open:
            return PendingAuth(ANONYMOUS, lasting=True)
        signature = sigv4.read(headers)
        if signature is None:
            principal = self.authenticate(headers, dialect)
            return PendingAuth(principal, lasting=principal.key in self._lasting)
        if any(name in KEY_HEADERS and value.strip() for name, value in headers):
            raise _refused("different API keys were sent in several headers")
        found = self._by_access_key.get(signature.access_key)
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
            raise _refused(f"no API key was given; send it as {_WHERE}")
        if self._tokens is not None and self._tokens.like(token):
            return self._bearer(self._tokens.read(token))
        return self._admit(self._lookup(token), dialect)

    def _bearer(self, bearer: Bearer) -> Principal:
        """The caller of a token is `jwt:` and its subject. No configured key has such a name: it may hold no colon."""
        models = bearer.models
        if models is not None:
            models = frozenset(self._resolve(one) or one for one in models)
        key = "jwt:" + bearer.subject
        salt = self._salt(key, bearer.team)
        return Principal(key, bearer.team, models, salt=salt, streams=self._streams, connections=self._connections)

    def _admit(self, entry: _Entry, dialect: str | None) -> Principal:
        """The caller has shown the right secret, so it may learn that its key is disabled or has expired."""
        if entry.disabled:
            raise _refused("the API key is disabled")
        if entry.expires is not None and self._clock() >= entry.expires:
            raise _refused("the API key has expired")
        if dialect is not None and not entry.principal.may_speak(dialect):
            raise GatewayError(Kind.FORBIDDEN, "this API key may not use this API", code="dialect_not_allowed")
        return entry.principal

    def _lookup(self, token: bytes) -> _Entry:
        if len(token) > _LONGEST:
            raise _refused("the API key is not valid")
        entry = self._by_digest.get(sha256(token).digest())
        if entry is None:
            if token.startswith(b"dgm_") and not well_formed(token):
                raise _refused("the API key is mistyped or cut short: its checksum does not match")
            raise _refused("the API key is not valid")
        return entry


def find_key(headers: Headers) -> bytes | None:
    """The one key in `headers`, or None.

    `Authorization: Bearer K`, `api-key`, `x-api-key` and `ocp-apim-subscription-key` count; the same key in several of
    them is one key. Raises GatewayError(UNAUTHENTICATED) for different keys and for a repeated Authorization header:
    the gateway and a proxy before it could each accept a different one.
    """
    token: bytes | None = None
    seen = False
    other = False
    for name, value in headers:
        if name == b"authorization":
            if seen:
                raise _refused("the Authorization header was sent twice")
            seen = True
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
            raise _refused("different API keys were sent in several headers")
        token = value
    if token is None and other:
        raise _refused(f"the Authorization header holds no bearer key; send the API key as {_WHERE}")
    return token


def _salts(options: CacheSalt | None) -> Callable[[str, str | None], str | None]:
    """(key, team) -> the salt of the callers that share a cache: 256 bits in 43 characters, as vLLM asks for. Gateways
    with the same secret make the same salt. Without the secret nobody can compute it."""
    if options is None:
        return lambda key, team: None
    secret, by_team = options.secret.encode(), options.by == "team"

    def salt(key: str, team: str | None) -> str:
        whose = f"team {team}" if by_team and team is not None else f"key {key}"
        return urlsafe_b64encode(digest(secret, whose.encode(), "sha256")).rstrip(b"=").decode()

    return salt


def _refused(message: str) -> GatewayError:
    return GatewayError(Kind.UNAUTHENTICATED, message)


def well_formed(key: bytes) -> bool:
    """Whether `key` has the form of our keys and the right checksum; not whether it is valid."""
    found = _OURS.match(key)
    return found is not None and checksum(found[1]) == found[2]


def new_key(name: str, team: str | None = None) -> tuple[str, str]:
    """(the new key, its entry for `keys` as YAML lines). The key is stored nowhere: show it once.

    Raises ValueError when name or team is not allowed in a configuration.
    """
    _fit("name", name)
    wrong = key_name_fault(name)
    if wrong is not None:
        raise ValueError(f"the name {wrong}")
    if team is not None:
        _fit("team", team)
    id_ = secrets.choice(_LETTERS) + "".join(secrets.choice(_ID_DIGITS) for _ in range(9))
    stem = f"dgm_{id_}_{_base62(int.from_bytes(secrets.token_bytes(32), 'big'), 43)}"
    key = f"{stem}_{checksum(stem.encode()).decode()}"
    lines = [f"{_yaml(name)}:", f"  id: {id_}", f"  hash: sha256:{sha256(key.encode()).hexdigest()}"]
    if team is not None:
        lines.append(f"  team: {_yaml(team)}")
    return key, "\n".join(lines) + "\n"


def _fit(what: str, name: str) -> None:
    try:
        checked_name(name)
    except ValueError as error:
        raise ValueError(f"the {what} {error}") from None


def _yaml(text: str) -> str:
    # Names hold neither quotes nor control characters, so only a backslash must be escaped.
    plain = _PLAIN_YAML.match(text) and text.lower() not in _YAML_WORDS
    return text if plain else '"' + text.replace("\\", "\\\\") + '"'


def checksum(stem: bytes) -> bytes:
    """The checksum of `stem`, which is a key up to its last underscore."""
    return _base62(crc32(stem), 6).encode()


def _base62(number: int, width: int) -> str:
    digits = ""
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits = _DIGITS[digit] + digits
    return digits
