"""Waiting for a worker, and being refused it, as clients of every dialect see it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.errors import Kind
from gateway.fleet import waiting as waiting_room
from tests.support.clients import DIALECTS, usual
from tests.support.harness import Stack, soon

URL = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
USUAL = {name: usual(name) for name in DIALECTS}
LONG = BODY | {"max_tokens": 2000, "ignore_eos": True}
STALLED: tuple[dict[str, Any], ...] = ({"fault": "stall"},)


def narrow(queue: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """One request at a time, and this queue."""
    return {"models": {"m": {"max_in_flight": 1, "queue": queue}}, **sections}


async def waiting(stack: Stack, count: int) -> None:
    await soon(lambda: stack.gateway.deployment.pools["m"].waiting == count)


async def taken(stack: Stack, client: httpx.AsyncClient, **more: Any) -> asyncio.Task[httpx.Response]:
    """A request that has the only worker, and hears nothing of it."""
    task = asyncio.create_task(client.post(stack.url + URL, json=BODY | more))
    (worker,) = stack.gateway.deployment.pools["m"].workers
    await soon(lambda: worker.in_flight == 1)
    return task


async def end(*tasks: asyncio.Task[httpx.Response]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def refused(stack: Stack) -> dict[tuple[str, str], float]:
    """(model, reason) -> how many the metric has."""
    page = httpx.get(f"{stack.url}/metrics").text
    families = [one for one in text_string_to_metric_families(page) if one.name == "dragoman_queue_refused"]
    return {
        (sample.labels["model"], sample.labels["reason"]): sample.value for one in families for sample in one.samples
    }


def test_a_full_queue_is_a_429_in_every_dialect() -> None:
    async def ask(stack: Stack) -> dict[str, httpx.Response]:
        async with httpx.AsyncClient(timeout=20) as client:
            held = await taken(stack, client)
            found = {
                name: await client.post(stack.url + way.path("m"), json={**way.body(stream=False), "model": "m"})
                for name, way in USUAL.items()
            }
            await end(held)
        return found

    every = {name: {"default_model": "m"} for name in DIALECTS}
    with Stack(STALLED, narrow({"max_waiting": 0}, dialects=every)) as stack:
        answers = stack.run(ask(stack))
        for name, answer in answers.items():
            assert answer.status_code == DIALECTS[name].errors[Kind.LIMITED][0] == 429, name
            assert "the queue of this model is full" in answer.text, name
            assert {"retry-after", "x-amz-retry-after"} & set(answer.headers), name
        assert refused(stack) == {("m", "full"): len(answers)}
        records = {record["dialect"]: record for record in stack.records() if record["status"] == 429}
        assert {(record["code"], record["outcome"], record["attempts"]) for record in records.values()} >= {
            ("queue_full", "refused", 0)
        }
        assert set(records) == set(answers)
        (told, *_) = stack.events("queue refuses")
        assert (told["level"], told["model"], told["waiting"], told["full"]) == ("warning", "m", 0, 1)


def test_who_waited_too_long_is_told_when_to_come_back() -> None:
    async def ask(stack: Stack) -> httpx.Response:
        async with httpx.AsyncClient(timeout=20) as client:
            held = await taken(stack, client)
            answer = await client.post(stack.url + URL, json=BODY)
            await end(held)
        return answer

    with Stack(STALLED, narrow({"timeout_s": "20ms"})) as stack:
        answer = stack.run(ask(stack))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["code"] == "overloaded"
        assert refused(stack) == {("m", "late"): 1}


COLD = {
    "models": {"m": {"queue": {"cold_start_s": "60s"}}},
    "relay": {"keepalive_s": 0.02},
}
"""Of a fleet that is getting ready, with the simulated worker's `loading_s`."""
LOADING: tuple[dict[str, Any], ...] = ({"loading_s": 600.0},)


def loaded(stack: Stack) -> None:
    """The worker has its model now, and is probed at once."""
    stack.sim.reset()
    (worker,) = stack.gateway.deployment.pools["m"].workers
    assert stack.gateway.deployment.fleets.health is not None
    stack.gateway.deployment.fleets.health.suspect(worker)


def test_a_request_waits_for_the_first_worker() -> None:
    async def ask(stack: Stack) -> httpx.Response:
        async with httpx.AsyncClient(timeout=20) as client:
            asking = asyncio.create_task(client.post(stack.url + URL, json=BODY))
            await waiting(stack, 1)
            page = (await client.get(f"{stack.url}/metrics")).text
            assert 'dragoman_queue_length{model="m"} 1.0' in page, "what an autoscaler goes by"
            assert (await client.get(f"{stack.url}/readyz")).status_code == 200, "else nobody would send it a request"
            loaded(stack)
            return await asking

    with Stack(LOADING, COLD) as stack:
        assert not stack.gateway.deployment.pools["m"].ready
        assert stack.run(ask(stack)).status_code == 200
        record = stack.record()
        assert (record["outcome"], record["attempts"]) == ("ok", 1)
        assert record["queue_ms"] > 0


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_a_streaming_client_is_kept_while_it_waits_for_the_first_worker(dialect: str) -> None:
    way = usual(dialect)
    if not way.answers(stream=True):
        pytest.skip("its usual chats are not streamed")

    async def ask(stack: Stack) -> bytes:
        body = {**way.body("hello", stream=True, max_tokens=3), "model": "m"}
        async with (
            httpx.AsyncClient(timeout=20) as client,
            client.stream("POST", stack.url + way.path("m"), json=body) as answer,
        ):
            assert answer.status_code == 200, "the head came with the first keep-alive"
            assert stack.gateway.deployment.pools["m"].waiting == 1
            loaded(stack)
            return await answer.aread()

    with Stack(LOADING, {**COLD, "dialects": {dialect: {"default_model": "m"}}}) as stack:
        assert stack.run(ask(stack))
        assert (stack.record()["outcome"], stack.record()["attempts"]) == ("ok", 1)


def test_without_a_first_worker_in_time_it_is_a_503() -> None:
    late = {"models": {"m": {"queue": {"cold_start_s": "20ms"}}}}
    with Stack(LOADING, late) as stack:
        answer = httpx.post(stack.url + URL, json=BODY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker_available")
        assert "retry-after" in answer.headers
        assert refused(stack) == {("m", "no_worker"): 1}
        assert not stack.events("queue refuses")


def test_a_model_that_wakes_tells_the_rest_of_its_load_in_every_dialect() -> None:
    """The last load took 240 s, and a fifth of it is over. One API's clients give up if told more than two minutes."""
    every = {name: {"default_model": "m"} for name in DIALECTS}
    with Stack(LOADING, {"dialects": every}) as stack:
        waking = stack.gateway.deployment.pools["m"].waking
        waking.took.append(240.0)
        waking.since = time.monotonic() - 48.0
        for name, way in USUAL.items():
            answer = httpx.post(stack.url + way.path("m"), json={**way.body(stream=False), "model": "m"})
            assert answer.status_code == DIALECTS[name].errors[Kind.NO_WORKER][0], name
            longest = 120 if name == "azure_openai" else 192
            assert longest - 30 < int(answer.headers["retry-after"]) <= longest, name
            if (amazon := answer.headers.get("x-amz-retry-after")) is not None:
                assert -(-int(amazon) // 1000) == int(answer.headers["retry-after"])
            if name == "gemini":
                (delay,) = [one["retryDelay"] for one in answer.json()["error"]["details"] if "retryDelay" in one]
                assert longest - 30 < float(delay.rstrip("s")) <= longest
        assert len(USUAL) > 10
        loaded(stack)
        assert stack.run(_awake(stack))
        assert 240.0 in waking.took
        assert waking.since is None


async def _awake(stack: Stack) -> bool:
    """Whether the worker is ready, and has ended the load."""
    pool = stack.gateway.deployment.pools["m"]
    await soon(lambda: pool.ready and pool.waking.since is None)
    return len(pool.waking.took) == 2


def test_what_a_load_took_outlives_a_reload() -> None:
    with Stack(LOADING) as stack:
        stack.gateway.deployment.pools["m"].waking.took.append(30.0)
        before = stack.gateway.deployment
        stack.run(stack.gateway.reload(stack.config({"queue": {"max_waiting": 7}})))
        assert stack.gateway.deployment is not before
        assert list(stack.gateway.deployment.pools["m"].waking.took) == [30.0]


class Hurried:
    """An event loop whose queue has timers that are a hundred times as fast."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.create_future = loop.create_future
        self._loop = loop

    def call_later(self, delay: float, *call: Any) -> asyncio.TimerHandle:
        return self._loop.call_later(delay / 100, *call)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(get_running_loop=lambda: Hurried(asyncio.get_running_loop()))
    monkeypatch.setattr(waiting_room, "asyncio", found)


STREAMS = {**BODY, "stream": True, "max_tokens": 20, "ignore_eos": True}


@pytest.mark.usefixtures("hurried")
def test_who_waits_for_workers_that_generate_is_served() -> None:
    """16 streams, 8 places: the second eight wait for more than a second, as if for two minutes."""

    async def ask(stack: Stack) -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=60) as client:
            return await asyncio.gather(*(client.post(stack.url + URL, json=STREAMS) for _ in range(16)))

    config = {"models": {"m": {"max_in_flight": 8}}, "relay": {"keepalive_s": 0.2}}
    with Stack(({"slots": 8, "itl_ms": 60},), config) as stack:
        replies = stack.run(ask(stack), 60)
        assert [reply.content.count(b"[DONE]") for reply in replies] == [1] * 16
        assert max(record["queue_ms"] for record in stack.records()) > 300, "they waited"
        assert {record["outcome"] for record in stack.records()} == {"ok"}


@pytest.mark.parametrize("fault", ["stall@2", "stall@before", "reset@before"])
def test_who_waits_for_a_worker_that_stands_still_gets_an_error(fault: str) -> None:
    async def content(client: httpx.AsyncClient, url: str) -> bytes:
        found = b""
        async with client.stream("POST", url, json=STREAMS) as reply:
            with contextlib.suppress(httpx.RemoteProtocolError):  # an error in a stream has no orderly end
                async for block in reply.aiter_raw():
                    found += block
        return found

    async def ask(stack: Stack) -> list[bytes]:
        async with httpx.AsyncClient(timeout=60) as client:
            return await asyncio.gather(*(content(client, stack.url + URL) for _ in range(4)))

    config = {"deadlines": {"first_byte_s": 0.2, "idle_s": 0.2}, "retry": {"attempts": 1}}
    with Stack(({"fault": fault},), narrow({}, **config)) as stack:
        replies = stack.run(ask(stack), 60)
        assert all(b"[DONE]" not in reply and b'"error"' in reply for reply in replies)
        assert {record["outcome"] for record in stack.records()} == {"failed"}


def test_a_reload_changes_the_queue() -> None:
    with Stack(STALLED, narrow({"max_waiting": 5})) as stack:
        bounds = stack.gateway.deployment.pools["m"]._waiting.options  # the bounds of the queue, which no page shows
        assert (bounds.max_waiting, bounds.timeout_s, bounds.max_bytes) == (5, 600.0, 1 << 28)
        queue = {"max_waiting": 7, "timeout_s": 9, "max_bytes": 4096, "cold_start_s": 3}
        config = stack.config({"queue": queue, "models": {"m": {"queue": {"max_waiting": 6}}}})
        stack.run(stack.gateway.reload(config))
        bounds = stack.gateway.deployment.pools["m"]._waiting.options  # the bounds of the queue, which no page shows
        assert (bounds.max_waiting, bounds.timeout_s, bounds.max_bytes, bounds.cold_start_s) == (6, 9, 4096, 3)


def test_how_much_a_worker_takes_is_learnt_from_its_engine() -> None:
    """Of a single worker too. What it cannot run waits here, where priorities hold, and is served in the end."""
    config = {"routing": {"scrape_s": 0.02}}

    async def ask(stack: Stack) -> list[int]:
        (worker,) = stack.gateway.deployment.pools["m"].workers
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client:
            first = [asyncio.create_task(client.post(stack.url + URL, json=LONG)) for _ in range(12)]
            await soon(lambda: worker.max_in_flight == 4 + 1)
            page = (await client.get(f"{stack.url}/metrics")).text
            assert f'dragoman_worker_capacity{{model="m",worker="{worker.address}"}} 5.0' in page
            more = asyncio.create_task(client.post(stack.url + URL, json=BODY))
            await waiting(stack, 1)
            await end(*first)
            return [(await more).status_code]

    with Stack(({"slots": 4, "itl_ms": 50.0},), config) as stack:
        assert stack.run(ask(stack), 60) == [200]

    with Stack(({"slots": 4},), {"queue": {"learn_capacity": False}}) as stack:
        (worker,) = stack.gateway.deployment.pools["m"].workers
        assert not worker.learns


def test_a_reload_keeps_what_was_learnt_until_a_number_is_set() -> None:
    with Stack(config={"routing": {"scrape_s": 0}}) as stack:
        (worker,) = stack.gateway.deployment.pools["m"].workers
        found = []
        worker.max_in_flight = 7
        stack.run(stack.gateway.reload(stack.config()))
        found.append((worker.learns, worker.max_in_flight))
        stack.run(stack.gateway.reload(stack.config({"models": {"m": {"max_in_flight": 3}}})))
        found.append((worker.learns, worker.max_in_flight))
        stack.run(stack.gateway.reload(stack.config()))
        found.append((worker.learns, worker.max_in_flight))
        assert found == [(True, 7), (False, 3), (True, None)]
