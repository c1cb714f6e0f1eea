"""A request leaves its worker before its client has seen anything, and is answered by another one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.moves import LEAVING, STALLED
from tests.support.harness import Stack, until
from tests.support.simulated import Entry, Simulated
from tests.unit.kernel.asking import PATH, chat, raw_request

EMBED = ("/v1/embeddings", {"model": "m", "input": "hi"})


class Asked:
    """A request on its way, in a thread of its own, at a worker that stalls at `moment`."""

    def __init__(self, stack: Stack, path: str, body: dict[str, Any], moment: str) -> None:
        self._stack, self._path, self._body = stack, path, body
        for sim in stack.sims:
            sim.fault(f"stall@{moment}", 1)
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()
        paths = ("/v1/chat/completions", "/v1/embeddings")

        def here() -> list[tuple[Simulated, Entry]]:
            return [
                (sim, entry)
                for sim in stack.sims
                for entry in sim.ledger.entries
                if entry.path in paths and entry.method == "POST"
            ]

        until(lambda: any(entry.fault for _, entry in here()))  # it has taken its fault
        ((self.sim, self.entry),) = here()
        for sim in stack.sims:
            sim.fault("")

    def _ask(self) -> None:
        self._reply = httpx.post(self._stack.url + self._path, json=self._body, timeout=60)

    def leave(self, code: str = STALLED) -> int:
        """How many requests leave the worker."""

        async def leaving() -> int:
            deployment = self._stack.gateway.deployment
            (worker,) = [one for one in deployment.pools["m"].workers if one.address == self.sim.url]
            return deployment.offers.leave_worker(
                deployment.runtime.active, worker, GatewayError(Kind.UPSTREAM, "the worker is gone", code=code)
            )

        return self._stack.run(leaving())

    def reply(self) -> httpx.Response:
        self._thread.join(60)
        return self._reply


@pytest.mark.parametrize("code", [STALLED, LEAVING])
@pytest.mark.parametrize(
    ("path", "body", "moment"),
    [
        (PATH, chat(), "before"),
        (PATH, chat(), "headers"),
        (PATH, chat(stream=True), "before"),
        (PATH, chat(stream=True), "headers"),
        (*EMBED, "before"),
    ],
)
def test_another_worker_answers(
    wrap: Callable[[Any], Any], path: str, body: dict[str, Any], moment: str, code: str
) -> None:
    with Stack(({}, {}), wrap=wrap) as stack:
        asked = Asked(stack, path, body, moment)
        assert asked.leave(code) == 1
        assert asked.leave(code) == 0, "it is on its way already"
        assert asked.reply().status_code == 200
        record = stack.record()
        assert (record["attempts"], record["outcome"]) == (2, "ok")
        assert record["worker"] != asked.sim.url
        until(lambda: asked.entry.state == "aborted")  # the engine need not go on
        workers = {worker.address: worker for worker in stack.gateway.deployment.pools["m"].workers}
        assert workers[asked.sim.url].breaker.failures == (code == STALLED), "a worker may leave"
        assert [worker.in_flight for worker in workers.values()] == [0, 0]


@pytest.mark.parametrize("stream", [True, False])
def test_it_stays_if_nobody_else_can_answer(stream: bool) -> None:
    with Stack() as stack:
        asked = Asked(stack, PATH, chat(stream=stream), "before")
        assert asked.leave() == 0
        stack.loop.call_soon_threadsafe(asked.sim.go_on)
        assert asked.reply().status_code == 200
        assert stack.record()["attempts"] == 1


def test_it_stays_if_the_retry_budget_is_empty() -> None:
    with Stack(({}, {}), config={"retry": {"budget": 0, "min_per_second": 0}}) as stack:
        asked = Asked(stack, PATH, chat(), "before")
        assert asked.leave() == 0
        stack.loop.call_soon_threadsafe(asked.sim.go_on)
        assert asked.reply().status_code == 200


def test_no_budget_is_needed_to_leave_a_worker_that_takes_no_more_requests() -> None:
    with Stack(({}, {}), config={"retry": {"budget": 0, "min_per_second": 0}}) as stack:
        asked = Asked(stack, PATH, chat(), "before")
        assert asked.leave(LEAVING) == 1
        assert asked.reply().status_code == 200


@pytest.mark.parametrize("failures", [1, 20])
def test_the_requests_of_a_worker_that_dies_are_answered_without_budget(failures: int) -> None:
    """If the breaker leaves the worker out: otherwise it might make requests fail for ever."""
    config = {"retry": {"budget": 0, "min_per_second": 0}, "breaker": {"failures": failures}}
    with Stack(({}, {}), config=config) as stack, ThreadPoolExecutor(10) as pool:
        for sim in stack.sims:
            sim.fault("stall@before")
        asked = [pool.submit(httpx.post, stack.url + PATH, json=chat(), timeout=60) for _ in range(10)]
        until(lambda: sum(sim.ledger.running for sim in stack.sims) == 10)
        dying, other = stack.sims
        moved = dying.ledger.running
        other.fault("")
        stack.loop.call_soon_threadsafe(dying.die)
        stack.loop.call_soon_threadsafe(other.go_on)
        statuses = sorted(one.result().status_code for one in asked)
        # The one failure that left the worker out was itself a reason to retry.
        assert statuses == [200] * 10 if failures == 1 else [200] * (10 - moved) + [502] * moved


def test_a_fallback_answers_if_no_worker_can() -> None:
    with Stack() as other:
        models = {"n": {"backend": "vllm", "upstream_model": "sim", "workers": [other.sim.url]}}
        with Stack(config={"models": {"m": {"fallback": ["n"]}, **models}}) as stack:
            asked = Asked(stack, PATH, chat(stream=True), "headers")
            assert asked.leave() == 1
            assert asked.reply().headers["x-dragoman-model"] == "n"
            record = stack.record()
            assert (record["model"], record["routed"], record["outcome"]) == ("n", "unavailable", "ok")


def left(stack: Stack) -> Any:
    """The only request, once it is told to leave its worker."""
    deployment = stack.gateway.deployment
    (request,) = deployment.runtime.active.requests
    assert request.visit is not None
    leave = deployment.offers.leave_worker
    assert (
        leave(deployment.runtime.active, request.visit.worker, GatewayError(Kind.UPSTREAM, "gone", code=STALLED)) == 1
    )
    return request


@pytest.mark.parametrize("stream", [True, False])
def test_the_client_that_leaves_at_once_is_gone(wrap: Callable[[Any], Any], stream: bool) -> None:
    """Leaving the worker must not outlive the request."""
    with Stack(({}, {}), wrap=wrap) as stack:
        for sim in stack.sims:
            sim.fault("stall@before")
        client = raw_request(stack, chat(stream=stream))
        until(lambda: any(sim.ledger.running for sim in stack.sims))

        async def both() -> None:
            request = left(stack)
            request.client.gone = True
            request.left()

        stack.run(both())
        record = stack.record()
        assert (record["outcome"], record["attempts"]) == ("cancelled", 1)
        client.close()


def test_the_deadline_that_passes_at_once_ends_it() -> None:
    with Stack(({}, {})) as stack:
        asked = Asked(stack, PATH, chat(), "before")

        async def both() -> None:
            request = left(stack)
            request.interrupt(GatewayError(Kind.DRAINING, "shutting down"))

        stack.run(both())
        assert asked.reply().status_code == 503
        assert stack.record()["attempts"] == 1
