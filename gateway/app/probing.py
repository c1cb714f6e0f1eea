"""Probes all workers of a configuration once, without a gateway: `dragoman check --probe`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gateway import backends
from gateway.app.prepared import Prepared
from gateway.config import Config, Model
from gateway.core.errors import GatewayError
from gateway.core.figures import Silence
from gateway.core.http import Headers
from gateway.core.ports import Capabilities
from gateway.fleet.adapters import AdapterPool
from gateway.fleet.fleets import Fleets
from gateway.fleet.roster import Roster
from gateway.fleet.waiting import Refusal
from gateway.fleet.worker import Worker
from gateway.transport.pooled import Pooled


def headers_of(options: Model) -> Headers:
    """The headers that every request to a model's workers carries."""
    headers: Headers = [(key.lower().encode(), value.encode()) for key, value in options.headers.items()]
    if options.api_key is not None:
        headers.append((b"authorization", b"Bearer " + options.api_key.encode()))
    return headers


async def probe(config: Config) -> Fleets:
    """The workers of all models, looked up and probed as at a gateway's start."""
    prepared = Prepared(config)

    def asking(model: str) -> Pooled:
        return prepared.transport(model, config.models[model], asking=True)

    nobody = _Nobody()
    fleets = Fleets(config, Roster(), nobody, asking, None, nobody)
    for name, options in config.models.items():
        fleets.serve(name, backends.create(options.backend), headers_of(options))
    try:
        await fleets.start()
    finally:
        await fleets.rest()
        await fleets.close()
    return fleets


class _Nobody:
    """Implements fleet.report.Report and fleet.adapters.Serving: there is no log, and no request."""

    def event(self, level: str, message: str, **fields: Any) -> None: ...
    def masked(self, text: str) -> str:
        return text

    def worker(self, model: str, address: str, ready: bool) -> None: ...
    def worker_left(self, model: str, address: str) -> None: ...
    def ejected(self, model: str, address: str) -> None: ...
    def stalled(self, model: str, address: str) -> None: ...
    def refused(self, model: str, reason: Refusal) -> None: ...
    def waits(self, model: str) -> Callable[[float], None]:
        return lambda seconds: None

    def narrowed(self, model: str, can: Capabilities) -> None: ...
    def offered(self, model: str, adapter: str, pools: Sequence[AdapterPool]) -> None: ...
    def withdrawn(self, model: str, adapter: str) -> None: ...
    def forget(self, model: str, address: str) -> None: ...
    def silence(self, model: str, worker: Worker, recent: float) -> Silence | None:
        return None

    def leave(self, worker: Worker, error: GatewayError) -> None: ...
