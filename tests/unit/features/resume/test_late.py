"""Replies whose first token is late: another worker is asked, if one is there."""

from __future__ import annotations

import contextlib
import threading
import time
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
import pytest

from tests.support.harness import PROBED, Stack, until
from tests.unit.app.hearing import DRAW, SPEECH, gateway, send
from tests.unit.app.media import TRANSCRIBE, Asked, Worker, answer, sound
from tests.unit.app.media import scripted as scripted_worker
from tests.unit.features.resume.broken import TEXT, Streaming, posted, text_of
from tests.unit.kernel.asking import PATH, chat, scripted


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


def _slow(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
    time.sleep(0.5)
    with contextlib.suppress(OSError):  # the gateway has left
        if asked.path == SPEECH:
            answer(handler, b"sound", "audio/mpeg")
        else:
            answer(handler, b'{"text":"hello","data":[{"b64_json":"eA=="}]}')


@pytest.mark.feature("media")
@pytest.mark.parametrize("path", [DRAW, SPEECH, TRANSCRIBE])
@pytest.mark.parametrize(("bound", "attempts"), [("first_token_s", 1), ("unstreamed_s", 2)])
def test_sound_and_images_are_generated(path: str, bound: str, attempts: int) -> None:
    deadlines = {bound: 0.1}
    with scripted_worker(_slow) as one, scripted_worker(_slow) as two, gateway(one, two, deadlines=deadlines) as stack:
        asked = {"model": "m", "prompt": "a cat", "input": "hello"}
        got = send(stack, sound()) if path == TRANSCRIBE else httpx.post(stack.url + path, json=asked, timeout=30)
        assert got.status_code == 200
        record = stack.record()
        assert (record["attempts"], record["moved"]) == (attempts, ["late"] * (attempts - 1))


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


@pytest.mark.parametrize("what", ["a fallback", "a hedged request"])
def test_what_was_asked_beside_its_workers_is_no_attempt_of_a_late_request(what: str) -> None:
    late = {"policy": "round_robin", "deadlines": {"first_token_s": 0.4}}
    with Stack(({}, {}, {})) as other:
        urls = [sim.url for sim in other.sims]
        for sim in other.sims[:2]:
            sim.fault("stall:1.5@before", 1)
        n = {"backend": "vllm", "upstream_model": "sim", "workers": urls, **late}
        models = {"m": {"fallback": ["n"]}, "n": {**n, "hedge_s": 0.1} if what == "a hedged request" else n}
        with Stack(config={"models": models, "retry": {"attempts": 2, "min_per_second": 100}}) as stack:
            path, body = PATH, chat(scripted(text=TEXT), stream=True)
            if what == "a hedged request":
                path, body = "/v1/embeddings", {"model": "n", "input": "hi"}
            stack.sim.fault("status:503")
            assert httpx.post(stack.url + path, json=body, timeout=30).status_code == 200
            assert (stack.record()["model"], stack.record()["moved"]) == ("n", ["late"])


KEY = "k-narrow"
OUT_OF_REACH = ["the key may not use it", "it is that of a fallback"]


def out_of_reach(why: str, url: str, away: str, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """(a configuration whose model `m`, with these options, has a fallback that is ready, at `url`, and that the
    request is not sent to; the members of the request)."""
    served = {"backend": "vllm", "upstream_model": "sim"}
    models = {
        "a": {**served, "workers": [away], "fallback": ["m"]},
        "m": {"fallback": ["n"], **options},
        "n": {**served, "workers": [url]},
    }
    if why == OUT_OF_REACH[1]:
        return {"models": models}, {"model": "a"}
    key = {"hash": f"sha256:{sha256(KEY.encode()).hexdigest()}", "models": ["m"]}
    return {"models": models, "keys": {"k": key}}, {"model": "m"}


@pytest.mark.parametrize("why", OUT_OF_REACH)
def test_a_late_first_token_is_waited_for_if_no_fallback_is_left(why: str) -> None:
    with Stack(({}, {})) as other:
        url, away = (sim.url for sim in other.sims)
        other.sims[1].fault("status:503")
        config, members = out_of_reach(why, url, away, deadlines={"first_token_s": 0.1})
        with Stack(config=config) as stack:
            stack.sim.fault("stall:0.4@before", 1)
            body = {**chat(scripted(text=TEXT), stream=True), **members}
            reply = httpx.post(stack.url + PATH, json=body, headers={"authorization": f"Bearer {KEY}"}, timeout=30)
            assert text_of(reply.content) == TEXT
            assert (stack.record()["model"], stack.record()["moved"]) == ("m", [])


@pytest.mark.parametrize("why", OUT_OF_REACH)
def test_a_worker_that_returns_is_waited_for_if_no_fallback_is_left(why: str) -> None:
    with Stack(({}, {})) as other:
        url, away = (sim.url for sim in other.sims)
        other.sims[1].fault("status:503")
        config, members = out_of_reach(why, url, away)
        with Stack(config={**config, **PROBED, "retry": {"wait_s": 60}}) as stack:
            stack.sim.fault("die@before", 1)
            body = {**chat(scripted(text=TEXT)), **members}
            replies: list[httpx.Response] = []

            def ask() -> None:
                headers = {"authorization": f"Bearer {KEY}"}
                replies.append(httpx.post(stack.url + PATH, json=body, headers=headers, timeout=30))

            asking = threading.Thread(target=ask)
            asking.start()
            pool = stack.gateway.deployment.pools["m"]
            until(lambda: bool(replies) or (not pool.ready and pool.waiting == 1))
            stack.sim.fault("")
            stack.run(stack.sim.start())
            asking.join(30)
            assert [reply.status_code for reply in replies] == [200]
            assert stack.record()["model"] == "m"


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
