"""Totals behind a text: the worker that will answer is asked first how long it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.lifecycle import TokenCount
from gateway.core.messages import Generate
from gateway.core.ports import Ask, Backend, Capabilities
from tests.support.harness import Stack, sse_data

PATH = "/friendli/v1/completions"
CONFIG = {"dialects": {"friendli": {"default_model": "m"}}}
# Of five tokens, to the simulated worker.
PROMPT = "one two three four."


@pytest.fixture
def stack() -> Iterator[Stack]:
    with Stack(({}, {}), CONFIG) as running:
        yield running


def ask(stack: Stack, **members: Any) -> httpx.Response:
    return httpx.post(stack.url + PATH, json={"prompt": PROMPT, **members})


def asked(stack: Stack) -> list[tuple[int, str]]:
    """(which worker, what for), in order."""
    entries = [
        (entry.started, index, entry.path)
        for index, sim in enumerate(stack.sims)
        for entry in sim.ledger.entries
        if entry.method == "POST"
    ]
    return [(index, path) for _, index, path in sorted(entries) if path not in ("/health", "/metrics", "/v1/models")]


@pytest.mark.parametrize("stream", [False, True])
def test_the_greatest_total(stack: Stack, stream: bool) -> None:
    reply = ask(stack, max_total_tokens=12, stream=stream)
    assert reply.status_code == 200
    body = json.loads(list(sse_data(reply.content))[-1]) if stream else reply.json()
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    (first, counted), (second, completed) = asked(stack)
    assert (counted, completed) == ("/tokenize", "/v1/completions")
    assert first == second
    assert stack.record()["attempts"] == 1


def test_the_least_total(stack: Stack) -> None:
    assert ask(stack, min_total_tokens=9, max_tokens=6).status_code == 200
    sent = json.loads(
        next(
            entry.body
            for sim in stack.sims
            for entry in sim.ledger.entries
            if entry.path == "/v1/completions" and entry.method == "POST"
        )
    )
    assert (sent["min_tokens"], sent["max_tokens"], sent["prompt"]) == (4, 6, PROMPT)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"max_total_tokens": 5}, "max_total_tokens"),
        ({"max_total_tokens": 9, "min_total_tokens": 10}, "min_total_tokens"),
        ({"max_tokens": 2, "min_total_tokens": 8}, "min_total_tokens"),
    ],
)
def test_a_total_that_leaves_no_room_is_a_400_and_nobodys_failure(
    stack: Stack, members: dict[str, Any], param: str
) -> None:
    reply = ask(stack, **members)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert [path for _, path in asked(stack)] == ["/tokenize"]
    assert all(worker.breaker.failures == 0 for worker in stack.gateway.deployment.pools["m"].workers)


def test_what_the_worker_refuses_later_is_refused_before_it_is_asked(stack: Stack) -> None:
    reply = ask(stack, max_total_tokens=9, no_repeat_ngram=3)
    assert (reply.status_code, reply.json()["error"]["param"]) == (422, "no_repeat_ngram")
    assert asked(stack) == []


class Unsure:
    """A backend whose first question fails in the way of `error`. Else it is the one it stands before."""

    def __init__(self, backend: Backend, error: GatewayError) -> None:
        self._backend = backend
        self._errors = [error]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def count(self, op: Generate, can: Capabilities) -> Ask[TokenCount]:
        counting = self._backend.count(op, can)

        def read(response: Any) -> TokenCount:
            if self._errors:
                raise self._errors.pop()
            return counting.read(response)

        return Ask(counting.request, read)


def test_a_worker_that_fails_to_tell_is_one_that_failed(stack: Stack) -> None:
    served = stack.gateway.deployment.runtime.models["m"]
    served.backend = Unsure(served.backend, GatewayError(Kind.UPSTREAM, "it broke"))
    reply = ask(stack, max_total_tokens=12)
    assert reply.json()["usage"]["total_tokens"] == 12
    (one, _), (other, _), (third, completed) = asked(stack)
    assert one != other == third
    assert completed == "/v1/completions"
    assert stack.record()["attempts"] == 2
    ids = [
        entry.header("x-request-id")
        for sim in stack.sims
        for entry in sim.ledger.entries
        if entry.header("x-request-id")
    ]
    assert len(ids) == len(set(ids)) + 1  # the question is the same to both workers
