"""Engines' load in the heads of replies, where the gateway asks for it."""

from __future__ import annotations

import httpx
import pytest

from tests.support.harness import Stack
from tests.support.simulated.jobs import Plain


@pytest.mark.parametrize("asks", [True, False])
def test_the_head_of_a_reply_tells_the_load_where_that_is_asked(asks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said = b"endpoint-load-metrics: TEXT named_metrics.num_requests_waiting=4.0\r\n"
    monkeypatch.setattr(Plain, "load", lambda self: said if self.tells else b"")
    routing = {"scrape_s": 3600, "load_header": asks}
    with Stack(({}, {}), config={"models": {"m": {"policy": "least_tokens"}}, "routing": routing}) as stack:
        state = stack.gateway.deployment
        gauges = state.runtime.models["m"].backend.gauges
        assert gauges is not None
        assert state.fleets.scraper is not None
        stack.run(state.fleets.scraper.close())  # no reading of its own comes between
        for worker in state.pools["m"].workers:
            assert stack.run(state.fleets.scraper.look("m", worker, gauges))
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        reply = httpx.post(stack.url + "/v1/chat/completions", json=body)
        assert "endpoint-load-metrics" not in reply.headers
        answered = state.workers["m", stack.record()["worker"]]
        assert answered.reported is not None
        assert answered.reported.waiting == (4 if asks else 0)
        assert answered.tokens + answered.others == (4 * 1_024 if asks else 0)
