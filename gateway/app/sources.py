"""What one configuration reaches beside its workers: where workers are found, and where responses are stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gateway.config import Config
from gateway.fleet.discovery import Dns, Source
from gateway.fleet.registry import Registry
from gateway.pipeline.shelf import MemoryShelf, RedisShelf, Shelf
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


def shelf_of(config: Config, known: Shelf | None, failed: Callable[[str], None]) -> Shelf | None:
    """Where responses are stored. What is in memory stays over a reload: `known` is the shelf before it. failed: told
    why one could not be stored."""
    options = config.store
    if options.where == "nowhere":
        return None
    if options.where == "redis":
        assert config.redis is not None  # the configuration was checked
        namespace = config.redis.namespace
        return RedisShelf(options.ttl_s, lambda: connect(RedisSettings.of(config.redis)), failed, namespace)
    if not isinstance(known, MemoryShelf):
        return MemoryShelf(options.ttl_s, options.max_bytes)
    return known
