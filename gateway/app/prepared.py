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
    trust       the authorities that workers are trusted by, by the `ca_file` of their model; those of the web by None
    secrets     those that no log may show
    priorities  those that requests may have; callers without a key have 0
    """

    def __init__(self, config: Config) -> None:
        self.keys = KeyTable(config)
        self.limits = Limits(config)
        files = {options.ca_file for options in config.models.values() if options.ca_file is not None}
        # Reading those of the web takes some 30 ms.
        self.trust: dict[str | None, ssl.SSLContext] = {None: httpx.create_ssl_context(trust_env=False)}
        self.trust |= {file: ssl.create_default_context(cafile=file) for file in files}
        self.secrets = tuple(plain_secrets(config))
        keyless = {0} if config.auth == "open" or config.jwt is not None else set[int]()
        self.priorities = keyless | {key.priority for key in config.keys.values()}
