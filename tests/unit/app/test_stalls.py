"""Engines that hang behind servers that live, as a running gateway finds them."""

from __future__ import annotations

import asyncio
import time

import httpx

from tests.support.harness import Stack, soon

URL = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
CONFIG = {"health": {"stalled_s": 0.4}, "routing": {"scrape_s": 0.05}}


def events(stack: Stack) -> list[str]:
    """What the log says of workers that stall and come back."""
    stack.gateway.log.flush()
    known = ("worker stalled", "worker moves again", "worker ejected", "worker returned")
    return [line["event"] for line in stack.output.lines() if line["event"] in known]


async def warm(stack: Stack, client: httpx.AsyncClient) -> None:
    """Each engine's figures have changed once."""
    for sim in stack.sims:
        for _ in range(2):
            await client.post(f"{sim.url}{URL}", json=BODY | {"model": "sim"})
            await asyncio.sleep(0.12)


def test_a_hung_engine_gets_nothing_new_and_comes_back() -> None:
    async def ask(stack: Stack) -> list[int]:
        hung, other = stack.sims
        workers = {worker.address: worker for worker in stack.gateway.deployment.pools["m"].workers}
        worker = workers[hung.url]
        async with httpx.AsyncClient(timeout=30) as client:
            await warm(stack, client)
            hung.hung = True
            waiting = [asyncio.create_task(client.post(stack.url + URL, json=BODY)) for _ in range(4)]
            await soon(lambda: worker.progress.stalled)
            found = [(await client.post(stack.url + URL, json=BODY)).status_code for _ in range(10)]
            found += [answer.status_code for answer in await asyncio.gather(*waiting)]
            page = (await client.get(f"{stack.url}/metrics")).text
            assert f'dragoman_worker_stalled{{model="m",worker="{hung.url}"}} 1.0' in page
            assert f'dragoman_worker_stalls_total{{model="m",worker="{hung.url}"}} 1.0' in page
            assert f'dragoman_worker_stalled{{model="m",worker="{other.url}"}} 0.0' in page
            hung.hung = False
            await soon(lambda: not worker.progress.stalled)
            assert worker.breaker.state(time.monotonic()) == "half_open"
            while worker.breaker.ejected:
                await client.post(stack.url + URL, json=BODY)
        return found

    with Stack(({"itl_ms": 1.0}, {"itl_ms": 1.0}), CONFIG) as stack:
        assert set(stack.run(ask(stack), 60)) == {200}
        assert events(stack) == ["worker stalled", "worker moves again", "worker returned"]


def test_the_only_worker_stays() -> None:
    async def ask(stack: Stack) -> int:
        (sim,) = stack.sims
        (worker,) = stack.gateway.deployment.pools["m"].workers
        async with httpx.AsyncClient(timeout=30) as client:
            await warm(stack, client)
            sim.hung = True
            waiting = asyncio.create_task(client.post(stack.url + URL, json=BODY))
            await soon(lambda: worker.progress.stalled)
            assert not worker.breaker.ejected
            sim.hung = False
            return (await waiting).status_code

    with Stack(({"itl_ms": 1.0},), CONFIG) as stack:
        assert stack.run(ask(stack), 60) == 200


def test_clients_that_leave_one_worker_alone_are_enough_at_defaults() -> None:
    """Each waits a second, which is why this takes five: the bounds of silence are minutes."""

    async def ask(stack: Stack) -> int:
        lost = 0
        async with httpx.AsyncClient(timeout=30) as client:
            for number in range(80):  # of conversations that have nothing in common
                stack.sims[0].hung = number >= 20
                body = BODY | {"messages": [{"role": "user", "content": f"{number} " * 200}]}
                try:
                    await client.post(stack.url + URL, json=body, timeout=1 if number >= 20 else 30)
                except httpx.TimeoutException:
                    lost += 1
        return lost

    with Stack(({"itl_ms": 1.0}, {"itl_ms": 1.0}), {}) as stack:
        assert 5 <= stack.run(ask(stack), 90) <= 12
        (line,) = stack.events("worker stalled")
        assert (line["worker"], line["left_alone"], line["left_out"]) == (stack.sims[0].url, True, True)


def test_a_healthy_fleet_under_clients_without_patience_keeps_all_workers() -> None:
    """Each leaves before the first token."""

    async def ask(stack: Stack) -> None:
        async with httpx.AsyncClient(timeout=httpx.Timeout(0.05)) as client:
            for _ in range(60):
                try:
                    await client.post(stack.url + URL, json=BODY)
                except httpx.TimeoutException:
                    continue
                raise AssertionError("it has waited")

    with Stack(({"prefill_us_per_token": 30_000.0},) * 2, CONFIG) as stack:
        stack.run(ask(stack), 60)
        assert events(stack) == []
