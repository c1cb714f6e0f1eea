"""The keys of one configuration and of the store, found by what callers send, and the bounds of their teams."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterable
from hashlib import sha256
from hmac import digest as hmac_digest
from ipaddress import ip_address, ip_network
from operator import itemgetter

from msgspec import Struct

from gateway.auth.principal import UNBOUND, Principal, TeamBounds, tenant_of
from gateway.auth.sealing import SealingSecrets
from gateway.auth.stored import StoredKey, StoredTeam
from gateway.config import Aliases, CacheSalt, Config, Key, Team


class Entry(Struct, frozen=True):
    """The caller of a key. expires is in Unix seconds."""

    principal: Principal
    expires: float | None
    disabled: bool


class KeyTable:
    """Making it takes time in proportion to the keys, so a reload makes it in a thread. The keys of the configuration
    stay; those of the store come, change and go by `put` and `forget`, teams of the store by `put_team`.

    by_digest      SHA-256 of a key -> its caller
    by_access_key  id of an AWS pair -> its caller and its secret
    has_networks   whether a key is that of a network
    sealing        the secrets that seal the texts of callers
    salt           (key, team, identity) -> the salt of the callers that share a cache
    priorities     those that keys have or had
    away           the store cannot be read: a key that is not known here may be good
    logged         name -> when it ends, in Unix seconds, of each key that is logged until then
    revoked        SHA-256 sums of keys of the store that were revoked, as many as `stored_keys.max_keys`
    changed        called when a key or a team of the store came, changed or went
    """

    def __init__(self, config: Config, stored: Iterable[StoredKey] = (), teams: Iterable[StoredTeam] = ()) -> None:
        self._config = config
        self._bounds: dict[str, TeamBounds] = {}
        for name, team in config.teams.items():
            self._bind(name, team)
        self.by_digest: dict[bytes, Entry] = {}
        self.by_access_key: dict[str, tuple[Entry, str]] = {}
        self.sealing = SealingSecrets(config.seal, config.keys)
        self.salt = _salts(config.cache_salt)
        self.priorities = {key.priority for key in config.keys.values()}
        self.logged: dict[str, float] = {}
        self.away = config.keys_store is not None
        self.changed: Callable[[], None] = lambda: None
        self.revoked: dict[bytes, None] = {}
        self._stored: dict[str, tuple[bytes, ...]] = {}
        # IP version, first and last address, and the caller; none overlaps another one.
        self._networks: list[tuple[int, int, int, Entry]] = []
        for name, key in config.keys.items():
            entry = Entry(self._principal(name, key), key.expires.timestamp() if key.expires else None, key.disabled)
            if key.aws_access_key_id is not None and key.aws_secret is not None:
                self.by_access_key[key.aws_access_key_id] = (entry, key.aws_secret)
            if key.hash is not None:
                self.by_digest[digest_of(key.hash)] = entry
            for network in map(ip_network, key.match.address if key.match is not None else ()):
                self._networks.append((network.version, int(network[0]), int(network[-1]), entry))
        self._networks.sort(key=itemgetter(0, 1))
        self.has_networks = bool(self._networks)
        for team_stored in teams:
            self.put_team(team_stored)
        for one in stored:
            self.put(one)

    def __repr__(self) -> str:
        return "KeyTable()"

    @property
    def stored(self) -> int:
        """How many keys of the store are in force."""
        return len(self._stored)

    def named(self, name: str) -> Entry | None:
        """The caller whose key has this name; None if no key in force has."""
        key = self._config.keys.get(name)
        if key is None:
            digests = self._stored.get(name, ())
            return self.by_digest[digests[0]] if digests else None
        if key.hash is not None:
            return self.by_digest[digest_of(key.hash)]
        if key.aws_access_key_id is not None:
            return self.by_access_key[key.aws_access_key_id][0]
        return next(entry for *_, entry in self._networks if entry.principal.key == name)

    def team_of(self, name: str) -> str | None:
        """The team of the key of this name; None if it has none, or is not in force."""
        entry = self.named(name)
        return None if entry is None else entry.principal.team

    def near(self, address: str | None) -> Entry | None:
        """The caller whose network `address` is in; None for no address, and for what is not an IP address."""
        try:
            found = ip_address(address or "")
        except ValueError:
            return None
        index = bisect_right(self._networks, (found.version, int(found)), key=itemgetter(0, 1)) - 1
        if index < 0:
            return None
        version, _, last, entry = self._networks[index]
        return entry if version == found.version and int(found) <= last else None

    def put(self, key: StoredKey) -> bool:
        """The key of the store is in force as it is now: not at all if it was revoked. False if it could not be, as
        another key has its name or its secret."""
        self._withdraw(key.name)
        if key.id is not None:
            self.sealing.add(key.name, key.seal)
        fits = key.revoked is not None
        if fits:
            self.revoked |= {digest_of(one): None for one in (key.hash, *(old.hash for old in key.old))}
            while len(self.revoked) > self._config.stored_keys.max_keys:
                del self.revoked[next(iter(self.revoked))]
        elif key.name not in self._config.keys and digest_of(key.hash) not in self.by_digest:
            fits = True
            expires = key.expires.timestamp() if key.expires else None
            principal = self._principal(key.name, key)
            found = {digest_of(key.hash): Entry(principal, expires, key.disabled)}
            for old in key.old:
                until = old.until if expires is None else min(old.until, expires)
                found.setdefault(digest_of(old.hash), Entry(principal, until, key.disabled))
            found = {digest: entry for digest, entry in found.items() if digest not in self.by_digest}
            self.by_digest |= found
            self._stored[key.name] = tuple(found)
            self.priorities.add(key.priority)
        self.changed()
        return fits

    def forget(self, name: str) -> None:
        """The store has no key of this name, or is away for too long to go by what it had."""
        self._withdraw(name)
        self.changed()

    def _withdraw(self, name: str) -> None:
        """The key of the store with this name is not in force any more; one of the configuration stays as it is."""
        if name not in self._config.keys:
            self.logged.pop(name, None)
        for digest in self._stored.pop(name, ()):
            del self.by_digest[digest]

    def put_team(self, team: StoredTeam) -> bool:
        """The team of the store is in force as it is now, for all its callers. False if the configuration has it."""
        fits = team.name not in self._config.teams
        if fits:
            self._bind(team.name, None if team.gone else team)
            self.changed()
        return fits

    def _bind(self, name: str, team: Team | StoredTeam | None) -> None:
        bounds = self._bounds.setdefault(name, TeamBounds())
        bounds.models = None if team is None or team.models is None else self._resolved(team.models)
        bounds.disabled = team is not None and team.disabled

    def bounds(self, team: str | None) -> TeamBounds:
        """Those of the callers of this team, as they are now."""
        return UNBOUND if team is None else self._bounds.get(team, UNBOUND)

    def _resolved(self, models: Iterable[str]) -> frozenset[str]:
        # A model that was removed stays in the set, so that the set is never empty by accident.
        return frozenset(self._config.resolve(one) or one for one in models)

    def _principal(self, name: str, key: Key | StoredKey) -> Principal:
        config, own = self._config, key.limits
        made = key.created if isinstance(key, StoredKey) else 0.0
        identity = identity_of(key.seal if isinstance(key, StoredKey) else _first_of(key))
        until = key.log_prompts_until.timestamp() if key.log_prompts_until is not None else 0.0
        if until:
            self.logged[name] = until
        return Principal(
            name,
            key.team,
            None if key.models is None else self._resolved(key.models),
            None if key.dialects is None else frozenset(key.dialects),
            key.priority,
            self.salt(name, key.team, identity),
            own.streams if own is not None and own.streams is not None else config.listen.max_streams_per_key,
            own.connections if own is not None and own.connections is not None else config.listen.connections_per_key,
            self.sealing,
            Aliases({alias: config.resolve(one) or one for alias, one in key.aliases.items()}) if key.aliases else None,
            identity,
            made,
            until,
            UNBOUND if key.team is None else self._bounds.setdefault(key.team, TeamBounds()),
        )


def identity_of(text: str) -> str:
    """See `Principal.identity`. text: what only this key has, such as the hash of its first secret."""
    return sha256(text.encode()).hexdigest()[:32]


def _first_of(key: Key) -> str:
    """A text that only this key of the configuration has."""
    if key.match is not None and key.hash is None and key.aws_access_key_id is None:
        return f"address {' '.join(sorted(key.match.address))}"
    return key.hash or f"aws {key.aws_access_key_id}"


def digest_of(hash_: str) -> bytes:
    """The bytes of a `hash` in gateway.yaml."""
    return bytes.fromhex(hash_.removeprefix("sha256:"))


def _salts(options: CacheSalt | None) -> Callable[[str, str | None, str], str | None]:
    """(key, team, identity) -> the salt of the callers that share a cache: 256 bits in 43 characters, as vLLM asks for.
    Gateways with the same secret make the same salt. Without the secret nobody can compute it."""
    if options is None:
        return lambda key, team, identity: None
    secret, by_team = options.secret.encode(), options.by != "key"

    def salt(key: str, team: str | None, identity: str) -> str:
        whose = tenant_of(key, team if by_team else None, identity)
        return urlsafe_b64encode(hmac_digest(secret, whose.encode(), "sha256")).rstrip(b"=").decode()

    return salt
