"""The application: its signs of life, and what a reload keeps."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from gateway.app.deployment import Deployment
from tests.support.harness import Stack, soon, until
from tests.unit.app.asking import CHAT, GONE, key

# -- signs of life --------------------------------------------------------------------------------------------------


def test_livez_touches_nothing() -> None:
    """No worker, no record, no metric, no key."""
    with Stack((), config={"models": {"x": GONE}, "keys": key("k")[1]}) as stack:
        before = stack.gateway.metrics.page()
        reply = httpx.get(stack.url + "/livez")
        assert (reply.status_code, reply.text) == (200, "alive\n")
        assert httpx.get(stack.url + "/readyz").text == "ready\n", "it can answer: that it has no worker"
        assert stack.records() == []
        assert _counts(stack.gateway.metrics.page()) == _counts(before)


def ready(stack: Stack, question: str = "") -> tuple[int, str]:
    reply = httpx.get(f"{stack.admin_url or stack.url}/readyz{question}")
    return reply.status_code, reply.text


MODELS = ("?model", "?model=m", "?model=alias", "?model=gone&model=m")


def test_a_gateway_whose_last_worker_is_gone_is_ready_and_says_so_to_who_asks_for_workers() -> None:
    """Else balancers take it out, and clients are refused a connection instead of a 503 with Retry-After."""
    with Stack(config={"models": {"x": GONE}}) as stack:
        assert {ready(stack, question) for question in ("", "?", "?other=1", *MODELS)} == {(200, "ready\n")}
        assert ready(stack, "?model=x") == ready(stack, "?model=gone") == (503, "no ready worker\n")
        stack.run(stack.sim.stop())
        assert httpx.post(stack.url + "/v1/chat/completions", json=CHAT).status_code == 502
        until(lambda: ready(stack, "?model") == (503, "no ready worker\n"))
        refused = httpx.post(stack.url + "/v1/chat/completions", json=CHAT)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert {ready(stack, question) for question in MODELS} == {(503, "no ready worker\n")}
        assert ready(stack) == (200, "ready\n")
        stack.run(stack.gateway.drain())
        assert {ready(stack, question) for question in ("", *MODELS)} == {(503, "draining\n")}


def test_clients_do_not_learn_by_it_what_models_there_are() -> None:
    with Stack(config={"models": {"x": GONE}, "metrics": {"listen": "127.0.0.1:9090"}}) as stack:
        assert ready(stack, "?model=x") == (503, "no ready worker\n")
        assert {httpx.get(stack.url + f"/readyz?model={name}").text for name in ("m", "x", "gone")} == {"ready\n"}


def _counts(page: bytes) -> list[bytes]:
    return [line for line in page.splitlines() if line.startswith(b"dragoman_request")]


# -- reload -----------------------------------------------------------------------------------------------------------


def test_workers_that_stay_keep_their_record() -> None:
    with Stack(({}, {}), config={"breaker": {"failures": 3}}) as stack:
        first, second = stack.gateway.deployment.workers.values()
        first.breaker.failures = 2
        changed = stack.config(
            {"models": {"m": {"workers": [first.address], "max_in_flight": 7}}, "breaker": {"failures": 9}}
        )
        stack.run(stack.gateway.reload(changed))
        (worker,) = stack.gateway.deployment.workers.values()
        assert worker is first
        assert worker.breaker.failures == 2
        assert worker.breaker.options.failures == 9
        assert worker.max_in_flight == 7
        assert worker.ready
        # The old configuration is let go of.
        until(lambda: len(stack.gateway.host.deployments) == 1)
        until(lambda: (len(first.on_free), len(second.on_free)) == (1, 0))


def test_many_reloads_at_once_leave_one_configuration(stack: Stack) -> None:
    async def storm() -> None:
        await asyncio.gather(*(stack.gateway.reload(stack.config()) for _ in range(10)))

    stack.run(storm())
    until(lambda: len(stack.gateway.host.deployments) == 1)
    assert httpx.post(stack.url + "/v1/chat/completions", json=CHAT).status_code == 200
    health = [task for task in _tasks(stack) if "Health._watch" in repr(task)]
    assert len(health) == 1, "one probe for one worker"


def _tasks(stack: Stack) -> list[Any]:
    async def found() -> list[Any]:
        return list(asyncio.all_tasks())

    return stack.run(found())


def test_who_waited_under_the_old_configuration_is_served() -> None:
    with Stack(config={"models": {"m": {"max_in_flight": 1}}}) as stack:

        async def go() -> list[int]:
            async with httpx.AsyncClient(base_url=stack.url, timeout=30) as client, asyncio.timeout(30):

                async def ask(fault: str) -> int:
                    content = "sim:" + json.dumps({"text": "a", "fault": fault})
                    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
                    return (await client.post("/v1/chat/completions", json=body)).status_code

                old = stack.gateway.deployment.pools["m"]
                running = asyncio.create_task(ask("stall@before"))
                await stack.sim.ledger.wait(running=1)
                waiting = asyncio.create_task(ask(""))
                await soon(lambda: old.waiting == 1)
                await stack.gateway.reload(stack.config())
                new = stack.gateway.deployment.pools["m"]
                assert new is not old
                newer = asyncio.create_task(ask(""))
                await soon(lambda: new.waiting == 1)
                stack.sim.go_on()
                return list(await asyncio.gather(running, waiting, newer))

        assert stack.run(go(), 40) == [200, 200, 200]
        until(lambda: all(worker.in_flight == 0 for worker in stack.gateway.deployment.workers.values()))


async def ask(client: httpx.AsyncClient, fault: str = "") -> int:
    content = "sim:" + json.dumps({"text": "a", "fault": fault})
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    return (await client.post("/v1/chat/completions", json=body)).status_code


async def one_waits(stack: Stack, client: httpx.AsyncClient) -> tuple[Deployment, asyncio.Task[int], asyncio.Task[int]]:
    """A request that the first worker, the only one now, holds up until it goes on, and one that waits for it; under
    this configuration."""
    only = {"workers": [stack.sims[0].url]}
    await stack.gateway.reload(stack.config({"models": {"m": only}}))
    running = asyncio.create_task(ask(client, "stall@before"))
    await stack.sims[0].ledger.wait(running=1)
    waiting = asyncio.create_task(ask(client))
    state = stack.gateway.deployment
    await soon(lambda: state.pools["m"].waiting == 1)
    return state, running, waiting


def test_who_waits_gets_the_workers_that_its_model_has_now() -> None:
    async def go(stack: Stack) -> list[int]:
        async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
            _, running, waiting = await one_waits(stack, client)
            others = {"workers": [stack.sims[1].url]}
            await stack.gateway.reload(stack.config({"models": {"m": others}}))
            first = await waiting
            stack.sims[0].go_on()
            return [first, await running]

    with Stack(({}, {}), config={"models": {"m": {"max_in_flight": 1}}}) as stack:
        assert stack.run(go(stack), 60) == [200, 200]
        assert [record["worker"] for record in stack.records()] == [stack.sims[1].url, stack.sims[0].url]
        until(lambda: len(stack.gateway.host.deployments) == 1)
        assert [len(worker.on_free) for worker in stack.gateway.deployment.workers.values()] == [1]


@pytest.mark.parametrize("why", ["addressed in another way", "not ready"])
def test_who_waits_keeps_its_workers_where_the_new_ones_are(why: str) -> None:
    """Its head is written: the key that it has is for nobody else."""

    async def go(stack: Stack) -> list[int]:
        async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
            state, running, waiting = await one_waits(stack, client)
            others: dict[str, Any] = {"workers": GONE["workers"]}
            if why == "addressed in another way":
                others = {"workers": [stack.sims[1].url], "headers": {"x-of": "the new ones"}}
            await stack.gateway.reload(stack.config({"models": {"m": others}}))
            await soon(lambda: state.fleets.rested)
            await asyncio.sleep(0)
            assert (state.pools["m"].waiting, state.pools["m"].workers[0].address) == (1, stack.sims[0].url)
            stack.sims[0].go_on()
            return [await running, await waiting]

    with Stack(({}, {}), config={"models": {"m": {"max_in_flight": 1, "headers": {"x-of": "the old"}}}}) as stack:
        assert stack.run(go(stack), 60) == [200, 200]
        assert {record["worker"] for record in stack.records()} == {stack.sims[0].url}


def test_who_waits_gets_the_new_workers_once_one_is_ready() -> None:
    async def go(stack: Stack) -> list[int]:
        async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
            state, running, waiting = await one_waits(stack, client)
            others = {"workers": [stack.sims[1].url]}
            await stack.gateway.reload(stack.config({"models": {"m": others}}))
            await soon(lambda: state.fleets.rested)
            assert state.pools["m"].waiting == 1
            stack.sims[1].reset()  # it has its model now
            fleets = stack.gateway.deployment.fleets
            assert fleets.health is not None
            fleets.health.suspect(fleets.models["m"].workers[0])
            first = await waiting
            stack.sims[0].go_on()
            return [first, await running]

    with Stack(({}, {"loading_s": 600.0}), config={"models": {"m": {"max_in_flight": 1}}}) as stack:
        assert stack.run(go(stack), 60) == [200, 200]
        assert [record["worker"] for record in stack.records()] == [stack.sims[1].url, stack.sims[0].url]


def test_who_waits_for_the_first_worker_gets_one_that_a_reload_brings() -> None:
    async def go(stack: Stack) -> int:
        async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
            none = {"workers": GONE["workers"]}
            await stack.gateway.reload(stack.config({"models": {"m": none}}))
            waiting = asyncio.create_task(ask(client))
            await soon(lambda: stack.gateway.deployment.pools["m"].waiting == 1)
            await stack.gateway.reload(stack.config())
            return await waiting

    with Stack(config={"models": {"m": {"queue": {"cold_start_s": "60s"}}}}) as stack:
        assert stack.run(go(stack), 60) == 200


def test_keys_change_with_a_reload() -> None:
    secret, entry = key("k")
    with Stack() as stack:
        assert httpx.get(stack.url + "/v1/models").status_code == 200
        stack.run(stack.gateway.reload(stack.config({"keys": entry})))
        assert httpx.get(stack.url + "/v1/models").status_code == 401
        headers = {"authorization": f"Bearer {secret}"}
        assert httpx.get(stack.url + "/v1/models", headers=headers).status_code == 200


def test_keys_that_nothing_uses_any_more_are_freed() -> None:
    """By themselves: the collector might come to them late, and free hundreds of thousands at once."""
    with Stack(config={"keys": key("k")[1]}) as stack:
        old = stack.gateway.deployment
        stack.run(stack.gateway.reload(stack.config({"keys": key("other")[1]})))
        until(lambda: not old.prepared.keys.by_digest and not old.config.keys)
        assert len(stack.gateway.deployment.prepared.keys.by_digest) == len(stack.gateway.deployment.config.keys) == 2


def test_a_connection_that_goes_on_does_not_keep_a_key_that_was_taken_away() -> None:
    """Who calls is remembered with a connection's head; not beyond the configuration that said so."""
    secret, entry = key("k")
    _, other = key("other")
    ask = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    with Stack() as stack, httpx.Client(base_url=stack.url) as client:
        headers = {"authorization": f"Bearer {secret}"}
        for changed, status in ((entry, 200), (entry, 200), (other, 401), (other, 401), (entry, 200)):
            stack.run(stack.gateway.reload(stack.config({"keys": changed})))
            for _ in range(3):
                assert client.post("/v1/chat/completions", json=ask, headers=headers).status_code == status
        assert len(stack.server.server_state.connections) == 1


# -- heads that come again --------------------------------------------------------------------------------------------

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_what_a_head_says_is_remembered_for_this_head_alone(stack: Stack) -> None:
    """Each is sent three times: the first is parsed, the second learns, the third knows."""
    heads: list[tuple[dict[str, str], int]] = [
        ({}, 200),
        ({"content-type": "text/plain"}, 415),
        ({"content-encoding": "compress"}, 415),
        ({"content-encoding": "gzip"}, 400),
        ({"x-request-id": "mine"}, 200),
        ({"traceparent": PARENT}, 200),
        ({}, 200),
    ]
    with httpx.Client(base_url=stack.url) as client:
        for head, status in heads:
            ids = []
            for _ in range(3):
                sent = {"content-type": "application/json", **head}
                reply = client.post("/v1/chat/completions", content=json.dumps(CHAT), headers=sent)
                assert reply.status_code == status, head
                ids.append(reply.headers["x-request-id"])
                if status == 200:
                    told = stack.sim.entries[-1]
                    assert told.header("traceparent") == head.get("traceparent")
            assert len(set(ids)) == (1 if "x-request-id" in head else 3)


def test_what_is_left_of_the_drain_is_for_requests_that_come_at_its_end() -> None:
    with Stack(config={"relay": {"drain_s": 20}}) as stack:
        assert 15 < stack.run(stack.gateway.drain()) <= 20
