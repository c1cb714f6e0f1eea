"""What a request is charged, by whichever exit it leaves, and what gives its slot back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from tests.support.clients import CHAT, REQUESTS
from tests.support.harness import Stack, soon
from tests.unit.ratelimit.asking import DEFAULTS, OPENAI, ask, limiter_of, said, standing


@pytest.fixture
def counted() -> Iterator[Stack]:
    limits = [
        {"name": "rpm", "kind": "requests", "limit": 50, "scope": []},
        {"name": "tpm", "kind": "tokens", "limit": 5000, "scope": []},
        {"name": "slots", "kind": "concurrency", "limit": 10, "scope": []},
    ]
    models = {"m": {"max_in_flight": 1}}
    with Stack(({"itl_ms": 1},), {**DEFAULTS, "limits": limits, "models": models}) as stack:
        yield stack


@pytest.mark.parametrize("stream", [False, True])
def test_finished(counted: Stack, stream: bool) -> None:
    for dialect in REQUESTS:
        assert ask(counted, dialect=dialect, stream=stream).status_code == 200
    used = sum(record["usage"]["input"] + record["usage"]["output"] for record in counted.records())
    assert used > 0
    assert standing(counted) == {"rpm": len(REQUESTS), "tpm": used, "slots": 0}


def test_failed(counted: Stack) -> None:
    counted.sim.fault("status:400", count=1)
    assert ask(counted).status_code == 400
    assert standing(counted) == {"rpm": 1, "tpm": 0, "slots": 0}
    assert "[DONE]" not in str(counted.records())
    with pytest.raises(httpx.RemoteProtocolError):
        ask(counted, stream=True, **said(text="one two three four", fault="reset@2"))
    record = counted.records()[-1]
    assert record["outcome"] == "failed"
    assert record["usage"]["source"] == "estimated"
    assert standing(counted)["tpm"] == record["usage"]["input"] + record["usage"]["output"] > 0


def test_a_prompt_that_nobody_counted_is_estimated_without_limits_too() -> None:
    with Stack() as stack:
        with pytest.raises(httpx.RemoteProtocolError):
            ask(stack, stream=True, **said(text="one two three four", fault="reset@2"))
        usage = stack.record()["usage"]
        assert usage["source"] == "estimated"
        assert usage["input"] > 8
        assert usage["output"] == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_takes_too_long_is_charged_as_reserved(stream: bool) -> None:
    """Its client may have asked for so long a one."""
    config = {"limits": [{"name": "tpm", "kind": "tokens", "limit": 5000}], "deadlines": {"first_byte_s": 0.1}}
    with Stack(({},), config) as stack:
        body = {"max_tokens": 500, "stream": stream, **said(text="a b c", fault="stall@before")}
        assert ask(stack, **body).status_code == 504
        assert stack.record()["code"] == "timeout"
        assert 500 < standing(stack, key="anonymous")["tpm"] < 600


def test_a_reply_that_is_too_large_is_charged_as_reserved() -> None:
    """Its client may have asked for so large a one."""
    config = {"limits": [{"name": "tpm", "kind": "tokens", "limit": 50000}], "relay": {"max_reply_bytes": 1024}}
    with Stack(({},), config) as stack:
        assert ask(stack, n=10, max_tokens=100).status_code == 502
        assert stack.record()["code"] == "upstream_too_large"
        assert 1000 < standing(stack, key="anonymous")["tpm"] < 1100
        body = {"model": "m", "input": ["hello " * 100] * 20}
        assert httpx.post(stack.url + "/v1/embeddings", json=body).status_code == 502
        assert standing(stack, key="anonymous")["tpm"] > 1000 + 20 * 100


def test_refused_before_a_worker_burns_nothing(counted: Stack) -> None:
    assert ask(counted, messages=[]).status_code == 400
    assert ask(counted, model="absent").status_code == 404
    assert standing(counted) == {"rpm": 0, "tpm": 0, "slots": 0}


def test_cancelled_in_the_middle_of_a_stream(counted: Stack) -> None:
    body = {"model": "m", "stream": True, "max_tokens": 500, **said(text="a b c d e", fault="stall@2")}
    with httpx.stream("POST", counted.url + OPENAI, json=body) as reply:
        blocks = reply.iter_bytes()
        next(blocks)
        assert standing(counted)["slots"] == 1
        assert standing(counted)["tpm"] > 500
    counted.run(counted.sim.ledger.wait(aborted=1))
    counted.run(counted.gateway.deployment.runtime.active.empty(20))
    usage = counted.records()[-1]["usage"]
    assert usage["output"] in (1, 2)
    assert standing(counted) == {"rpm": 1, "tpm": usage["input"] + usage["output"], "slots": 0}


def test_cancelled_before_the_first_token_of_a_stream(counted: Stack) -> None:
    """Nothing was produced that nobody saw, so the room for the output is given back."""

    async def run() -> None:
        body = {"model": "m", "stream": True, "max_tokens": 500, **said(text="a b c", fault="stall@before")}
        async with httpx.AsyncClient(base_url=counted.url) as client:
            asking = asyncio.create_task(client.post(OPENAI, json=body))
            await soon(lambda: counted.sim.ledger.received == 1)
            asking.cancel()
            await soon(lambda: limiter_of(counted).in_flight == 0)

    asyncio.run(run())
    used = standing(counted)
    assert (used["rpm"], used["slots"]) == (1, 0)
    assert 0 < used["tpm"] < 100


def test_cancelled_while_waiting_for_a_worker_is_as_if_it_had_never_been(counted: Stack) -> None:
    async def run() -> None:
        # Without `max_tokens` each would reserve the rest of the context, which the worker tells.
        body = {"model": "m", "stream": True, "max_tokens": 16, **said(text="a b c", fault="stall@1")}
        async with httpx.AsyncClient(base_url=counted.url) as client, client.stream("POST", OPENAI, json=body):
            waiting = asyncio.create_task(client.post(OPENAI, json={"model": "m", "max_tokens": 16, **CHAT}))
            await soon(lambda: limiter_of(counted).in_flight == 2)
            waiting.cancel()
            await soon(lambda: limiter_of(counted).in_flight == 1)

    asyncio.run(run())
    counted.run(counted.gateway.deployment.runtime.active.empty(20))
    assert standing(counted)["rpm"] == 1
    assert standing(counted)["slots"] == 0


def test_a_bug_gives_its_slot_back(counted: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.wire.openai.streams.passthrough.Passthrough.whole", lambda *_: 1 / 0)
    assert ask(counted).status_code == 500
    assert standing(counted)["slots"] == 0
    assert limiter_of(counted).in_flight == 0


def test_shadow_limits_count_and_refuse_nothing() -> None:
    limits = [{"name": "soon", "kind": "requests", "limit": 1, "scope": [], "shadow": True}]
    with Stack(({},), {"limits": limits}) as stack:
        replies = [ask(stack) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200] * 3
        assert not [name for name in replies[0].headers if "ratelimit" in name]
        assert 'dragoman_limits_shadowed_total{limit="soon"} 2.0' in httpx.get(stack.url + "/metrics").text
