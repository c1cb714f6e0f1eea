"""Deadlines, keep-alives, and bounds on what is kept of a reply, by each path to the client."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.support.harness import Stack, begun_stream, sse_data, until
from tests.unit.kernel.asking import PATH, TOOL, chat, post, raw_request, read_whole, scripted

CALL = {"name": "f", "arguments": {"text": "word " * 1000}}
EMPTY = {"name": "f", "arguments": {}}


def test_first_byte_deadline(wrap: Callable[[Any], Any]) -> None:
    with Stack(wrap=wrap, config={"deadlines": {"first_byte_s": 0.2}}) as stack:
        reply = post(stack, chat(scripted(text="a", fault="stall@before")))
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "timeout")
        assert stack.record()["attempts"] == 1  # twice the wait helps nobody


def test_idle_deadline_mid_stream(wrap: Callable[[Any], Any]) -> None:
    with Stack(wrap=wrap, config={"deadlines": {"idle_s": 0.3}}) as stack:
        began = time.monotonic()
        received = read_whole(raw_request(stack, chat(scripted(text="a b c", fault="stall@2"), stream=True)))
        assert 0.25 < time.monotonic() - began < 20
        assert b'"code":"timeout"' in received
        assert b"[DONE]" not in received
        stack.run(stack.sim.ledger.wait(running=0))


def test_total_deadline(wrap: Callable[[Any], Any]) -> None:
    with Stack(wrap=wrap, config={"deadlines": {"total_s": 0.3}}) as stack:
        reply = post(stack, chat(scripted(text="a", fault="stall@before")))
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")
        received = read_whole(raw_request(stack, chat(scripted(text="a b c", fault="stall@2"), stream=True)))
        assert b'"code":"deadline_exceeded"' in received
        assert not received.endswith(b"0\r\n\r\n")
        assert (
            stack.gateway.deployment.pools["m"].workers[0].breaker.failures == 0
        )  # our deadline is not the worker's fault


SMALL = {"relay": {"max_reply_bytes": 4096}, "dialects": {"friendli": {"default_model": "m"}}}

# What of a stream is said again at its end, or is said when it is whole.
KEPT: dict[str, tuple[str, dict[str, Any], int]] = {
    "a text repeated at the end": ("/friendli/v1/completions", {"prompt": scripted(text="word ", repeat=1000)}, 200),
    "a call in a line": ("/ollama/chat/completions", chat(scripted(text="so", tool_calls=[CALL]), tools=[TOOL]), 200),
    "a call in an event": ("/ollama/chat/sse", chat(scripted(text="so", tool_calls=[CALL]), tools=[TOOL]), 200),
    "calls without end": ("/sagemaker/invocations", chat(scripted(tool_calls=[EMPTY] * 100), tools=[TOOL]), 200),
    "nothing but a call": ("/ollama/chat/sse", chat(scripted(tool_calls=[CALL]), tools=[TOOL]), 502),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_of_a_stream_is_bounded(wrap: Callable[[Any], Any], name: str) -> None:
    path, body, status = KEPT[name]
    with Stack(({"itl_ms": 5},), wrap=wrap, config=SMALL) as stack:
        received = b""
        with (
            contextlib.suppress(httpx.RemoteProtocolError),  # where the client's wire has no other way to fail
            httpx.stream("POST", stack.url + path, json={"model": "m", **body, "stream": True}) as reply,
        ):
            for block in reply.iter_raw():
                received += block
        assert reply.status_code == status
        assert received.count(b'"upstream_too_large"') == 1
        assert b'"complete"' not in received
        assert b"word word" not in received
        stack.run(stack.sim.ledger.wait(aborted=1))
        record = stack.record()
        assert (record["outcome"], record["code"], record["attempts"]) == ("failed", "upstream_too_large", 1)
        assert record["status"] == status


def test_what_is_only_passed_on_has_no_bound(wrap: Callable[[Any], Any]) -> None:
    with Stack(wrap=wrap, config=SMALL) as stack:
        body = chat(scripted(text="word ", repeat=1000), stream=True)
        lines = httpx.post(stack.url + "/ollama/chat/completions", json=body).text.splitlines()
        said = [json.loads(line) for line in lines]
        assert "".join(line["message"]["content"] for line in said) == "word " * 1000
        assert said[-1]["done"] is True


def test_a_whole_reply_is_bounded(wrap: Callable[[Any], Any]) -> None:
    with Stack(wrap=wrap, config=SMALL) as stack:
        reply = post(stack, chat(scripted(text="word ", repeat=1000)))
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream_too_large")
        assert stack.record()["attempts"] == 1


def test_keepalive_newlines_before_and_between_tokens(wrap: Callable[[Any], Any]) -> None:
    with Stack(wrap=wrap, config={"relay": {"keepalive_s": 0.05}}) as stack:
        for at in ("headers", "2"):
            body = chat(scripted(text="a b c", fault=f"stall@{at}"), stream=True)
            reply = begun_stream(stack, PATH, body, lambda said: said.startswith(b"\n") or b"\n\n\n" in said)
            assert list(sse_data(reply.content))[-1] == b"[DONE]"


DIALECTS = [
    (PATH, b"\n", b"data: [DONE]"),
    ("/friendli/v1/chat/completions", b"\n", b"data: [DONE]"),
    ("/sagemaker/invocations", b"\n", b"data: [DONE]"),
    ("/ollama/chat/completions", b" ", b'"done":true'),
    ("/ollama/chat/sse", b"\n", b"data: [END]"),
    ("/azure/chat/completions?api-version=2024-05-01-preview", b"\n", b"data: [DONE]"),
]


@pytest.mark.parametrize(("path", "blank", "done"), DIALECTS)
def test_keepalives_before_a_worker_has_begun_to_answer(
    wrap: Callable[[Any], Any], path: str, blank: bytes, done: bytes
) -> None:
    with Stack(wrap=wrap, config={"relay": {"keepalive_s": 0.05}}) as stack:
        whole = httpx.post(stack.url + path, json=chat(scripted(text="a b"), stream=True))
        late = chat(scripted(text="a b", fault="stall@before"), stream=True)
        reply = begun_stream(stack, path, late, lambda said: said.startswith(blank * 2))
        assert reply.status_code == 200
        assert reply.headers["content-type"] == whole.headers["content-type"]
        assert reply.headers["x-request-id"] == stack.record()["id"]
        assert reply.content.startswith(blank * 2)
        assert done in reply.content
        assert reply.content.strip().count(done) == whole.content.count(done), "and nothing is said twice"


@pytest.mark.parametrize(("path", "blank"), [(path, blank) for path, blank, _ in DIALECTS])
def test_a_worker_that_fails_after_keepalives_is_one_error_in_the_clients_own_words(
    wrap: Callable[[Any], Any], path: str, blank: bytes
) -> None:
    config = {"relay": {"keepalive_s": 0.05}, "deadlines": {"first_byte_s": 0.3}}
    with Stack(wrap=wrap, config=config) as stack:
        body = chat(scripted(text="a b", fault="stall@before"), stream=True)
        head, _, said = read_whole(raw_request(stack, body, path, b"connection: close\r\n")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert said.startswith(b"1\r\n" + blank)
        assert b"did not begin to answer in time" in said
        assert b"[DONE]" not in said
        record = stack.record()
        assert (record["status"], record["outcome"], record["attempts"]) == (200, "failed", 1)


def test_another_worker_is_tried_after_keepalives(wrap: Callable[[Any], Any]) -> None:
    with Stack(({}, {}), wrap=wrap, config={"relay": {"keepalive_s": 0.05}}) as stack:
        for sim in stack.sims:
            sim.fault("stall@before", count=1)
        client = raw_request(stack, chat(scripted(text="a b"), stream=True))
        received = b""
        while b"\n\r\n" not in received.partition(b"\r\n\r\n")[2]:
            received += client.recv(65536)
        (silent,) = (sim for sim in stack.sims if sim.ledger.running)
        (other,) = (sim for sim in stack.sims if sim is not silent)
        other.fault("")
        stack.loop.call_soon_threadsafe(silent.die)
        while b"[DONE]" not in received:
            received += client.recv(65536)
        client.close()
        assert received.count(b"HTTP/1.1") == 1
        assert b'"error"' not in received
        record = stack.record()
        assert (record["status"], record["outcome"], record["code"], record["attempts"]) == (200, "ok", None, 2)


def test_who_waits_for_a_busy_worker_hears_of_it_and_may_leave(wrap: Callable[[Any], Any]) -> None:
    config = {"relay": {"keepalive_s": 0.05, "drain_s": 0}, "models": {"m": {"max_in_flight": 1}}}
    with Stack(wrap=wrap, config=config) as stack:
        busy = raw_request(stack, chat(scripted(text="a", fault="stall@before")))
        stack.run(stack.sim.ledger.wait(running=1))
        waiting = [raw_request(stack, chat("hi", stream=True)) for _ in range(2)]
        for client in waiting:
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        waiting[0].close()
        until(lambda: any(line["outcome"] == "cancelled" for line in stack.events("request")))
        stack.run(stack.gateway.drain())
        assert b'"code":"shutting_down"' in read_whole(waiting[1])
        busy.close()
        assert stack.sim.ledger.received == 1


def test_slow_reader_stops_the_worker_not_the_memory(wrap: Callable[[Any], Any]) -> None:
    with Stack(({"max_model_len": 400_000},), wrap=wrap) as stack:
        client = raw_request(stack, chat("long", stream=True, max_tokens=300_000, ignore_eos=True))
        client.recv(1000)
        origin = next(iter(stack.gateway.deployment.transports["m"].origins.values()))
        until(lambda: any(connection.reading_paused for connection in origin.connections))
        (downstream,) = stack.server.server_state.connections
        assert downstream.transport.get_write_buffer_size() < 1 << 20
        client.close()
        stack.run(stack.sim.ledger.wait(aborted=1))
