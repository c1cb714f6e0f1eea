"""Clients for what workers are asked beside requests: whatever HTTP does, no figures are what comes of it."""

from __future__ import annotations

import ssl

import httpx
import pytest

from gateway.core.http import Headers
from gateway.fleet.clients import Clients
from tests.harness import Stack


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("x"), httpx.ReadTimeout("x"), httpx.RemoteProtocolError("x"), TimeoutError()]
)
async def test_an_engine_that_cannot_be_read_has_no_figures(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async def document(model: str, url: str, headers: Headers) -> bytes:
        raise error

    with Stack(({}, {}), config={"routing": {"scrape_s": 3600}}) as stack:
        fleets = stack.gateway.deployment.fleets
        fleet = fleets.models["m"]
        gauges = fleet.backend.gauges
        assert fleets.scraper is not None
        assert gauges is not None
        assert stack.run(fleets.scraper.look("m", fleet.workers[0], gauges))
        monkeypatch.setattr(fleets.clients, "document", document)
        assert not stack.run(fleets.scraper.look("m", fleet.workers[0], gauges))


async def test_a_models_workers_share_one_client_which_is_closed() -> None:
    clients = Clients(lambda model: ssl.create_default_context(), 1.0)
    one, other = clients.of("m"), clients.of("other")
    assert clients.of("m") is one is not other
    await clients.close()
    assert one.is_closed
    assert other.is_closed
