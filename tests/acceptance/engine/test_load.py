"""What vLLM says of its load, in its metrics and in the heads of replies, is what the gateway reads."""

from __future__ import annotations

import httpx
import pytest

from gateway import backends
from gateway.config import Breaker
from gateway.core.ports import Gauges
from gateway.fleet.engine import ASK, read_load, update_load
from gateway.fleet.worker import EngineLoad, Worker

pytestmark = pytest.mark.engine


@pytest.fixture
def gauges() -> Gauges:
    found = backends.create("vllm").gauges
    assert found is not None
    return found


def loaded(engine: httpx.Client, gauges: Gauges) -> EngineLoad:
    load = read_load(engine.get("/metrics").content, gauges, 0)
    assert load is not None
    assert load.computed is not None
    return load


def test_its_counters_tell_what_it_computed(engine: httpx.Client, gauges: Gauges) -> None:
    before = loaded(engine, gauges)
    body = {"model": "smollm2", "prompt": "One, two, three,", "max_tokens": 8, "ignore_eos": True}
    reply = engine.post("/v1/completions", json=body)
    assert reply.status_code == 200
    after = loaded(engine, gauges)
    assert (after.computed or 0) - (before.computed or 0) >= 4 * 8


def test_the_head_of_a_reply_tells_what_waits(engine: httpx.Client, gauges: Gauges) -> None:
    name, value = ASK
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    reply = engine.post("/v1/chat/completions", json=body, headers={name.decode(): value.decode()})
    assert gauges.in_replies is not None
    worker = Worker("http://w", Breaker(), None)
    worker.report_load(EngineLoad(0.0, 7.0, 0), 1.0)
    update_load(gauges.in_replies, worker, [(key.lower(), text) for key, text in reply.headers.raw])
    assert worker.reported is not None
    assert worker.reported.waiting == 0, "nothing else runs there"
