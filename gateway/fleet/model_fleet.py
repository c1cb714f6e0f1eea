"""The workers of one model under one configuration."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from gateway.config import Model as ModelOptions
from gateway.config.routing import KvEvents, WorkerOptions
from gateway.core.http import Headers
from gateway.core.ports import UNKNOWN, Backend
from gateway.core.renaming import Renaming
from gateway.fleet.discovery import FoundWorker, able
from gateway.fleet.pool import Pool
from gateway.fleet.worker import Worker

_ORDINARY = WorkerOptions()
_ADDRESSED = (
    *("backend", "upstream_model", "api_key", "headers", "ca_file", "paths", "features", "max_context"),
    *("system", "proxy", "http2"),
)
"""Options of a model that decide what its workers are sent, and which workers they are."""


class ModelFleet:
    """The workers of one model: those that generate, and those that compute prompts for them, if there are any.

    headers   that every request to them carries
    declared  the workers' capabilities, as the configuration has them
    can       the capabilities of all workers, narrowed by what they report about themselves
    members   the workers that discovery found; before that, those that the configuration lists
    names     the names by which workers that reported theirs serve the model, each with their addresses
    reported  those names that the log has, if they differ
    """

    pool: Pool
    prefill: Pool | None = None

    def __init__(self, name: str, options: ModelOptions, backend: Backend, headers: Headers) -> None:
        self.name = name
        self.options = options
        self.backend = backend
        self.headers = headers
        self.declared = options.declared(name)
        self.can = able(self.declared, ())
        self.members: Sequence[FoundWorker] = [FoundWorker(address) for address in options.workers]
        self.names: dict[str, list[str]] = {}
        self.reported: Collection[str] = ()

    @property
    def pools(self) -> list[Pool]:
        return [self.pool] if self.prefill is None else [self.pool, self.prefill]

    @property
    def workers(self) -> list[Worker]:
        """Those that generate, then those that compute prompts."""
        return [worker for pool in self.pools for worker in pool.workers]

    @property
    def gauges_apply(self) -> bool:
        """Whether the workers' metrics may be read, and their engine is known to have any."""
        return self.backend.gauges is not None and self.options.paths is None

    @property
    def facts_path(self) -> str | None:
        """The path at which a worker reports what it can do; None if no path but the listed ones may be called."""
        return self.backend.facts_path if self.options.paths is None else None

    def name_workers(self) -> None:
        """Sets the name that workers are sent: one for all of them where that can be, else to each its own."""
        wanted = self.declared.upstream_model
        own = {worker: worker.served_as or wanted for worker in self.workers}
        known = [name for worker, name in own.items() if worker.ready or worker.served_as]
        common = wanted if wanted in known or not known else known[0]
        self.can = replace(self.can, upstream_model=common)
        names = frozenset([wanted, *own.values()])
        self.names = {}
        for worker, name in own.items():
            worker.renaming = None if len(names) == 1 else Renaming(names, name)
            if worker.facts is not UNKNOWN:
                self.names.setdefault(name, []).append(worker.address)

    def worker_options(self, address: str) -> WorkerOptions:
        return self.options.worker_options.get(address, _ORDINARY)

    def kv_events(self, worker: Worker) -> KvEvents:
        """The ports at which a worker's engine publishes what it caches; the model has `kv_events`."""
        ports = self.worker_options(worker.address).kv_events or self.options.kv_events
        assert ports is not None
        return ports

    def addressed_as(self, other: ModelFleet) -> bool:
        """Whether requests that are written for the workers of one are fit for those of the other."""
        return all(getattr(self.options, name) == getattr(other.options, name) for name in _ADDRESSED)

    def staying(self) -> list[FoundWorker]:
        """The members that are not about to leave; all if all are. A member that no registry describes was asked itself
        what it can do."""
        facts = {worker.address: worker.facts for worker in self.workers}
        members = [
            FoundWorker(one.address, one.draining, facts.get(one.address, UNKNOWN)) if one.facts == UNKNOWN else one
            for one in self.members
        ]
        return [one for one in members if not one.draining] or members
