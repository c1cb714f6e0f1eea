"""The parts of a configuration that take long to make: they grow with the keys and limits, or are read from files."""

from __future__ import annotations

import ssl

import httpx

from gateway.auth import KeyTable
from gateway.config import Config, plain_secrets
from gateway.ratelimit import Limits


class Prepared:
    """Made of `config` alone. A reload makes it in a thread, so that requests go on. Raises OSError if a file cannot be
    read.

    keys        the callers
    limits      the rules
    trust       by which authorities workers are trusted
    secrets     those that no log may show
    priorities  those that requests may have; callers without a key have 0
    """

    def __init__(self, config: Config) -> None:
        self.keys = KeyTable(config)
        self.limits = Limits(config)
        self.trust = Trust(config)
        self.secrets = tuple(plain_secrets(config))
        keyless = {0} if config.auth == "open" or config.jwt is not None else set[int]()
        self.priorities = keyless | {key.priority for key in config.keys.values()}


class Trust:
    """The authorities of the workers of one configuration. Reading those of the web takes some 30 ms."""

    def __init__(self, config: Config) -> None:
        self._web = httpx.create_ssl_context(trust_env=False)
        files = {options.ca_file for options in config.models.values() if options.ca_file is not None}
        self._own = {file: ssl.create_default_context(cafile=file) for file in files}

    def of(self, ca_file: str | None) -> ssl.SSLContext:
        """The context for the workers of a model with this `ca_file`."""
        return self._web if ca_file is None else self._own[ca_file]
