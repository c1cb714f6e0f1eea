"""Guards that fail, are slow or are left waiting, and streams that other workers go on with."""

from __future__ import annotations

import contextlib
import gc
import json
import threading
import time
from itertools import product
from typing import Any

import httpx
import pytest

from gateway.features.guards import _Replace
from tests.support.harness import Stack, until
from tests.support.ports import free_port
from tests.support.sampled import sampled
from tests.support.standins.guard import ALLOW, Guard
from tests.unit.dialects.responses.asking import frames, kinds
from tests.unit.features.guards.asking import AFTERS, SECRET, TEXT, config_of, refusing
from tests.unit.features.resume.broken import posted, text_of
from tests.unit.kernel.asking import PATH, chat, raw_request, scripted

WRONG: dict[str, Any] = {
    "status": (500, b'{"action": "allow"}'),
    "invalid": (200, b"<html>"),
    "invalid 2": {"action": "replace", "texts": ["a", "b"]},
    "invalid 3": {"action": "perhaps"},
    "invalid 4": (200, b"[" * 4000),
    "invalid 5": {},
    "too_large": (200, b'{"action": "allow", "x": "%b"}' % (b"x" * 5000)),
    "timeout": None,
    "unreachable": None,
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(
    ("on_failure", "after"), sampled(product(["closed", "open"], ["never", *AFTERS]), 2, lambda case: case[0])
)
def test_a_guard_that_fails(service: Guard, wrong: str, on_failure: str, after: str) -> None:
    answer = WRONG[wrong]
    service.decide = lambda question: answer
    url = f"http://127.0.0.1:{free_port()}/" if wrong == "unreachable" else service.url
    options = {
        "before": after == "never",
        "after": after,
        "on_failure": on_failure,
        "max_bytes": 4096,
        "timeout_s": 0.3,
    }
    with Stack(config={"guards": {"g": {**options, "url": url}}}) as stack:
        if wrong == "timeout":
            service.held.clear()
        streams = (False,) if after == "never" else (False, True)
        for stream in streams:
            reply = httpx.post(stack.url + PATH, json=chat(scripted(text="all is well"), stream=stream))
            record = stack.record()
            if on_failure == "open":
                assert reply.status_code == 200
                assert record["outcome"] == "ok"
                assert "all" in reply.text
            else:
                assert (reply.status_code, reply.json()["error"]["code"]) == (502, "guard_unavailable")
                assert record["outcome"] == "failed"
                assert record["attempts"] == (0 if after == "never" else 1)
                assert "well" not in reply.text
            assert record["guards"] == [f"g {'before' if after == 'never' else 'after'} failed"]
        assert {line["reason"] for line in stack.events("guard failed")} == {wrong.split()[0]}
        service.held.set()


@pytest.mark.parametrize("on_failure", ["closed", "open"])
def test_what_a_guard_sent_is_gone_when_it_has_failed(service: Guard, on_failure: str) -> None:
    service.decide = lambda question: {"action": "replace", "texts": ["x"] * 99}
    with Stack(({},), config_of(service, on_failure=on_failure)) as stack:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                reply = httpx.post(stack.url + PATH, json=chat())
                assert (reply.status_code == 200) == (on_failure == "open")
            until(lambda: not any(type(one) is _Replace for one in gc.get_objects()))
        finally:
            gc.enable()


@pytest.mark.parametrize(
    "beside",
    [
        {"reason": None, "texts": None, "model": None},
        {"model": "none"},
        {"model": 5},
        {"reason": ["a"], "texts": "b"},
        {"texts": ["a", "b", "c"]},
    ],
)
def test_a_refusal_counts_whatever_stands_beside_it(service: Guard, beside: dict[str, Any]) -> None:
    service.decide = lambda question: {**beside, "action": "refuse"}
    for options in ({}, {"before": False, "after": "whole"}, {"before": False, "after": "windows"}):
        with Stack(config=config_of(service, on_failure="open", **options)) as stack:
            for stream in (False, True):
                reply = httpx.post(stack.url + PATH, json=chat(scripted(text="all is well"), stream=stream))
                assert (reply.status_code, reply.json()["error"]["code"]) == (400, "content_filter")
                assert "well" not in reply.text
            assert not stack.events("guard failed")


def test_a_client_that_leaves_waits_for_no_guard(service: Guard) -> None:
    service.held.clear()
    for options in ({}, {"before": False, "after": "whole"}):
        with Stack(config=config_of(service, timeout_s=30, **options)) as stack:
            for stream in (False, True):
                service.asked.clear()
                with raw_request(stack, chat("hi", stream=stream)):
                    until(lambda: bool(service.asked))
                until(lambda: not stack.gateway.deployment.runtime.active.requests)
                assert stack.record()["outcome"] == "cancelled"


@pytest.mark.parametrize("stream", [False, True])
def test_the_worker_is_free_while_a_guard_thinks(service: Guard, stream: bool) -> None:
    service.held.clear()
    with Stack(config=config_of(service, before=False, after="whole", timeout_s=30)) as stack:
        replies: list[httpx.Response] = []
        body = chat(scripted(text=TEXT), stream=stream)
        asking = threading.Thread(target=lambda: replies.append(httpx.post(stack.url + PATH, json=body, timeout=30)))
        asking.start()
        until(lambda: bool(service.asked))
        (worker,) = stack.gateway.deployment.pools["m"].workers
        until(lambda: worker.in_flight == 0)
        assert not replies
        service.held.set()
        asking.join(30)
        whole = None if stream else replies[0].json()["choices"][0]["message"]["content"]
        assert (whole or text_of(replies[0].content)) == TEXT
        record = stack.record()
        assert record["guard_ms"] > 0
        assert record["duration_ms"] >= record["guard_ms"] + record["overhead_ms"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_ends_the_wait_for_a_guard(service: Guard, stream: bool) -> None:
    service.held.clear()
    config = {**config_of(service, before=False, after="whole", timeout_s=30), "deadlines": {"total_s": 0.5}}
    with Stack(config=config) as stack:
        reply = httpx.post(stack.url + PATH, json=chat("hi", stream=stream), timeout=30)
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")


@pytest.mark.feature("stored")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ends", ["left", "late"])
def test_what_no_guard_has_allowed_is_not_stored(service: Guard, ends: str, stream: bool) -> None:
    service.held.clear()
    config = {**config_of(service, before=False, after="whole", timeout_s=30), "store": {"where": "memory"}}
    body = {"model": "m", "input": "hi", "stream": stream}
    with Stack(config={**config, "deadlines": {"total_s": 0.5 if ends == "late" else 30}}) as stack:
        if ends == "late":
            assert httpx.post(stack.url + "/v1/responses", json=body, timeout=30).status_code == 504
        else:
            with raw_request(stack, body, "/v1/responses"):
                until(lambda: bool(service.asked))
        until(lambda: not stack.gateway.deployment.runtime.active.requests)
        assert stack.record()["outcome"] == ("failed" if ends == "late" else "cancelled")
        assert not stack.service("stored")._texts  # no client knows their ids


def test_a_second_worker_asks_no_guard_again(service: Guard) -> None:
    models = {"m": {"hedge_s": 0.01, "policy": "round_robin"}}
    config = {**config_of(service, after="whole"), "models": models, "retry": {"min_per_second": 100}}
    with Stack(({"fault": "stall:0.3@before"}, {}), config=config) as stack:
        for _ in range(2):
            assert httpx.post(stack.url + "/v1/embeddings", json={"model": "m", "input": "hi"}).status_code == 200
        assert max(record["attempts"] for record in stack.records()) == 2
        assert [one["stage"] for one in service.asked] == ["before", "before"]


def test_a_client_gets_keep_alives_meanwhile(service: Guard) -> None:
    service.held.clear()
    service.decide = refusing(SECRET)
    config = {**config_of(service, before=False, after="whole", timeout_s=30), "relay": {"keepalive_s": 0.05}}
    with Stack(config=config) as stack:
        body = chat(scripted(text=TEXT), stream=True)
        received = b""
        with (
            contextlib.suppress(httpx.RemoteProtocolError),
            httpx.stream("POST", stack.url + PATH, json=body, timeout=30) as reply,
        ):
            for block in reply.iter_raw():
                received += block
                if received.count(b"\n\n") > 3:
                    service.held.set()
        assert reply.status_code == 200
        assert b"not here" in received
        assert SECRET.encode() not in received
        assert stack.record()["outcome"] == "refused"


def test_no_keep_alive_overtakes_what_was_allowed(service: Guard) -> None:
    """The worker's stream is over before the guard has answered about its first window."""

    def decide(question: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.25)
        return ALLOW

    service.decide = decide
    windows = {"after": "windows", "window_chars": 20, "overlap_chars": 0}
    config = {**config_of(service, before=False, **windows), "relay": {"keepalive_s": 0.1}}
    with Stack(config=config) as stack:
        body = {"model": "m", "input": "sim:" + json.dumps({"text": TEXT}), "stream": True}
        reply = httpx.post(stack.url + "/v1/responses", json=body, timeout=30)
    events = frames(reply.text)
    assert "".join(event["delta"] for event in events if event["type"].endswith("text.delta")) == TEXT
    assert kinds(events)[:3] == ["created", "in_progress", "in_progress"]


@pytest.mark.parametrize("after", AFTERS)
def test_a_stream_that_goes_on_elsewhere_is_shown_once(service: Guard, after: str) -> None:
    """Text of a worker that died is not shown twice, and no text is missing."""
    shown: list[str] = []
    service.decide = lambda question: shown.extend(one["text"] for one in question["texts"]) or ALLOW  # type: ignore[func-returns-value]
    options: dict[str, Any] = {"before": False, "after": after}
    if after == "windows":
        options |= {"window_chars": 20, "overlap_chars": 0}
    config = {
        **config_of(service, **options),
        "models": {"m": {"policy": "round_robin"}},
        "retry": {"min_per_second": 100},
        "breaker": {"failures": 1000},
    }
    with Stack(({"itl_ms": 2}, {"itl_ms": 2}), config=config) as stack:
        for place in (1, 4, 9):
            shown.clear()
            for sim in stack.sims:
                sim.fault("")
            stack.sims[0].fault(f"reset@{place}", 1)
            stream = posted(stack, PATH, chat(scripted(text=TEXT), stream=True, max_tokens=1000))
            assert text_of(stream) == TEXT
            assert "".join(shown).endswith(TEXT)  # what nobody has seen may be made anew
            assert len("".join(shown)) < len(TEXT) + 60
            assert stack.record()["outcome"] == "ok"
        assert any(record["attempts"] == 2 for record in stack.records())
