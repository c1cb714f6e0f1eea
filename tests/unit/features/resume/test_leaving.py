"""Streams that cannot go on elsewhere, streams that leave a worker, and gaps that end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.moves import LEAVING, STALLED
from gateway.kernel.client import AsgiClient
from tests.support.harness import Stack, until
from tests.unit.features.resume.broken import TEXT, Streaming, broken_once, posted, text_of
from tests.unit.kernel.asking import PATH, TOOL, chat, scripted

CANNOT: dict[str, dict[str, Any]] = {
    "choices": chat(scripted(choices=[{"text": TEXT}, {"text": TEXT}]), n=2),
    "tool_call": chat(scripted(tool_calls=[{"name": "f", "arguments": {"text": TEXT}}]), tools=[TOOL]),
    "logprobs": chat(scripted(text=TEXT), logprobs=True),
    "structured_output": chat(scripted(text='{"a": "b c d e"}'), response_format={"type": "json_object"}),
    "penalties": chat(scripted(text=TEXT), presence_penalty=1),
}


@pytest.mark.parametrize(
    ("members", "reason"),
    [({"logprobs": 0}, "logprobs"), ({"logprobs": 2}, "logprobs"), ({"bad_words": ["a b"]}, "penalties")],
)
def test_what_cannot_go_on_in_a_text_completion(three: Stack, members: dict[str, Any], reason: str) -> None:
    """Places of tokens in the text, which another worker would count from its own begin; a phrase across the seam."""
    body = {"model": "m", "prompt": scripted(text=TEXT), "stream": True, "max_tokens": 500, **members}
    stream, record = broken_once(three, "reset@2", "/v1/completions", body)
    assert b'"upstream_truncated"' in stream
    assert (record["outcome"], record["attempts"], record["not_continued"]) == ("failed", 1, reason)


@pytest.mark.parametrize("reason", CANNOT)
def test_what_cannot_go_on_ends_as_it_did(three: Stack, reason: str) -> None:
    stream, record = broken_once(three, "reset@2", PATH, {**CANNOT[reason], "stream": True, "max_tokens": 500})
    assert b'"upstream_truncated"' in stream
    assert (record["outcome"], record["attempts"], record["not_continued"]) == ("failed", 1, reason)
    page = httpx.get(three.url + "/metrics").text
    assert f'dragoman_not_continued_total{{model="m",reason="{reason}"}}' in page


def test_what_was_kept_goes_once_it_cannot_go_on() -> None:
    body = chat(scripted(text=TEXT, tool_calls=[{"name": "f", "arguments": {"text": TEXT * 5}}]))
    with Stack(({"itl_ms": 10},)) as stack:
        runtime = stack.gateway.deployment.runtime
        reading = threading.Thread(target=posted, args=(stack, PATH, {**body, "tools": [TOOL], "stream": True}))
        reading.start()
        until(lambda: runtime.budgets.continuations.reserved > 0)
        until(lambda: runtime.budgets.continuations.reserved == 0)
        (request,) = runtime.active.requests
        assert request.outgoing.request.body == b""
        reading.join(30)
        assert stack.record()["outcome"] == "ok"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"models": {"m": {"continue_streams": False}}}, None),
        ({"relay": {"continue_bytes": 0}}, "memory"),
        ({"retry": {"attempts": 1}}, "attempts"),
    ],
)
def test_it_may_be_off(config: dict[str, Any], reason: str | None) -> None:
    with Stack(({}, {}), config=config) as stack:
        for sim in stack.sims:
            sim.fault("reset@2")
        stream = posted(stack, PATH, chat(scripted(text=TEXT), stream=True))
        assert b"upstream_truncated" in stream
        record = stack.record()
        assert (record["outcome"], record["attempts"], record["not_continued"]) == ("failed", 1, reason)


@pytest.mark.parametrize(("code", "reason", "failures"), [(STALLED, "stalled", 1), (LEAVING, "leaving", 0)])
def test_it_leaves_its_worker(wrap: Callable[[Any], Any], code: str, reason: str, failures: int) -> None:
    with Stack(({}, {}), wrap=wrap) as stack:
        streaming = Streaming(stack, chat(scripted(text=TEXT), stream=True))
        assert streaming.leave(code) == 1
        assert text_of(streaming.whole()) == TEXT
        record = stack.record()
        assert (record["outcome"], record["continued"], record["moved"]) == ("ok", [reason], [])
        stack.run(streaming.sim.ledger.wait(aborted=1))
        (left,) = [one for one in stack.gateway.deployment.pools["m"].workers if one.address == streaming.sim.url]
        assert left.breaker.failures == failures


@pytest.mark.parametrize("body", [CANNOT["tool_call"], CANNOT["logprobs"]], ids=["seen", "asked"])
def test_what_cannot_go_on_stays(body: dict[str, Any]) -> None:
    """The worker may move again."""
    with Stack(({}, {})) as stack:
        streaming = Streaming(stack, {**body, "stream": True, "max_tokens": 500})
        assert streaming.leave() == 0
        stack.loop.call_soon_threadsafe(streaming.sim.go_on)
        streaming.whole()
        assert (stack.record()["outcome"], stack.record()["attempts"]) == ("ok", 1)


def test_it_stays_if_nobody_else_is_there() -> None:
    with Stack() as stack:
        streaming = Streaming(stack, chat(scripted(text=TEXT), stream=True))
        assert streaming.leave() == 0
        stack.loop.call_soon_threadsafe(streaming.sim.go_on)
        assert text_of(streaming.whole()) == TEXT


def stalling(stack: Stack) -> None:
    """From now on requests stall before their head."""
    for sim in stack.sims:
        sim.fault("stall@before")


def test_keep_alives_bridge_the_gap(wrap: Callable[[Any], Any]) -> None:
    with Stack(({}, {}), config={"relay": {"keepalive_s": 0.05}}, wrap=wrap) as stack:
        streaming = Streaming(stack, chat(scripted(text=TEXT), stream=True))
        stalling(stack)
        assert streaming.leave() == 1
        (other,) = [sim for sim in stack.sims if sim is not streaming.sim]
        stack.run(other.ledger.wait(running=1))
        before = len(streaming.stream)
        until(lambda: streaming.stream[before:].count(b":\n\n") + streaming.stream[before:].count(b"\n\n\n") >= 2)
        stack.loop.call_soon_threadsafe(other.go_on)
        assert text_of(streaming.whole()) == TEXT


async def test_a_client_that_reads_slowly_pauses_the_next_worker_at_once() -> None:
    paused: list[str] = []
    client = AsgiClient(asyncio.Event().wait, lambda _: None)
    client.flow(lambda: paused.append("first"), lambda: None)
    client.write(b"x" * 100_000)
    client.flow(lambda: paused.append("second"), lambda: None)
    assert paused == ["first", "second"]


@pytest.mark.parametrize("end", ["client", "deadline"])
def test_it_ends_in_the_gap(wrap: Callable[[Any], Any], end: str) -> None:
    with Stack(({}, {}), wrap=wrap) as stack:
        streaming = Streaming(stack, chat(scripted(text=TEXT), stream=True))
        stalling(stack)
        assert streaming.leave() == 1
        (other,) = [sim for sim in stack.sims if sim is not streaming.sim]
        stack.run(other.ledger.wait(running=1))

        async def ending() -> None:
            (request,) = stack.gateway.deployment.runtime.active.requests
            if end == "client":
                request.client.gone = True
                request.left()
            else:
                request.interrupt(GatewayError(Kind.DRAINING, "the gateway is shutting down"))

        stack.run(ending())
        stack.run(other.ledger.wait(aborted=1))
        record = stack.record()
        until(lambda: stack.gateway.deployment.runtime.budgets.continuations.reserved == 0)
        if end == "client":
            assert (record["outcome"], record["phase"]) == ("cancelled", "streaming")
        else:
            assert b"shutting down" in streaming.whole()
            assert (record["outcome"], record["code"]) == ("failed", "shutting_down")
