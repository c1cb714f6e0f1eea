"""What one key may hold open, and what is refused while the gateway itself cannot keep up, as clients see it."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from gateway.core.errors import Kind
from tests.support.clients import DIALECTS, usual
from tests.support.harness import Stack, until
from tests.unit.app.asking import key

URL = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
USUAL = {name: usual(name) for name in DIALECTS}
EVERY = {name: {"default_model": "m"} for name in DIALECTS}


def shed(stack: Stack, reason: str) -> str:
    """What the metric has of it."""
    lines = httpx.get(f"{stack.url}/metrics").text.splitlines()
    return next((line.split()[-1] for line in lines if f'shed_requests_total{{reason="{reason}"}}' in line), "")


def test_a_late_gateway_refuses_the_lowest_priority_in_every_dialect() -> None:
    low, low_entry = key("low", priority=-5)
    usual_key, usual_entry = key("usual")
    config = {"keys": low_entry | usual_entry, "dialects": EVERY, "listen": {"shed_lag_s": 0}}
    with Stack(config=config) as stack:
        # Without a bound the readings change nothing; so it stays.
        stack.run(_press(stack, 1.0))
        for name, way in USUAL.items():
            url, body = stack.url + way.path("m"), {**way.body(stream=False), "model": "m"}
            answer = httpx.post(url, json=body, headers={"api-key": low})
            assert answer.status_code == DIALECTS[name].errors[Kind.OVERLOADED][0], name
            assert "the gateway is overloaded" in answer.text, name
            assert {"retry-after", "x-amz-retry-after"} & set(answer.headers) or answer.status_code == 529, name
            assert httpx.post(url, json=body, headers={"api-key": usual_key}).status_code == 200, name
        records = [one for one in stack.records() if one["key"] == "low"]
        assert {(one["code"], one["model"], one["attempts"]) for one in records} >= {("gateway_overloaded", "", 0)}
        assert shed(stack, "lag") == f"{len(USUAL)}.0"
        stack.run(_press(stack, 0.0))
        assert [line["level"] for line in stack.events("shedding")] == ["warning"]
        assert [line["level"] for line in stack.events("shedding over")] == ["info"]
        assert httpx.post(stack.url + URL, json=BODY, headers={"api-key": low}).status_code == 200


async def _press(stack: Stack, pressure: float) -> None:
    stack.service("shedding").press(pressure)


def test_the_loops_own_lateness_is_what_it_goes_by() -> None:
    with Stack(config={"listen": {"shed_lag_s": "100ms"}}) as stack:

        async def stand_still() -> None:
            """The loop is kept from its work for longer than the bound, again and again."""
            while not stack.service("shedding").pressure:
                time.sleep(0.25)  # noqa: ASYNC251 (that is the point)
                await asyncio.sleep(0)

        stack.run(stand_still())
        until(lambda: bool(stack.events("shedding")))
        until(lambda: bool(stack.events("shedding over")), 60)
        assert httpx.post(stack.url + URL, json=BODY).status_code == 200


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_a_key_has_no_more_streams_than_it_may(dialect: str) -> None:
    way = usual(dialect)
    if not way.answers(stream=True):
        pytest.skip("its usual chats are not streamed")
    one, entry = key("one", limits={"streams": 1})
    other, other_entry = key("other")
    config = {"keys": entry | other_entry, "dialects": {dialect: {"default_model": "m"}}}
    body = {**way.body("hello", stream=True, max_tokens=3), "model": "m"}

    with Stack(config=config) as stack:

        async def ask(secret: str) -> httpx.Response:
            async with httpx.AsyncClient(timeout=20) as client:
                return await client.post(stack.url + way.path("m"), json=body, headers={"api-key": secret})

        async def beside_one() -> list[httpx.Response]:
            stack.sim.fault("stall@1")
            held = asyncio.create_task(ask(one))
            await stack.sim.wait(running=1)
            stack.sim.fault("")
            answers = [await ask(one), await ask(other)]
            held.cancel()
            await asyncio.gather(held, return_exceptions=True)
            return answers

        refused, served = stack.run(beside_one())
        assert refused.status_code == DIALECTS[dialect].errors[Kind.LIMITED][0] == 429
        assert "no more than 1 of this API key's streams" in refused.text
        assert served.status_code == 200
        assert shed(stack, "streams") == "1.0"
        assert stack.run(ask(one)).status_code == 200, "its place is free again"
        stack.records()
        assert not stack.service("caps").streams.open


def test_no_fallback_is_asked_for_a_stream_that_is_too_much() -> None:
    secret, entry = key("one", limits={"streams": 1})
    other = {"backend": "vllm", "upstream_model": "sim", "workers": ["http://127.0.0.1:1"]}
    models = {"m": {"fallback": ["other"]}, "other": other}
    with Stack(config={"keys": entry, "models": models}) as stack:

        async def beside_one() -> httpx.Response:
            async with httpx.AsyncClient(timeout=20, headers={"authorization": f"Bearer {secret}"}) as client:
                stack.sim.fault("stall@1")
                held = asyncio.create_task(client.post(stack.url + URL, json={**BODY, "stream": True}))
                await stack.sim.wait(running=1)
                answer = await client.post(stack.url + URL, json={**BODY, "stream": True})
                held.cancel()
                await asyncio.gather(held, return_exceptions=True)
                return answer

        assert stack.run(beside_one()).status_code == 429
        assert shed(stack, "streams") == "1.0"


def test_a_key_has_no_more_connections_than_it_may_and_they_are_free_when_lost() -> None:
    secret, entry = key("one")
    own, own_entry = key("own", limits={"connections": 1})
    config = {"keys": entry | own_entry, "listen": {"max_connections_per_key": 2}}
    with Stack(config=config) as stack:
        caps, url = stack.service("caps"), stack.url + URL

        def ask(client: httpx.Client, secret: str = secret) -> httpx.Response:
            return client.post(url, json=BODY, headers={"api-key": secret})

        with httpx.Client() as first, httpx.Client() as second, httpx.Client() as third:
            assert [ask(first).status_code, ask(second).status_code, ask(first).status_code] == [200, 200, 200]
            answer = ask(third)
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_connections")
            assert (answer.headers["connection"], answer.headers["retry-after"]) == ("close", "1")
            # Another key of the same client takes the connection over.
            assert ask(second, own).status_code == 200
            assert ask(third).status_code == 200
            assert ask(first, own).status_code == 429
            assert stack.run(_held(stack)) == {"one": 1, "own": 1}
        until(lambda: not caps.connections)
        assert shed(stack, "connections") == "2.0"


async def _held(stack: Stack) -> dict[str, int]:
    return dict(stack.service("caps").connections)


def test_counts_outlive_a_reload() -> None:
    secret, entry = key("one", limits={"connections": 1})
    with Stack(config={"keys": entry}) as stack, httpx.Client() as first, httpx.Client() as second:

        def ask(client: httpx.Client) -> int:
            return client.post(stack.url + URL, json=BODY, headers={"api-key": secret}).status_code

        assert ask(first) == 200
        stack.run(stack.gateway.reload(stack.config()))
        assert (ask(second), ask(first)) == (429, 200)
