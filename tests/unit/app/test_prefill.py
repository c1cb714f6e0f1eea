"""PrefillWorkers and decode apart: one worker computes the prompt, another one generates, for every dialect."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.clients import WAYS, Way
from tests.support.harness import Stack
from tests.support.simulated.ledger import Entry

GENERATING = [way for way in WAYS if way.operation in ("chat", "complete")]
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello " * 300}], "max_tokens": 20}
ROLES: tuple[dict[str, Any], ...] = ({"kv_transfer": True}, {"kv_transfer": True})


def apart(stack: Stack, **prefill: Any) -> None:
    """From now on the second worker computes the prompts and the first one generates."""
    generate, *compute = (sim.url for sim in stack.sims)
    model = {"workers": [generate], "prefill": {"workers": compute, **prefill}}
    dialects = {way.dialect: {"default_model": "m"} for way in WAYS}
    stack.run(stack.gateway.reload(stack.config({"models": {"m": model}, "dialects": dialects})))


@pytest.fixture
def stack() -> Iterator[Stack]:
    with Stack(ROLES) as stack:
        apart(stack)
        yield stack


def ask(stack: Stack, **members: Any) -> httpx.Response:
    return httpx.post(
        stack.url + "/v1/chat/completions", json={**CHAT, **members}, headers={"x-dragoman-explain": "1"}, timeout=30
    )


def seen(stack: Stack, worker: int) -> list[Entry]:
    entries = stack.sims[worker].entries
    stack.sims[worker].ledger.forget()
    return entries


def parts(stack: Stack) -> list[list[str]]:
    """What each worker did for the exchange, since the last call."""
    return [[entry.kv for entry in seen(stack, worker)] for worker in range(len(stack.sims))]


def prefills(stack: Stack) -> dict[str, int]:
    found = httpx.get(stack.url + "/metrics").text.splitlines()
    counts = [line for line in found if line.startswith("dragoman_prefills_total{")]
    return {line.split('outcome="')[1].split('"')[0]: int(float(line.rpartition(" ")[2])) for line in counts}


def test_every_dialect_is_served_in_two_steps(stack: Stack) -> None:
    for way in GENERATING:
        for stream in (False, True):
            if way.answers(stream=stream):
                two_steps(stack, way, stream)


def two_steps(stack: Stack, way: Way, stream: bool) -> None:
    body = way.body("hello " * 50, stream=stream, model="m", max_tokens=20)
    reply = httpx.post(stack.url + way.path("m"), json=body, timeout=30)
    assert reply.status_code == 200, (way, reply.text)
    record = stack.record()
    first, second = seen(stack, 1), seen(stack, 0)
    assert [entry.kv for entry in first] == ["prefill"], way
    assert [entry.kv for entry in second] == ["decode"], way
    asked, generated = json.loads(first[0].body), json.loads(second[0].body)
    assert asked["max_tokens"] == 1
    assert asked["stream"] is False
    assert "stream_options" not in asked
    assert generated["kv_transfer_params"]["remote_port"] == stack.sims[1].port
    assert second[0].cached_tokens == second[0].prompt_tokens - 1
    # The client is told of one reply, and charged for it alone.
    assert record["outcome"] == "ok"
    assert record["attempts"] == 1
    assert (record["worker"], record["prefill"]) == (stack.sims[0].url, stack.sims[1].url)
    assert record["usage"]["input"] == second[0].prompt_tokens
    assert record["usage"]["output"] == second[0].tokens
    assert "kv_transfer" not in reply.text.replace('"kv_transfer_params":null', "")


def test_what_the_reply_says(stack: Stack) -> None:
    reply = ask(stack)
    assert reply.headers["x-dragoman-prefill"] == stack.sims[1].url
    assert reply.headers["x-dragoman-worker"] == stack.sims[0].url
    assert prefills(stack) == {"handed": 1}
    assert {entry.header("x-request-id") for sim in stack.sims for entry in sim.entries} != {None}


@pytest.mark.parametrize("fault", ["status:500", "status:429", "reset@before", "eof", "empty", "html"])
def test_a_failed_first_step_falls_back_to_one_worker(stack: Stack, fault: str) -> None:
    stack.sims[1].fault(fault)
    reply = ask(stack)
    assert reply.status_code == 200, reply.text
    assert "x-dragoman-prefill" not in reply.headers
    assert [entry.kv for entry in seen(stack, 0)] == [""]
    assert stack.record()["attempts"] == 1
    assert prefills(stack) == {"failed": 1}
    assert [event["worker"] for event in stack.events("prefill failed")] == [stack.sims[1].url]


def test_no_prefill_worker_and_one_without_a_connector() -> None:
    with Stack(({"kv_transfer": True}, {})) as stack:
        apart(stack)
        assert ask(stack).status_code == 200
        assert [event["code"] for event in stack.events("prefill failed")] == ["no_kv_transfer"]
        assert parts(stack) == [[""], [""]]
        stack.gateway.deployment.workers["m", stack.sims[1].url].draining = True
        assert ask(stack).status_code == 200
        assert parts(stack) == [[""], []]
        assert stack.events("prefill failed")[-1]["worker"] is None


def test_what_no_worker_will_do_is_refused_once(stack: Stack) -> None:
    reply = ask(stack, messages=[{"role": "user", "content": "long " * 100_000}])
    assert reply.status_code == 400
    assert prefills(stack) == {"refused": 1}
    assert not stack.events("prefill failed")


@pytest.mark.parametrize("stream", [False, True])
def test_a_second_step_that_fails_is_done_again_by_one_worker(stack: Stack, stream: bool) -> None:
    """The only worker that generates may try again: the computed prompt may be what it failed for."""
    stack.sims[0].fault("status:500", count=1)
    reply = ask(stack, stream=stream)
    assert reply.status_code == 200, reply.text
    first, second = seen(stack, 0)
    assert (first.kv, second.kv) == ("decode", "")
    assert first.header("x-request-id") != second.header("x-request-id")
    assert (stack.record()["attempts"], stack.record()["prefill"]) == (2, None)
    assert "x-dragoman-prefill" not in reply.headers, "who generates computed the prompt anew"
    assert stack.gateway.deployment.workers["m", stack.sims[0].url].breaker.failures == 0


@pytest.mark.parametrize(
    "members",
    [
        {"n": 2},
        {"max_tokens": 1},
        {"prompt_logprobs": 1},
        {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}, "max_tokens": 1},
    ],
    ids=str,
)
def test_what_cannot_be_taken_apart_goes_to_one_worker(stack: Stack, members: dict[str, Any]) -> None:
    assert ask(stack, **members).status_code == 200
    generated, computed = parts(stack)
    assert len(generated) == 1
    assert not computed
    assert prefills(stack) == {}


def test_several_prompts_go_to_one_worker(stack: Stack) -> None:
    for prompt in (["one", "two"], [[1, 2], [3]], "echo"):
        body: dict[str, Any] = {"model": "m", "prompt": prompt, "max_tokens": 5, "echo": prompt == "echo"}
        assert httpx.post(stack.url + "/v1/completions", json=body).status_code == 200
        assert parts(stack)[1] == []
    body = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 5}
    assert httpx.post(stack.url + "/v1/completions", json=body).status_code == 200
    assert parts(stack) == [["decode"], ["prefill"]]


def test_short_prompts_go_to_one_worker(stack: Stack) -> None:
    apart(stack, min_tokens=200)
    assert ask(stack, messages=[{"role": "user", "content": "hello"}]).status_code == 200
    assert parts(stack) == [[""], []]
    assert ask(stack).status_code == 200
    assert parts(stack) == [["decode"], ["prefill"]]


def test_a_long_body_is_handed_on_in_full(stack: Stack) -> None:
    with Stack(tuple({**role, "max_model_len": 1_000_000} for role in ROLES)) as stack:
        apart(stack)
        assert ask(stack, messages=[{"role": "user", "content": "word " * 100_000}]).status_code == 200
        assert parts(stack) == [["decode"], ["prefill"]]


def test_the_prefill_worker_hears_that_the_client_left(stack: Stack) -> None:
    stack.sims[1].fault("stall@before")
    body = json.dumps(CHAT).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", urlsplit(stack.url).port or 0)) as client:
        client.sendall(head % len(body) + body)
        stack.run(stack.sims[1].wait(running=1))
    stack.run(stack.sims[1].wait(running=0, aborted=1))
    record = stack.record()
    assert (record["outcome"], record["phase"]) == ("cancelled", "first_output")
    assert not seen(stack, 0)
    assert stack.gateway.deployment.workers["m", stack.sims[1].url].in_flight == 0


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_fallback_answers_no_prefill_worker_computed(stream: bool) -> None:
    """Its prompt was computed for the model that failed, and is not at hand for the other one."""
    with Stack((*ROLES, {})) as stack:
        stack.sims[0].fault("status:500")
        bad, compute, good = (sim.url for sim in stack.sims)
        models = {
            "m": {"workers": [bad], "prefill": {"workers": [compute]}, "fallback": ["other"]},
            "other": {"backend": "vllm", "upstream_model": "sim", "workers": [good]},
        }
        stack.run(stack.gateway.reload(stack.config({"models": models, "retry": {"attempts": 1}})))
        reply = ask(stack, stream=stream)
        assert (reply.status_code, reply.headers["x-dragoman-worker"]) == (200, good)
        assert "x-dragoman-prefill" not in reply.headers
        assert (stack.record()["model"], stack.record()["prefill"]) == ("other", None)
        assert [entry.kv for entry in seen(stack, 1)] == ["prefill"]


def test_turns_of_a_conversation_go_to_the_prefill_worker_that_has_them() -> None:
    with Stack((*ROLES, *ROLES)) as stack:
        apart(stack)
        turns = [{"role": "user", "content": "a question about things " * 60}]
        homes = set()
        for _ in range(3):
            reply = ask(stack, messages=turns)
            homes.add(reply.headers["x-dragoman-prefill"])
            said = reply.json()["choices"][0]["message"]["content"]
            turns += [{"role": "assistant", "content": said}, {"role": "user", "content": "and then?"}]
        assert len(homes) == 1
        assert homes < {sim.url for sim in stack.sims[1:]}
