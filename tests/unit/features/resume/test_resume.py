"""A stream whose worker fails goes on at another worker: its client gets what one worker alone would have sent."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.fleet.health import Health
from gateway.fleet.worker import Worker
from tests.laws.conformance.clients import Heard
from tests.support.clients import WAYS, Way
from tests.support.harness import PROBED, Stack, until
from tests.support.sampled import of_dialect, sampled
from tests.unit.features.resume.broken import ROUND, TEXT, Streaming, broken_once, heard, posted, text_of
from tests.unit.kernel.asking import PATH, chat, scripted

STREAMED = [way for way in WAYS if way.operation in ("chat", "complete") and way.answers(stream=True)]
SEAM = 1


def body_of(way: Way, text: str, **members: Any) -> dict[str, Any]:
    return {"model": "m", **way.body(text, stream=True, **members)}


def said_alike(some: list[Heard], others: list[Heard]) -> bool:
    """But for a token of the prompt: at the seam a tokenizer may split the text otherwise."""
    return len(some) == len(others) and all(
        one.choices == other.choices
        and (one.usage is None) == (other.usage is None)
        and all(abs(a - b) <= 2 * SEAM for a, b in zip(one.usage or (), other.usage or (), strict=True))
        for one, other in zip(some, others, strict=True)
    )


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
    until(lambda: three.gateway.deployment.runtime.budgets.continuations.reserved == 0)
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


@pytest.mark.parametrize("look_s", [0.1, 2.0], ids=["back after a look", "back within a look"])
def test_it_waits_for_a_worker_that_answers_no_probe(monkeypatch: pytest.MonkeyPatch, look_s: float) -> None:
    """Such a worker is ready until three probes are silent; it is not asked again before it has been down."""
    monkeypatch.setattr("gateway.kernel.attempts._LOOK_S", look_s)
    with Stack(config={**ROUND, **PROBED}) as stack:
        fleets = stack.gateway.deployment.fleets
        pool, first = fleets.models["m"].pool, stack.sim.url

        async def silent(self: Health, model: str, worker: Worker) -> int:
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
    silent, real = {1, 2}, Health._status  # the result of one probe
    with Stack(({"itl_ms": 100}, {}, {}), config={**ROUND, **PROBED}) as stack:
        pool = stack.gateway.deployment.fleets.models["m"].pool

        async def status(self: Health, model: str, worker: Worker) -> int:
            if any(worker.address == stack.sims[at].url for at in silent):
                raise TimeoutError
            return await real(self, model, worker)

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


def test_a_worker_that_is_full_leaves_the_stream_to_the_next() -> None:
    with Stack(({}, {}, {}), config=ROUND) as stack:
        stack.sims[0].fault("reset@2", 1)
        stack.sims[1].fault("status:503", 1)
        assert text_of(posted(stack, PATH, chat(scripted(text=TEXT), stream=True, max_tokens=1000))) == TEXT
        record = stack.record()
        assert record["continued"] == ["died", "failed"]
        assert record["workers"] == [sim.url for sim in stack.sims]


def test_workers_that_answer_nothing_are_as_many_as_may_be_asked() -> None:
    """However much the client has seen before: the error is that of the worker which had begun."""
    with Stack(({},) * 5, config=ROUND) as stack:
        stack.sims[0].fault("reset@20", 1)
        for sim in stack.sims[1:]:
            sim.fault("status:500", path=PATH)
        posted(stack, PATH, chat(scripted(text=" ".join([TEXT] * 5)), stream=True, max_tokens=1000))
        record = stack.record()
        assert (record["attempts"], record["not_continued"]) == (3, "attempts")
        assert record["code"] == "upstream_truncated"


def test_one_that_kills_workers_before_they_add_anything_is_stopped() -> None:
    config = {**ROUND, "retry": {"min_per_second": 100, "attempts": 10}}
    with Stack(({},) * 5, config=config) as stack:
        stack.sims[0].fault("die@20", 1)
        for sim in stack.sims[1:]:
            sim.fault("die@before", 1, path=PATH)
        posted(stack, PATH, chat(scripted(text=" ".join([TEXT] * 5)), stream=True, max_tokens=1000))
        assert stack.record()["not_continued"] == "quarantined"
        assert sum(sim.dead.is_set() for sim in stack.sims) == 3


def test_a_fallback_whose_streams_do_not_go_on_keeps_nothing() -> None:
    with Stack(({}, {}), config={**ROUND, "retry": {"attempts": 1}}) as stack:
        first, other = (sim.url for sim in stack.sims)
        models = {
            "m": {"workers": [first], "fallback": ["other"]},
            "other": {"backend": "vllm", "upstream_model": "sim", "workers": [other], "continue_streams": False},
        }
        stack.run(stack.gateway.reload(stack.config({"models": models})))
        stack.sims[0].fault("status:500", path=PATH)
        posted(stack, PATH, chat(scripted(text=" ".join([TEXT] * 20)), stream=True, max_tokens=1000))
        assert (stack.record()["model"], stack.record()["outcome"]) == ("other", "ok")
        until(lambda: stack.gateway.deployment.runtime.budgets.continuations.reserved == 0)


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


@pytest.mark.feature("request_policies")
def test_a_bound_under_another_name_is_what_is_left_of_it() -> None:
    policies = {"all": {"rename": {"max_tokens": "most"}, "caps": {"max_tokens": 60}}}
    with Stack(({}, {}), {**ROUND, "request_policies": policies}) as stack:
        _, record = broken_once(stack, "reset@4", PATH, chat(scripted(text=TEXT), stream=True))
        assert record["continued"] == ["died"]
        bodies = [json.loads(one.body) for sim in stack.sims for one in sim.entries]
        again = next(body for body in bodies if body.get("continue_final_message"))
        assert 0 < again["most"] < 60
        assert "max_tokens" not in again
