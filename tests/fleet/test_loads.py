"""Reading engines' metrics: whatever HTTP does, no figures are what comes of it."""

from __future__ import annotations

import httpx
import pytest

from gateway.config import Breaker
from gateway.core.http import Headers
from gateway.fleet.loads import Loads
from gateway.fleet.worker import Worker
from tests.harness import Stack


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("x"), httpx.ReadTimeout("x"), httpx.RemoteProtocolError("x"), TimeoutError()]
)
async def test_an_engine_that_cannot_be_read_has_no_figures(error: Exception) -> None:
    async def get(client: httpx.AsyncClient, url: str, headers: Headers) -> bytes:
        raise error

    with Stack(({}, {})) as stack:
        state = stack.gateway.state
        loads = Loads(state.config, lambda model: httpx.AsyncClient(), get, lambda model, worker, counts: None)
        loads.start(state.runtime.models, {})
        assert loads.scraper is not None
        gauges = state.runtime.models["m"].backend.gauges
        assert gauges is not None
        assert not await loads.scraper.look("m", Worker("http://127.0.0.1:9", Breaker(), None), gauges)
        await loads.close()
