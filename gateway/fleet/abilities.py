"""What may be asked of each model: what is declared, less what one of its workers says that it cannot do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import httpx
from msgspec.structs import replace

from gateway.config import Config
from gateway.core.errors import GatewayError
from gateway.core.ports import UNKNOWN, Capabilities, Facts
from gateway.fleet.discovery import able
from gateway.fleet.fleets import Fleets
from gateway.fleet.served import Served, small_body
from gateway.fleet.worker import Worker


class Abilities:
    """Of one configuration.

    declared  by model
    models    whose `can` is kept right
    offer     called with a model of which that was set anew
    """

    def __init__(
        self, config: Config, fleets: Fleets, models: Mapping[str, Served], offer: Callable[[str], None]
    ) -> None:
        self.declared = {
            name: Capabilities(options.upstream_model or name, options.max_context, options.features)
            for name, options in config.models.items()
        }
        self._timeout_s = config.health.timeout_s
        self._fleets = fleets
        self._models = models
        self._offer = offer

    def narrow(self, model: str) -> None:
        """Sets what may be asked of `model`: what is declared, less what one of its workers says it cannot do. A worker
        that is in no registry was asked itself."""
        workers = self._fleets.workers
        members = [
            replace(member, facts=workers[model, member.address].facts) if member.facts == UNKNOWN else member
            for member in self._fleets.members(model)
        ]
        staying = [member for member in members if not member.draining]
        self._models[model].can = able(self.declared[model], staying or members)
        self._offer(model)

    async def ask(self, model: str, worker: Worker, client: httpx.AsyncClient) -> None:
        """Asks a worker what it can do. One that does not answer is believed able, as before."""
        worker.facts = await self._facts(model, worker, client) or UNKNOWN
        self.narrow(model)

    async def ask_again(self, model: str, worker: Worker, client: httpx.AsyncClient) -> None:
        """What it has loaded may have changed. If it does not answer, its last answer stands: its probes judge it."""
        worker.facts = await self._facts(model, worker, client) or worker.facts

    async def _facts(self, model: str, worker: Worker, client: httpx.AsyncClient) -> Facts | None:
        """What a worker says that it can do; None if it does not."""
        served = self._models[model]
        path = served.backend.facts_path
        if path is None or served.paths is not None:  # no other path of it may be called
            return None
        try:
            async with asyncio.timeout(self._timeout_s):
                said = await small_body(client, worker.address + path, served.headers)
            return served.backend.facts(said, served.can.upstream_model)
        except (GatewayError, httpx.HTTPError, TimeoutError):
            return None
