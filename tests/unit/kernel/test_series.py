"""Choices that no single request to a worker can ask for: each run of seeds is a request of its own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.harness import Stack
from tests.support.standins.guard import ALLOW, guard

PATHS = ("/friendli/v1/completions", "/friendli/dedicated/v1/completions")
SEEDS = [5, 6, 900, 3]  # three runs


@pytest.fixture(scope="module")
def running() -> Iterator[Stack]:
    with Stack(({}, {}), config={"breaker": {"failures": 1000}, "models": {"m": {"policy": "round_robin"}}}) as stack:
        yield stack


@pytest.fixture
def stack(running: Stack) -> Stack:
    for sim in running.sims:
        sim.reset()
    return running


BODY = {"model": "m", "prompt": "Tell me more of it.", "max_tokens": 12, "seed": SEEDS, "n": len(SEEDS)}


def post(stack: Stack, path: str = PATHS[0], **members: Any) -> httpx.Response:
    return httpx.post(stack.url + path, json=BODY | members, timeout=30)


def read(stack: Stack, path: str) -> str:
    """What a client reads of a stream, whole or cut."""
    received = b""
    with (
        httpx.stream("POST", stack.url + path, json=BODY | {"stream": True}, timeout=30) as reply,
        contextlib.suppress(httpx.RemoteProtocolError),
    ):
        for block in reply.iter_bytes():
            received += block
    return received.decode()


def asked(stack: Stack) -> list[dict[str, Any]]:
    return [json.loads(entry.body) for sim in stack.sims for entry in sim.entries]


def texts(path: str, stream: str) -> tuple[dict[int, str], dict[str, Any]]:
    """The choices' texts of a stream, by index; its last words."""
    found = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    joined: dict[int, str] = {}
    for event in found:
        pieces = [event] if "dedicated" not in path else event.get("choices", ())
        for piece in pieces:
            if "text" in piece:
                joined[piece["index"]] = joined.get(piece["index"], "") + piece["text"]
    return joined, found[-1]


def test_each_choice_is_drawn_with_its_seed(stack: Stack) -> None:
    reply = post(stack)
    assert reply.status_code == 200, reply.text
    alone = [post(stack, seed=seed, n=n).json() for seed, n in ((5, 2), (900, 1), (3, 1))]
    body = reply.json()
    assert [(one["index"], one["seed"]) for one in body["choices"]] == list(enumerate(SEEDS))
    singles = [choice for part in alone for choice in part["choices"]]
    assert [one["text"] for one in body["choices"]] == [one["text"] for one in singles]
    prompt, output = alone[0]["usage"]["prompt_tokens"], sum(one["usage"]["completion_tokens"] for one in alone)
    used = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    assert body["usage"] == used
    assert [(one["seed"], one.get("n")) for one in asked(stack)][:3] == [(5, 2), (900, None), (3, None)]
    ids = [entry.header("x-request-id") for sim in stack.sims for entry in sim.entries]
    assert len(set(ids)) == len(ids)
    # One worker has the prompt in its cache.
    assert sorted(len(sim.entries) for sim in stack.sims)[-1] >= 3
    assert stack.records()[0]["attempts"] == 1


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_has_what_the_whole_reply_has(path: str, stack: Stack) -> None:
    whole = post(stack, path).json()
    reply = post(stack, path, stream=True)
    assert reply.status_code == 200, reply.text
    found, last = texts(path, reply.text)
    assert found == {choice["index"]: choice["text"] for choice in whole["choices"]}
    record = stack.record()
    used = whole["usage"]
    assert (record["usage"]["input"], record["usage"]["output"]) == (used["prompt_tokens"], used["completion_tokens"])
    if path == PATHS[0]:
        assert last["choices"] == [{name: choice[name] for name in last["choices"][0]} for choice in whole["choices"]]
        assert last["usage"] == used


def test_the_time_with_workers_lasts_as_long_as_the_last_request(stack: Stack) -> None:
    stack.sims[0].fault("stall@before", skip=1)
    stack.sims[1].fault("stall@before", skip=1)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(stack.url + PATHS[0], json=BODY, timeout=1)
    assert stack.record()["upstream_ms"] > 500


@pytest.mark.feature("limits")
def test_limits_reserve_the_output_of_all_choices(stack: Stack) -> None:
    limit = {"name": "t", "kind": "tokens", "limit": 30, "per_s": 3600, "reserve": "maximum"}
    with Stack(config={"limits": [limit]}) as limited:
        assert post(limited, n=1, seed=[5]).status_code == 200
        assert post(limited).status_code in (400, 429)
        assert len(asked(limited)) == 1


def test_a_failure_before_the_client_has_seen_anything_is_another_workers_turn(stack: Stack) -> None:
    stack.sim.fault("status:503", count=1, skip=1)
    attempts = 1
    while attempts == 1:  # until the first worker is picked
        reply = post(stack)
        assert reply.status_code == 200, (reply.text, stack.record())
        assert [(one["index"], one["seed"]) for one in reply.json()["choices"]] == list(enumerate(SEEDS))
        attempts = stack.record()["attempts"]


@pytest.mark.parametrize("fault", ["status:503", "reset@before", "status:400", "eof@2", "error-frame"])
@pytest.mark.parametrize("path", PATHS)
def test_a_failure_of_a_later_request_ends_the_stream_with_an_error(path: str, fault: str, stack: Stack) -> None:
    for sim in stack.sims:
        sim.fault(fault, skip=1)
    text = read(stack, path)
    _, last = texts(path, text)
    assert "error" in last
    assert '"complete"' not in text
    assert "[DONE]" not in text
    assert stack.record()["outcome"] in ("failed", "refused")


@pytest.mark.parametrize("fault", ["status:503", "status:400", "reset@2"])
def test_a_failure_of_a_later_request_is_the_error_of_a_whole_reply(fault: str, stack: Stack) -> None:
    for sim in stack.sims:
        sim.fault(fault, skip=1)
    reply = post(stack)
    assert reply.status_code >= 400
    assert "error" in reply.json()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_totals_are_counted_once(stream: bool, stack: Stack) -> None:
    reply = post(stack, max_tokens=None, max_total_tokens=20, stream=stream)
    assert reply.status_code == 200, reply.text
    bounds = [one["max_tokens"] for one in asked(stack)]
    assert len(bounds) == 3
    assert len(set(bounds)) == 1


@pytest.mark.feature("guards")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("window", [None, 20])
def test_guards_see_all_choices(window: int | None, stream: bool, stack: Stack) -> None:
    with guard() as service, Stack() as guarded:
        options: dict[str, Any] = {"url": service.url, "after": "windows" if window else "whole", "before": False}
        if window:
            options |= {"window_chars": window, "overlap_chars": 4}
        guarded.run(guarded.gateway.reload(guarded.config({"guards": {"g": options}})))
        service.decide = lambda question: ALLOW
        plain, held = post(stack, stream=stream), post(guarded, stream=stream)
        assert held.status_code == 200, held.text
        if stream:
            assert texts(PATHS[0], held.text)[0] == texts(PATHS[0], plain.text)[0]
        else:
            assert held.json()["choices"] == plain.json()["choices"]
        assert service.asked


def test_replies_together_have_the_bound_of_one(stack: Stack) -> None:
    with Stack(config={"relay": {"max_reply_bytes": 2000}}) as small:
        one, many = post(small, n=1, seed=[5]), post(small, n=8, seed=[1, 3, 5, 7, 9, 11, 13, 15])
        assert (one.status_code, many.status_code) == (200, 502)
