"""A stream whose worker fails goes on at another worker: its client gets what one worker alone would have sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.fleet.health import Health
from gateway.pipeline.client import AsgiClient
from gateway.pipeline.moving import LEAVING, STALLED
from tests.clients import WAYS, Way
from tests.conformance.clients import CLIENTS, Heard
from tests.harness import PROBED, Stack, until
from tests.pipeline.test_pump import PATH, TOOL, chat, plain_asgi, scripted
from tests.sampled import of_dialect, sampled

TEXT = "Ein naïver Gruß an 漢字 und 🎉 fünf Wörter mehr."
STREAMED = [way for way in WAYS if way.operation in ("chat", "complete") and way.answers(stream=True)]
SEAM = 1
ROUND = {
    "models": {"m": {"policy": "round_robin"}},
    "retry": {"min_per_second": 100},
    "breaker": {"failures": 1000},
}


@pytest.fixture(params=["direct", "asgi"])
def wrap(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return plain_asgi if request.param == "asgi" else lambda app: app


def body_of(way: Way, text: str, **members: Any) -> dict[str, Any]:
    return {"model": "m", **way.body(text, stream=True, **members)}


def posted(stack: Stack, path: str, body: dict[str, Any]) -> bytes:
    """The stream, whole or cut."""
    received = b""
    with (
        contextlib.suppress(httpx.RemoteProtocolError),
        httpx.stream("POST", stack.url + path, json=body, timeout=60) as reply,
    ):
        for block in reply.iter_raw():
            received += block
    return received


def heard(way: Way, stream: bytes) -> list[Heard]:
    """As each client of that dialect understands it, if it is whole."""
    found = []
    for client in CLIENTS:
        if (client.dialect, client.operation) == (way.dialect, way.operation):
            with contextlib.suppress(Exception):  # another client's form
                said = client.hear(stream)
                if said.complete:
                    found.append(said)
    return found


def said_alike(some: list[Heard], others: list[Heard]) -> bool:
    """But for a token of the prompt: at the seam a tokenizer may split the text otherwise."""
    return len(some) == len(others) and all(
        one.choices == other.choices
        and (one.usage is None) == (other.usage is None)
        and all(abs(a - b) <= 2 * SEAM for a, b in zip(one.usage or (), other.usage or (), strict=True))
        for one, other in zip(some, others, strict=True)
    )


def broken_once(
    stack: Stack, fault: str, path: str, body: dict[str, Any], deaths: int = 1
) -> tuple[bytes, dict[str, Any]]:
    """A stream that so many workers break, one after the other, and its record."""
    for _ in range(2 * len(stack.sims)):  # until the workers' turns are so
        for sim in stack.sims[:deaths]:
            sim.fault(fault, 1)
        stream = posted(stack, path, body)
        record = stack.record()
        if record["attempts"] == deaths + 1 or record["outcome"] != "ok":
            break
    for sim in stack.sims:
        sim.fault("")
    return stream, record


@pytest.fixture(scope="module", params=["direct", "asgi"])
def three(request: pytest.FixtureRequest) -> Iterator[Stack]:
    wrap = plain_asgi if request.param == "asgi" else lambda app: app
    with Stack(({"itl_ms": 2}, {"itl_ms": 2}, {"itl_ms": 2}), config=ROUND, wrap=wrap) as stack:
        yield stack


@pytest.mark.parametrize("way", sampled(STREAMED, 3, of_dialect), ids=str)
def test_the_client_gets_what_one_worker_would_have_sent(three: Stack, way: Way) -> None:
    body = body_of(way, scripted(text=TEXT), max_tokens=1000)
    expected = heard(way, posted(three, way.path("m"), body))
    alone = three.record()
    assert expected
    assert "workers" not in alone
    for fault, deaths in (("reset@2", 1), ("fin@5", 1), ("reset@4", 2), ("error-frame@3", 1)):
        stream, record = broken_once(three, fault, way.path("m"), body, deaths)
        assert said_alike(heard(way, stream), expected), (fault, stream)
        assert (record["outcome"], record["attempts"], record["not_continued"]) == ("ok", deaths + 1, None)
        assert record["continued"] == ["failed" if "error" in fault else "died"] * deaths
        assert len(set(record["workers"])) == deaths + 1
        assert record["workers"][-1] == record["worker"]
        assert record["usage"]["output"] == alone["usage"]["output"]
        assert abs(record["usage"]["input"] - alone["usage"]["input"]) <= SEAM * deaths
        assert record["recomputed"] > alone["usage"]["input"] * deaths
    assert three.gateway.deployment.runtime.budgets.kept.reserved == 0
    assert all(worker.in_flight == 0 for worker in three.gateway.deployment.pools["m"].workers)


def test_only_the_end_is_missing(three: Stack) -> None:
    for way in STREAMED:
        body = body_of(way, scripted(text=TEXT), max_tokens=1000)
        (expected, *_) = heard(way, posted(three, way.path("m"), body))
        for sim in three.sims:
            sim.fault("no-done,fin@200")
        (said, *_) = heard(way, posted(three, way.path("m"), body))
        record = three.record()
        for sim in three.sims:
            sim.fault("")
        assert said.choices == expected.choices
        assert record["attempts"] == 1
        assert record["continued"] == ["ended"], way


def test_an_error_that_the_engine_reports_behind_its_last_token_stays_one(three: Stack) -> None:
    """Its reply may be wrong: nothing is added to it that looks like success."""
    answer = posted(three, PATH, chat(scripted(pieces=["a", "b"], fault="error-frame@3"), stream=True))
    assert b'"finish_reason":"stop"' in answer
    assert b'"error"' in answer
    assert b"[DONE]" not in answer
    record = three.record()
    assert (record["outcome"], record["continued"], record["not_continued"]) == ("failed", [], "failed")


def test_a_stream_that_has_its_most_tokens_ends(three: Stack) -> None:
    body = chat(scripted(text=TEXT), stream=True, max_tokens=3)
    stream, record = broken_once(three, "reset@3", PATH, body)
    assert b'"finish_reason":"length"' in stream
    assert stream.endswith(b"data: [DONE]\n\n")
    assert (record["outcome"], record["usage"]["output"]) == ("ok", 3)


def test_nobody_is_left(wrap: Callable[[Any], Any]) -> None:
    """The client gets the error of the death, in its own form."""
    with Stack(config={**ROUND, "retry": {"wait_s": 0.5}}, wrap=wrap) as stack:
        stream, record = broken_once(stack, "die@2", PATH, chat(scripted(text=TEXT), stream=True))
        assert b'"upstream_truncated"' in stream
        assert (record["outcome"], record["code"], record["not_continued"]) == (
            "failed", "upstream_truncated", "no_worker",
        )  # fmt: skip
        assert record["continued"] == []


@pytest.mark.parametrize("stream", [True, False], ids=["seen", "unseen"])
def test_all_die_and_one_returns(wrap: Callable[[Any], Any], stream: bool) -> None:
    """The request waits in the queue, its client gets keep-alives, and no other request is refused for it."""
    config = {**ROUND, **PROBED, "relay": {"keepalive_s": 0.1}}
    # Two deaths before the first token are the request's own fault.
    with Stack(({}, {}) if stream else ({},), config=config, wrap=wrap) as stack:
        for sim in stack.sims:
            sim.fault("die@20" if stream else "die@before", 1)
        text = " ".join([TEXT] * 5)
        body = chat(scripted(text=text), stream=stream, max_tokens=1000)
        answers: list[bytes] = []
        asking = threading.Thread(target=lambda: answers.append(posted(stack, PATH, body)))
        asking.start()
        pool = stack.gateway.deployment.pools["m"]
        until(lambda: not pool.ready and pool.waiting == 1)
        returned = stack.sims[-1]
        returned.fault("")
        stack.run(returned.start())
        asking.join(30)
        (answer,) = answers
        if stream:
            assert text_of(answer) == text
            assert answer.count(b":\n\n") + answer.count(b"\n\n\n") >= 1
        else:
            assert json.loads(answer)["choices"][0]["message"]["content"] == text
        record = stack.record()
        assert (record["outcome"], record["worker"]) == ("ok", returned.url)
        assert record["attempts"] == len(stack.sims) + 1
        assert 'reason="no_worker"' not in httpx.get(stack.url + "/metrics").text


def test_it_waits_for_a_worker_that_answers_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a worker is ready until three probes are silent; it is not asked again before it has been down."""
    with Stack(config={**ROUND, **PROBED}) as stack:
        fleets = stack.gateway.deployment.fleets
        pool, first = fleets.models["m"].pool, stack.sim.url

        async def silent(self: Health, model: str, address: str) -> int:
            raise TimeoutError

        stack.sim.fault("reset@2", 1)
        with monkeypatch.context() as patch:
            patch.setattr(Health, "_status", silent)
            answers: list[bytes] = []
            asking = threading.Thread(
                target=lambda: answers.append(posted(stack, PATH, chat(scripted(text=TEXT), stream=True)))
            )
            asking.start()
            until(lambda: not pool.ready)
        asking.join(30)
        assert text_of(answers[0]) == TEXT
        record = stack.record()
        assert (record["attempts"], record["workers"], record["not_continued"]) == (2, [first, first], None)


@pytest.mark.parametrize("back", [0, 1], ids=["dead", "silent"])
def test_it_is_not_spent_on_workers_whose_probes_are_silent(monkeypatch: pytest.MonkeyPatch, back: int) -> None:
    """They count as ready until three probes are silent. Whichever worker comes back first goes on with the stream."""
    silent, real = {1, 2}, Health._status
    with Stack(({"itl_ms": 100}, {}, {}), config={**ROUND, **PROBED}) as stack:
        pool = stack.gateway.deployment.fleets.models["m"].pool

        async def status(self: Health, model: str, address: str) -> int:
            if any(address == stack.sims[at].url for at in silent):
                raise TimeoutError
            return await real(self, model, address)

        monkeypatch.setattr("gateway.fleet.health._MISSES", 1_000_000)
        monkeypatch.setattr(Health, "_status", status)
        first = stack.sims[0]
        first.fault("die@4", 1)
        for sim in stack.sims[1:]:
            sim.fault("stall@before")
        until(lambda: len(pool.suspects) == 2)
        for worker in pool.workers[1:]:
            worker.draining = True  # so that the first one gets the stream
        answers: list[bytes] = []
        body = chat(scripted(text=TEXT), stream=True)
        asking = threading.Thread(target=lambda: answers.append(posted(stack, PATH, body)))
        asking.start()
        until(lambda: bool(first.ledger.running))
        for worker in pool.workers[1:]:
            worker.draining = False
        until(lambda: not pool.workers[0].ready and pool.waiting == 1)
        time.sleep(0.5)  # longer than the first look
        assert [sim.ledger.running for sim in stack.sims] == [0, 0, 0]
        if back:
            silent.remove(back)
            stack.sims[back].fault("")
        else:
            stack.run(first.start())
        asking.join(30)
        assert text_of(answers[0]) == TEXT
        record = stack.record()
        assert (record["workers"], record["not_continued"]) == ([first.url, stack.sims[back].url], None)


@pytest.mark.parametrize("end", ["client_closed_request", "deadline_exceeded", "shutting_down"])
def test_why_it_did_not_wait_to_the_end(end: str) -> None:
    config = {**ROUND, "retry": {"wait_s": 30}, "deadlines": {"total_s": 1} if end == "deadline_exceeded" else {}}
    with Stack(config=config) as stack:
        stack.sim.fault("die@2", 1)
        body = chat(scripted(text=TEXT), stream=True)
        with httpx.stream("POST", stack.url + PATH, json=body, timeout=60) as reply:
            pieces = reply.iter_raw()
            next(pieces)
            pool = stack.gateway.deployment.pools["m"]
            until(lambda: pool.waiting == 1)
            if end == "shutting_down":
                (request,) = stack.gateway.deployment.runtime.active.requests
                late = GatewayError(Kind.DRAINING, "the gateway is shutting down")
                stack.loop.call_soon_threadsafe(request.interrupt, late)
            if end != "client_closed_request":
                with contextlib.suppress(httpx.RemoteProtocolError):
                    list(pieces)
        record = stack.record()
        assert (record["code"], record["not_continued"], record["continued"]) == (end, end, [])
        page = httpx.get(stack.url + "/metrics").text
        assert f'dragoman_not_continued_total{{model="m",reason="{end}"}} 1.0' in page


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
        until(lambda: runtime.budgets.kept.reserved > 0)
        until(lambda: runtime.budgets.kept.reserved == 0)
        (request,) = runtime.active.requests
        assert request.call.outgoing.request.body == b""
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


def test_a_worker_that_is_full_leaves_the_stream_to_the_next() -> None:
    with Stack(({}, {}, {}), config=ROUND) as stack:
        stack.sims[0].fault("reset@2", 1)
        stack.sims[1].fault("status:503", 1)
        assert text_of(posted(stack, PATH, chat(scripted(text=TEXT), stream=True, max_tokens=1000))) == TEXT
        record = stack.record()
        assert record["continued"] == ["died", "failed"]
        assert record["workers"] == [sim.url for sim in stack.sims]


# -- a worker that stalls, or leaves --------------------------------------------------------------------------------


class Streaming:
    """A stream, in a thread of its own, whose worker stalls after two tokens."""

    def __init__(self, stack: Stack, body: dict[str, Any]) -> None:
        self._stack, self._body = stack, body
        for sim in stack.sims:
            sim.fault("stall@2", 1)
        self._thread = threading.Thread(target=self._ask)
        self.stream = b""
        self._thread.start()
        until(lambda: self.stream.count(b"content") >= 2 or self.stream.count(b"tool_calls") >= 1)
        (self.sim,) = [sim for sim in stack.sims if sim.ledger.running]
        for sim in stack.sims:
            sim.fault("")

    def _ask(self) -> None:
        with (
            contextlib.suppress(httpx.RemoteProtocolError),
            httpx.stream("POST", self._stack.url + PATH, json=self._body, timeout=60) as reply,
        ):
            for block in reply.iter_raw():
                self.stream += block

    def leave(self, code: str = STALLED) -> int:
        async def leaving() -> int:
            deployment = self._stack.gateway.deployment
            (worker,) = [one for one in deployment.pools["m"].workers if one.address == self.sim.url]
            return deployment.runtime.active.leave(worker, GatewayError(Kind.UPSTREAM, "it stalls", code=code))

        return self._stack.run(leaving())

    def whole(self) -> bytes:
        self._thread.join(60)
        return self.stream


def text_of(stream: bytes) -> str:
    (said,) = [client.hear(stream) for client in CLIENTS if (client.dialect, client.operation) == ("openai", "chat")][
        :1
    ]
    assert said.complete
    return said.of(0).text


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


# -- between two workers --------------------------------------------------------------------------------------------


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
    client = AsgiClient({"type": "http", "headers": []}, asyncio.Event().wait, lambda _: None)
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
                request._left()
            else:
                request.interrupt(GatewayError(Kind.DRAINING, "the gateway is shutting down"))

        stack.run(ending())
        stack.run(other.ledger.wait(aborted=1))
        record = stack.record()
        assert stack.gateway.deployment.runtime.budgets.kept.reserved == 0
        if end == "client":
            assert (record["outcome"], record["phase"]) == ("cancelled", "streaming")
        else:
            assert b"shutting down" in streaming.whole()
            assert (record["outcome"], record["code"]) == ("failed", "shutting_down")


def test_one_that_kills_worker_after_worker_is_stopped() -> None:
    """It kills two that go on with it; a third one is not asked."""
    config = {"retry": {"min_per_second": 100, "attempts": 10}}
    with Stack(({}, {}, {}, {}, {}), config=config) as stack:
        for sim in stack.sims:
            sim.fault("die@3", 1)
        stream = posted(stack, PATH, chat(scripted(text=" ".join([TEXT] * 20)), stream=True, max_tokens=5000))
        assert b"[DONE]" not in stream
        record = stack.record()
        assert (record["outcome"], record["code"]) == ("failed", "request_quarantined")
        assert record["not_continued"] == "quarantined"
        assert sum(sim.dead.is_set() for sim in stack.sims) == 3


# -- the first token ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, chat(scripted(text=TEXT), stream=True)),
        (PATH, chat(scripted(text=TEXT))),
        ("/v1/embeddings", {"model": "m", "input": "hi"}),
    ],
    ids=["streamed", "whole", "embeddings"],
)
@pytest.mark.parametrize("moment", ["before", "headers"])
def test_a_late_first_token_is_asked_of_another_worker(path: str, body: dict[str, Any], moment: str) -> None:
    deadlines = {"first_token_s": 0.2, "unstreamed_s": 0.2}
    with Stack(({}, {}), config={"models": {"m": {"deadlines": deadlines, "policy": "round_robin"}}}) as stack:
        stack.sims[0].fault(f"stall@{moment}", 1)
        for _ in range(4):
            reply = httpx.post(stack.url + path, json=body, timeout=30)
            assert reply.status_code == 200
            if stack.record()["attempts"] == 2:
                break
        record = stack.record()
        if path == "/v1/embeddings" and moment == "headers":
            return  # that fault is not theirs
        assert (record["moved"], record["outcome"], record["attempts"]) == (["late"], "ok", 2)
        assert record["workers"] == [stack.sims[0].url, record["worker"]] == [sim.url for sim in stack.sims]
        stack.run(stack.sims[0].ledger.wait(aborted=1))
        page = httpx.get(stack.url + "/metrics").text
        assert 'dragoman_moved_total{model="m",reason="late"} 1.0' in page


@pytest.mark.parametrize(("bound", "stream"), [("first_token_s", False), ("unstreamed_s", True)])
def test_a_reply_whose_kind_has_no_bound_is_not_late(bound: str, stream: bool) -> None:
    with Stack(({}, {}), config={"models": {"m": {"deadlines": {bound: 0.05}}}}) as stack:
        for sim in stack.sims:
            sim.fault("stall:0.3@before")
        assert httpx.post(stack.url + PATH, json=chat(scripted(text=TEXT), stream=stream)).status_code == 200
        assert (stack.record()["attempts"], stack.record()["moved"], stack.events("bug")) == (1, [], [])


def test_a_late_first_token_is_waited_for_if_nobody_else_is_there() -> None:
    with Stack(config={"models": {"m": {"deadlines": {"first_token_s": 0.05}}}}) as stack:
        stack.sim.fault("stall:0.5@before", 1)
        assert text_of(posted(stack, PATH, chat(scripted(text=TEXT), stream=True))) == TEXT
        assert (stack.record()["attempts"], stack.record()["moved"]) == (1, [])


def test_a_late_first_token_is_asked_of_a_fallback() -> None:
    with Stack() as other:
        models = {
            "m": {"fallback": ["n"], "deadlines": {"first_token_s": 0.1}},
            "n": {"backend": "vllm", "upstream_model": "sim", "workers": [other.sim.url]},
        }
        with Stack(config={"models": models, "relay": {"keepalive_s": 0.02}}) as stack:
            stack.sim.fault("stall@before", 1)
            assert text_of(posted(stack, PATH, chat(scripted(text=TEXT), stream=True))) == TEXT
            record = stack.record()
            assert (record["model"], record["routed"], record["moved"]) == ("n", "unavailable", ["late"])
            assert record["workers"] == [stack.sim.url, other.sim.url]


def test_what_has_begun_is_not_late() -> None:
    with Stack(({}, {}), config={"models": {"m": {"deadlines": {"first_token_s": 0.1}}}}) as stack:
        for sim in stack.sims:
            sim.fault("stall:0.4@2")
        assert text_of(posted(stack, PATH, chat(scripted(text=TEXT), stream=True))) == TEXT
        assert stack.record()["attempts"] == 1


def test_a_continuation_that_is_late_is_asked_of_a_third_worker() -> None:
    config = {"models": {"m": {"deadlines": {"first_token_s": 0.3}}}}
    with Stack(({}, {}, {}), config=config) as stack:
        streaming = Streaming(stack, chat(scripted(text=TEXT), stream=True))
        for sim in stack.sims:
            if sim is not streaming.sim:
                sim.fault("stall@before", 1)
        assert streaming.leave() == 1
        until(lambda: any(sim.ledger.running for sim in stack.sims if sim is not streaming.sim))
        for sim in stack.sims:
            sim.fault("")
        assert text_of(streaming.whole()) == TEXT
        assert stack.record()["continued"] == ["stalled", "late"]


def test_it_goes_on_where_its_prompt_is_cached() -> None:
    long = {"role": "system", "content": "Es war einmal. " * 2000}
    body = {**(asked := chat(scripted(text=TEXT), stream=True)), "messages": [long, *asked["messages"]]}
    with Stack(({}, {}, {}), config={"models": {"m": {"policy": "prefix"}}}) as stack:
        workers = {worker.address: worker for worker in stack.gateway.deployment.pools["m"].workers}
        posted(stack, PATH, body)
        first = stack.record()["worker"]
        workers[first].draining = True
        posted(stack, PATH, body)
        workers[first].draining = False
        had = {first, stack.record()["worker"]}
        streaming = Streaming(stack, body)
        assert streaming.leave() == 1
        assert text_of(streaming.whole()) == TEXT
        record = stack.record()
        assert {record["worker"], streaming.sim.url} == had
        assert "why=prefix" in record["picked"]
