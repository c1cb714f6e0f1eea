"""Clients for what workers are asked beside requests: whatever HTTP does, no figures are what comes of it."""

from __future__ import annotations

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Headers
from gateway.fleet.clients import Clients
from gateway.transport.pooled import Pooled
from tests.support.harness import Stack


@pytest.mark.parametrize("error", [GatewayError(Kind.UPSTREAM, "x"), GatewayError(Kind.TIMEOUT, "x"), TimeoutError()])
async def test_an_engine_that_cannot_be_read_has_no_figures(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async def document(model: str, address: str, path: str, headers: Headers) -> bytes:
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


async def test_a_models_workers_share_one_transport_which_is_closed() -> None:
    made: list[Pooled] = []

    def make(model: str) -> Pooled:
        made.append(Pooled(max_idle=0))
        return made[-1]

    clients = Clients(make, 1.0)
    with Stack(({}, {})) as stack:
        for model in ("m", "m", "other"):
            assert await clients.probe(model, stack.sims[0].url, "/health", 5.0) == 200
    assert len(made) == 2
    assert [one.open for one in made] == [0, 0], "no connection is kept"
    await clients.close()
    with pytest.raises(GatewayError):
        await clients.probe("m", stack.sims[0].url, "/health", 5.0)
