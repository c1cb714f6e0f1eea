"""Reading what workers' engines say of their load, for the models whose policy or queue goes by it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import httpx

from gateway.config import Config
from gateway.core.http import Headers
from gateway.fleet.engine import Scraper
from gateway.fleet.pool import Pool
from gateway.fleet.served import Served
from gateway.fleet.worker import Worker

PATH = "/metrics"

Get = Callable[[httpx.AsyncClient, str, Headers], Awaitable[bytes]]


class Loads:
    """The readings of one configuration.

    client_of  makes the HTTP client for a model's workers; it is closed with this object
    get        the body of a small 200
    report     told of (model, worker, whether its figures count)
    """

    def __init__(
        self,
        config: Config,
        client_of: Callable[[str], httpx.AsyncClient],
        get: Get,
        report: Callable[[str, Worker, bool], None],
    ) -> None:
        self._timeout_s = config.health.timeout_s
        self._client_of = client_of
        self._get = get
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._models: Mapping[str, Served] = {}
        interval_s = config.routing.scrape_s
        self.scraper = Scraper(interval_s, self._fetch, report) if interval_s else None

    def start(self, models: Mapping[str, Served], pools: Mapping[str, Sequence[Pool]]) -> None:
        """Begins with the workers that the pools have now."""
        self._models = models
        for model, its in pools.items():
            for pool in its:
                for worker in pool.workers:
                    worker.untold()
            self.follow(model, its)

    def follow(self, model: str, pools: Sequence[Pool]) -> None:
        """The workers of `pools` are those of `model` from now on."""
        served = self._models.get(model)
        if self.scraper is None or served is None:
            return
        gauges = served.backend.gauges
        if gauges is None or served.paths is not None:
            return
        wanted = [one for one in pools if one.policy.needs and len(one.workers) > 1]
        wanted += [one for one in pools if one not in wanted and any(worker.learns for worker in one.workers)]
        self.scraper.follow(model, [worker for one in wanted for worker in one.workers], gauges)

    async def _fetch(self, model: str, worker: Worker) -> bytes:
        client = self._clients.get(model)
        if client is None:
            client = self._clients[model] = self._client_of(model)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._get(client, worker.address + PATH, self._models[model].headers)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise OSError(f"no metrics of {worker.address}") from error

    async def close(self) -> None:
        if self.scraper is not None:
            await self.scraper.close()
        for client in self._clients.values():
            await client.aclose()
