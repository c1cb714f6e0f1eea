"""The parts of a configuration that take long to make: they grow with the keys and limits, or are read from files."""

from __future__ import annotations

import ssl

import httpx

from gateway.auth import KeyTable
from gateway.auth.key_mirror import NOTHING, Known
from gateway.config import Config, ConfigError, Fault, Model, plain_secrets
from gateway.config.faults import Position
from gateway.core.figures import ConnectionCounts
from gateway.dialects import REGISTRY
from gateway.ratelimit import Limits
from gateway.transport.by_httpx import ByHttpx
from gateway.transport.pooled import Pooled


class Prepared:
    """Made of `config`, and of `stored`, the keys and teams of its store so far. A reload makes it in a thread, so that
    requests go on. Raises OSError if a file cannot be read, and ConfigError for a key or a team that the store has too.

    keys        the callers
    limits      the rules
    trust       the authorities that workers are trusted by, by the `ca_file` of their model; those of the web by None
    secrets     those that no log may show
    priorities  those that requests may have; callers without a key have 0
    """

    def __init__(self, config: Config, stored: Known = NOTHING) -> None:
        both = [("keys", key.name) for key in stored.keys if not key.gone and key.name in config.keys]
        both += [("teams", team.name) for team in stored.teams if not team.gone and team.name in config.teams]
        if both:
            positions = (Position("keys_store", path=path) for path in sorted(both))
            raise ConfigError(Fault(position, "is also in the store") for position in positions)
        self.keys = KeyTable(config, stored.keys, stored.teams)
        own = {name: dialect.limit_headers for name, dialect in REGISTRY.items() if dialect.limit_headers}
        keys = [(key.name, key.limits) for key in stored.keys if not key.gone]
        self.limits = Limits(config, keys, own, [(team.name, team) for team in stored.teams if not team.gone])
        files = {options.ca_file for options in config.models.values() if options.ca_file is not None}
        # Reading those of the web takes some 30 ms.
        self.trust: dict[str | None, ssl.SSLContext] = {None: httpx.create_ssl_context(trust_env=False)}
        self.trust |= {file: ssl.create_default_context(cafile=file) for file in files}
        # httpx writes into a context what it offers by ALPN: these are of one model each.
        self._of_httpx = {
            name: ssl.create_default_context(cafile=options.ca_file)
            for name, options in config.models.items()
            if options.has_proxy or options.http2
        }
        self.secrets = tuple(plain_secrets(config))
        keyless = {0} if config.auth == "open" or config.jwt is not None else set[int]()
        self._keyless = keyless

    def transport(
        self, model: str, options: Model, *, asking: bool = False, counts: ConnectionCounts | None = None
    ) -> Pooled:
        """A transport to the workers of `model`. asking: for what they are asked beside requests; it keeps no
        connection."""
        max_idle = 0 if asking else 256
        if (own := self._of_httpx.get(model)) is not None:
            return ByHttpx(own, options.proxy_for, options.http2, max_idle=max_idle, counts=counts)
        context = self.trust[options.ca_file] if asking or options.ca_file is not None else None
        return Pooled(ssl_for=lambda address: context, max_idle=max_idle, counts=counts)

    def forget(self, config: Config) -> None:
        """Frees the keys of `config`, of which this was made and which nothing uses any more, in a thread: a collection
        would come to them late, and free all of them at once."""
        for table in (self.keys.by_digest, self.keys.by_access_key, config.keys):
            while table:
                table.popitem()

    @property
    def priorities(self) -> set[int]:
        return self._keyless | self.keys.priorities
