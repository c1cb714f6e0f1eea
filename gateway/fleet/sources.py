"""The places where the workers of a configuration are looked up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gateway.config import Config
from gateway.fleet.discovery import Dns, Source
from gateway.fleet.registry import Registry
from gateway.redis import RedisSettings, connect, split_address


def worker_sources(config: Config, ignored: Callable[[int], None]) -> tuple[list[Source], list[Any]]:
    """(where the models' workers are looked up, the clients of Redis to be closed afterwards). ignored: called with the
    number of the registry's entries that count for nothing, when it changed."""
    models = config.models.items()
    found: list[Source] = []
    for name, options in models:
        if options.discover is not None and options.discover.dns is not None:
            host, port = split_address(options.discover.dns)
            found.append(Dns(name, host, port, options.discover.interval_s))
    registered = {
        name: options.upstream_model or name
        for name, options in models
        if options.discover is not None and options.discover.redis
    }
    clients: list[Any] = []
    if registered:
        assert config.redis is not None
        client, clients = connect(RedisSettings.of(config.redis))
        found.append(Registry(client, registered, time.monotonic, config.redis.namespace, ignored))
    return found, clients
