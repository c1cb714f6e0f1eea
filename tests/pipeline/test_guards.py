"""Guards: what they are shown, what becomes of their answers, in every dialect, streamed or not."""

from __future__ import annotations

import contextlib
import gc
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.pipeline.guards import _Replace
from tests.app.media import Asked, Worker, answer
from tests.app.media import scripted as scripted_worker
from tests.clients import DIALECTS, WAYS, Way
from tests.harness import Stack, until
from tests.pipeline.test_going_on import heard, posted, text_of
from tests.pipeline.test_pump import PATH, chat, plain_asgi, raw_request, scripted
from tests.pipeline.test_server_tools import FETCH, SEARCH, asked, call, post
from tests.ports import free_port
from tests.sampled import of_dialect, sampled
from tests.standins.guard import ALLOW, Guard, guard
from tests.standins.web import web

SECRET = "4711-secret"
USUAL = list({(way.dialect, way.operation, *way.example.streams): way for way in WAYS}.values())
"""One way for each dialect, operation and form of the reply: the others share their code."""
MEDIA = ("speak", "draw")
SHOWN = [way for way in USUAL if way.operation in ("chat", "complete", "embed", "score", "rerank", *MEDIA)]
WHOLE = [way for way in USUAL if way.operation in ("chat", "complete") and way.example.streams in ("asked", "never")]
WHOLE = [way for way in WHOLE if way.example.route != "compact"]  # its reply repeats the request
STREAMED = [way for way in USUAL if way.operation in ("chat", "complete") and way.answers(stream=True)]
AFTERS = ("whole", "windows")
REFUSED = (400, 422)
"""The status of a refusal; TGI's own is the second."""


@pytest.fixture
def service() -> Iterator[Guard]:
    with guard() as running:
        yield running


@pytest.fixture(scope="module", params=["direct", "asgi"])
def guarded(request: pytest.FixtureRequest) -> Iterator[tuple[Stack, Guard]]:
    """Model `m` is guarded on the way to its workers, `whole` and `windows` on the way back, `free` not at all."""
    wrap = plain_asgi if request.param == "asgi" else lambda app: app
    with guard() as running, Stack(({"itl_ms": 3},), wrap=wrap) as stack:
        model = {"backend": "vllm", "upstream_model": "sim", "workers": [stack.sim.url]}
        guards: dict[str, Any] = {"in": {"url": running.url, "models": ["m"]}}
        for after in AFTERS:
            guards[after] = {"url": running.url, "models": [after], "after": after, "before": False}
        guards["windows"] |= {"window_chars": 20, "overlap_chars": 6}
        models = dict.fromkeys(("m", "free", *AFTERS), model)
        stack.run(stack.gateway.reload(stack.config({"guards": guards, "models": models})))
        yield stack, running


@pytest.fixture
def fresh(guarded: tuple[Stack, Guard]) -> tuple[Stack, Guard]:
    stack, running = guarded
    running.asked.clear()
    running.decide = lambda question: ALLOW
    return stack, running


def config_of(service: Guard, **options: Any) -> dict[str, Any]:
    return {"guards": {"g": {"url": service.url, **options}}}


def send(stack: Stack, way: Way, model: str, text: str, *, stream: bool = False, **members: Any) -> httpx.Response:
    body = {"model": model, **way.body(text, stream=stream, **members)}
    return httpx.post(stack.url + way.path(model), json=body, timeout=30)


def sent(stack: Stack) -> str:
    """The last request that the worker got, without a seed that the gateway has drawn."""
    return re.sub(r'"seed":\d+', '"seed":0', all_sent(stack)[-1])


def all_sent(stack: Stack) -> list[str]:
    return [entry.body.decode() for entry in stack.sim.ledger.entries if entry.body]


def masking(question: dict[str, Any]) -> dict[str, Any]:
    return {"action": "replace", "texts": [shown["text"].replace(SECRET, "****") for shown in question["texts"]]}


def refusing(word: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def decide(question: dict[str, Any]) -> dict[str, Any]:
        found = any(word in shown["text"] for shown in question["texts"])
        return {"action": "refuse", "reason": "not here"} if found else ALLOW

    return decide


# -- requests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", sampled(SHOWN, 3, of_dialect), ids=str)
def test_a_guard_sees_the_text_and_a_worker_the_one_that_replaces_it(fresh: tuple[Stack, Guard], way: Way) -> None:
    stack, running = fresh
    stream = not way.answers(stream=False)
    send(stack, way, "free", f"tell {SECRET} now", stream=stream)
    plain = sent(stack)
    allowed = send(stack, way, "m", f"tell {SECRET} now", stream=stream)
    assert sent(stack) == plain  # to allow changes no byte
    (question,) = running.asked
    assert (question["stage"], question["guard"], question["model"], question["dialect"]) == (
        "before", "in", "m", way.dialect,
    )  # fmt: skip
    assert any(SECRET in shown["text"] for shown in question["texts"])
    running.decide = masking
    replaced = send(stack, way, "m", f"tell {SECRET} now", stream=stream)
    served = 400 if way.operation in MEDIA else 200  # the tests' worker neither speaks nor draws
    assert (allowed.status_code, replaced.status_code) == (served, served), replaced.text
    assert json.loads(sent(stack)) == json.loads(plain.replace(SECRET, "****"))
    record = stack.record()
    assert record["guards"] == ["in before replaced"]
    assert record["guard_ms"] > 0


@pytest.mark.parametrize("way", sampled(SHOWN, 3, of_dialect), ids=str)
def test_a_refusal_is_an_error_of_the_dialect(fresh: tuple[Stack, Guard], way: Way) -> None:
    stack, running = fresh
    running.decide = refusing("now")
    before = len(all_sent(stack))
    reply = send(stack, way, "m", "tell it now", stream=not way.answers(stream=False))
    assert reply.status_code in REFUSED, reply.text
    assert "not here" in reply.text
    assert len(all_sent(stack)) == before
    record = stack.record()
    assert (record["model"], record["outcome"], record["attempts"], record["guards"]) == (
        "m", "refused", 0, ["in before refused"],
    )  # fmt: skip
    assert record["guard_ms"] > 0


def test_all_of_a_conversation_is_shown(fresh: tuple[Stack, Guard]) -> None:
    stack, running = fresh
    tool = {"name": "f", "description": "Finds.", "parameters": {"type": "object"}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    called = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "What?"}, image]},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "1", "content": "found"},
    ]
    body = {"model": "m", "messages": messages, "tools": [{"type": "function", "function": tool}], "user": "u1"}
    httpx.post(stack.url + PATH, json={**body, "documents": [{"text": "d"}]})
    (question,) = running.asked
    assert question["texts"] == [
        {"role": "system", "text": "Be short."},
        {"role": "user", "text": "What?", "name": "ann"},
        {"role": "assistant", "text": '{"x": 1}', "kind": "tool", "name": "f"},
        {"role": "tool", "text": "found"},
        {"role": "tools", "text": "Finds.", "name": "f"},
    ]
    assert question["others"] == ["documents", "image", "schema"]
    assert question["user"] == "u1"
    running.decide = masking
    httpx.post(stack.url + PATH, json=body)
    assert json.loads(sent(stack))["messages"] == messages


def test_a_guard_chooses_a_model(service: Guard) -> None:
    service.decide = lambda question: {"action": "allow", "model": "other"}
    keys = {"all": {"hash": "sha256:" + "0" * 64}, "narrow": {"hash": KEY_HASH, "models": ["m"]}}
    with Stack(({}, {})) as stack:
        model = {"backend": "vllm", "upstream_model": "sim"}
        models = {
            "m": {"workers": [stack.sims[0].url]},
            "other": {**model, "aliases": ["o"], "workers": [stack.sims[1].url]},
        }
        stack.run(stack.gateway.reload(stack.config({"models": models, **config_of(service)})))
        reply = httpx.post(stack.url + PATH, json=chat("hi"))
        assert reply.json()["model"] == "m"
        assert (reply.headers["x-dragoman-model"], reply.headers["x-dragoman-routed"]) == ("other", "chosen")
        record = stack.record()
        assert (record["model"], record["asked"], record["routed"], record["worker"]) == (
            "other", "m", "chosen", stack.sims[1].url,
        )  # fmt: skip
        assert len(service.asked) == 1
        service.decide = lambda question: {"action": "allow", "model": "o"}
        assert httpx.post(stack.url + PATH, json=chat("hi")).headers["x-dragoman-model"] == "other"
        stack.run(stack.gateway.reload(stack.config({"models": models, "keys": keys, **config_of(service)})))
        reply = httpx.post(stack.url + PATH, json=chat("hi"), headers={"authorization": f"Bearer {KEY}"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "guard_unavailable")
        service.decide = lambda question: {"action": "allow", "model": "none"}
        reply = httpx.post(stack.url + PATH, json=chat("hi"), headers={"authorization": f"Bearer {KEY}"})
        assert reply.json()["error"]["code"] == "guard_unavailable"
        assert [line["reason"] for line in stack.events("guard failed")] == ["model", "model"]


KEY = "sk-guards-0123456789abcdef"
KEY_HASH = "sha256:14b704442c5a07bed612658e71a81bd8b8648e71e498ceae7c7d8d737d0499da"


def test_a_guard_is_asked_once_and_its_texts_stay_for_a_fallback(service: Guard) -> None:
    service.decide = masking
    with Stack(config={**config_of(service), "retry": {"min_per_second": 100}}) as stack:
        model = {"backend": "vllm", "upstream_model": "sim"}
        models = {
            "m": {"workers": [f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"], "fallback": ["b"]},
            "b": {**model, "workers": [stack.sim.url]},
        }
        guards = config_of(service)["guards"] | {"b-only": {"url": service.url, "models": ["b"]}}
        stack.run(stack.gateway.reload(stack.config({"models": models, "guards": guards})))
        assert httpx.post(stack.url + PATH, json=chat(f"tell {SECRET}")).status_code == 200
        assert [(one["guard"], one["model"]) for one in service.asked] == [("g", "m"), ("b-only", "b")]
        assert service.texts("before") == [[f"tell {SECRET}"], ["tell ****"]]
        assert "****" in sent(stack)
        assert SECRET not in sent(stack)


def test_keys_and_models_that_a_guard_has_nothing_to_do_with(service: Guard) -> None:
    other = {"hash": "sha256:" + sha256(b"sk-another-0123456789").hexdigest()}
    with Stack() as stack:
        model = {"backend": "vllm", "upstream_model": "sim", "workers": [stack.sim.url]}
        config = config_of(service, models=["alias"], keys=["one"], after="whole")
        config |= {"keys": {"one": {"hash": KEY_HASH}, "two": other}, "models": {"free": model}}
        stack.run(stack.gateway.reload(stack.config(config)))
        for key, name in ((KEY, "free"), ("sk-another-0123456789", "m"), (KEY, "m")):
            assert not service.asked
            body = {**chat("hi"), "model": name}
            reply = httpx.post(stack.url + PATH, json=body, headers={"authorization": f"Bearer {key}"})
            assert reply.status_code == 200
        assert [one["stage"] for one in service.asked] == ["before", "after"]


def test_limits_come_before_guards(service: Guard) -> None:
    limits = [{"name": "few", "kind": "requests", "limit": 2, "scope": ["address"]}]
    with Stack(config={**config_of(service), "limits": limits}) as stack:
        replies = [httpx.post(stack.url + PATH, json=chat("hi")) for _ in range(4)]
        assert [reply.status_code for reply in replies] == [200, 200, 429, 429]
        assert len(service.asked) == 2
        names = [name for name in replies[0].headers if "ratelimit" in name]
        assert len(names) == len(set(names))
        assert replies[1].headers["x-ratelimit-remaining-requests"] == "0"


# -- failures -----------------------------------------------------------------------------------------------------

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
@pytest.mark.parametrize("on_failure", ["closed", "open"])
@pytest.mark.parametrize("after", ["never", *AFTERS])
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
            until(lambda: not any(type(one) is _Replace for one in gc.get_objects()), 5)
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


# -- replies ------------------------------------------------------------------------------------------------------

TEXT = f"Ein naïver Gruß an 漢字, und {SECRET} ist geheim, wie alles 🎉 danach auch."


@pytest.mark.parametrize("way", sampled(STREAMED, 3, of_dialect), ids=str)
def test_a_stream_that_is_allowed_says_what_it_would_say(fresh: tuple[Stack, Guard], way: Way) -> None:
    stack, running = fresh
    prompt = scripted(text=TEXT)
    body = way.body(prompt, stream=True, max_tokens=1000)
    plain = heard(way, posted(stack, way.path("free"), {"model": "free", **body}))
    assert plain
    usage = stack.record()["usage"]
    for after in AFTERS:
        running.asked.clear()
        stream = posted(stack, way.path(after), {"model": after, **body})
        said = heard(way, stream)
        assert [one.choices for one in said] == [one.choices for one in plain], stream
        record = stack.record()
        assert (record["outcome"], record["guards"], record["usage"]) == ("ok", [f"{after} after allowed"], usage)
        windows = [one.get("window") for one in running.asked]
        assert windows == ([None] if after == "whole" else list(range(len(windows))))
        assert [one["last"] for one in running.asked] == [*[False] * (len(running.asked) - 1), True]
        assert len(windows) > 1 or after == "whole"
        assert all(one["stage"] == "after" and one["model"] == after for one in running.asked)


@pytest.mark.parametrize("way", sampled(STREAMED, 3, of_dialect), ids=str)
def test_a_stream_is_masked_across_windows(fresh: tuple[Stack, Guard], way: Way) -> None:
    """However its pieces fall into windows: the secret is not longer than the overlap."""
    stack, running = fresh
    for after in AFTERS:
        for before in range(0, 24, 5):
            text = "x" * before + f" {SECRET[:6]} and 1234 are secret, as are the others"
            running.decide = lambda question: {
                "action": "replace",
                "texts": [shown["text"].replace(SECRET[:6], "******") for shown in question["texts"]],
            }
            body = way.body(scripted(text=text), stream=True, max_tokens=1000)
            stream = posted(stack, way.path(after), {"model": after, **body})
            (said, *_) = heard(way, stream)
            assert SECRET[:6].encode() not in stream
            assert text.replace(SECRET[:6], "******") in json.dumps(said.choices, ensure_ascii=False, default=str)
            assert stack.record()["outcome"] == "ok"


@pytest.mark.parametrize("way", sampled(WHOLE, 3, of_dialect), ids=str)
def test_a_whole_reply(fresh: tuple[Stack, Guard], way: Way) -> None:
    stack, running = fresh
    for after in AFTERS:
        running.decide = lambda question: ALLOW
        allowed = send(stack, way, after, scripted(text=TEXT), max_tokens=1000)
        plain = send(stack, way, "free", scripted(text=TEXT), max_tokens=1000)
        if DIALECTS[way.dialect].passthrough:  # without a guard the worker's own body
            reply = allowed.json() | {"model": "free"}
            assert _within(reply, plain.json() | {name: reply[name] for name in ("id", "created")}), reply
        else:
            assert _same(allowed.text, after) == _same(plain.text, "free")
        running.decide = masking
        masked = send(stack, way, after, scripted(text=TEXT), max_tokens=1000)
        assert masked.status_code == 200
        assert SECRET not in masked.text
        assert "****" in masked.text
        running.decide = refusing(SECRET)
        refused = send(stack, way, after, scripted(text=TEXT), max_tokens=1000)
        assert refused.status_code in REFUSED
        assert "not here" in refused.text
        assert SECRET not in refused.text
        record = stack.record()
        assert (record["outcome"], record["guards"], record["attempts"]) == ("refused", [f"{after} after refused"], 1)
        assert record["usage"]["output"] > 0  # the worker has made it


UNSEEN: dict[str, Any] = {"note": SECRET, "audio": {"id": "a", "data": "", "expires_at": 1, "transcript": SECRET}}
UNSEEN["annotations"] = [{"type": "url_citation", "url_citation": {"title": SECRET, "url": "x"}}]
CUSTOM = {"id": "c", "type": "custom", "custom": {"name": "f", "input": SECRET}}


def _unseen(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
    """A reply with texts for which there is no canonical form."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "logprobs": None, "note": SECRET}
    if asked.path == PATH:
        choice["message"] = {"role": "assistant", "content": "Hello.", "tool_calls": [CUSTOM], **UNSEEN}
    else:
        choice["text"] = "Hello."
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "note": SECRET}
    kind = "chat.completion" if asked.path == PATH else "text_completion"
    body = {"id": "x", "object": kind, "created": 1, "model": "sim", "choices": [choice], "usage": usage}
    answer(handler, json.dumps({**body, "note": SECRET}).encode())


def test_a_client_gets_nothing_that_its_guard_was_not_shown(service: Guard) -> None:
    with scripted_worker(_unseen) as worker:
        model = {"backend": "vllm", "upstream_model": "sim", "workers": [worker.url]}
        config = {"models": {"m": model}, **config_of(service, before=False, after="whole")}
        with Stack((), config) as stack:
            for way in WHOLE:
                reply = send(stack, way, "m", "hi")
                assert "Hello." in json.dumps(service.asked[-1]["texts"]), (str(way), reply.text)
                assert "Hello." in reply.text, (str(way), reply.text)
                assert SECRET not in reply.text, (str(way), reply.text)
                assert stack.record()["usage"]["output"] == 2


def test_the_texts_of_an_upload_are_shown(service: Guard) -> None:
    """And replaced in the worker's upload, once, after the limits that count it."""
    drawn = b'{"created":1,"data":[{"b64_json":"eA=="}]}'
    service.decide = masking
    limits = [{"name": "all", "kind": "requests", "limit": 3, "per_s": 3600}]
    with scripted_worker(lambda worker, asked, handler: answer(handler, drawn)) as worker:
        model = {"backend": "vllm", "upstream_model": "sim", "workers": [worker.url]}
        with Stack((), {"models": {"m": model}, "limits": limits, **config_of(service)}) as stack:
            for _ in range(2):
                form = {"model": "m", "prompt": f"a {SECRET}", "size": SECRET}
                sent = httpx.post(stack.url + "/v1/images/edits", data=form, files={"image": ("a.png", b"x")})
                assert sent.status_code == 200, sent.text
                fields = dict(worker.asked[-1].fields)
                assert (fields["prompt"], fields["size"]) == ("a ****", SECRET)
            said = {"model": "m", "input": SECRET, "voice": "v", "instructions": f"as {SECRET}"}
            httpx.post(stack.url + "/v1/audio/speech", json=said)
            told = json.loads(worker.asked[-1].body)
            assert told == {"model": "sim", "input": "****", "voice": "v", "instructions": "as ****"}
    shown = [[(one["role"], one["text"]) for one in question["texts"]] for question in service.asked]
    assert shown == [[("prompt", f"a {SECRET}")]] * 2 + [[("input", SECRET), ("instructions", f"as {SECRET}")]]
    assert [question.get("others") for question in service.asked] == [["image"], ["image"], []]


def _within(small: Any, large: Any) -> bool:
    """Whether all of `small` is in `large` at its place."""
    if isinstance(small, dict):
        return isinstance(large, dict) and all(_within(value, large.get(name)) for name, value in small.items())
    if isinstance(small, list):
        return len(small) == len(large) and all(map(_within, small, large))
    return bool(small == large)


def _same(body: str, model: str) -> str:
    """Without what differs between two requests: ids, times and the model."""
    names = r"\w*[iI]d|created\w*|completed_at|\w*duration|seed"
    body = re.sub(rf'"({names})":\s*("[^"]*"|\d+)', "", body)
    return re.sub(r"(msg|resp|chatcmpl|cmpl|rs|fc)[-_]\w+", "", body).replace(f'"{model}"', '"MODEL"')


@pytest.mark.parametrize("way", sampled(STREAMED, 3, of_dialect), ids=str)
def test_a_refusal_before_anything_was_shown_has_its_status(fresh: tuple[Stack, Guard], way: Way) -> None:
    stack, running = fresh
    running.decide = refusing("naïver")
    for after in AFTERS:
        body = way.body(scripted(text=TEXT), stream=True, max_tokens=1000)
        reply = httpx.post(stack.url + way.path(after), json={"model": after, **body})
        assert reply.status_code in REFUSED, (after, reply.text)
        assert "not here" in reply.text
        assert "na" not in reply.text.replace("not here", "").replace("name", "")
        record = stack.record()
        assert (record["outcome"], record["status"], record["ttft_ms"]) == ("refused", reply.status_code, None)


@pytest.mark.parametrize("way", sampled(STREAMED, 3, of_dialect), ids=str)
def test_a_refusal_in_a_stream_takes_nothing_back(fresh: tuple[Stack, Guard], way: Way) -> None:
    stack, running = fresh
    running.decide = refusing("danach")
    body = way.body(scripted(text=TEXT), stream=True, max_tokens=1000)
    stream = posted(stack, way.path("windows"), {"model": "windows", **body})
    assert b"not here" in stream
    assert "naïver".encode() in stream or b"na\\u00efver" in stream or b"na" in stream
    assert b"danach" not in stream
    assert heard(way, stream) == []
    record = stack.record()
    assert (record["outcome"], record["status"], record["code"]) == ("refused", 200, record["code"])
    assert record["guards"] == ["windows after allowed", "windows after refused"]
    assert stack.gateway.deployment.pools["windows"].workers[0].in_flight == 0


def test_thinking_and_calls_are_shown_in_their_kinds(fresh: tuple[Stack, Guard]) -> None:
    stack, running = fresh
    prompt = scripted(reasoning="Hm, well.", text="Hello.", tool_calls=[{"name": "f", "arguments": {"x": "y"}}])
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    for stream in (False, True):
        running.asked.clear()
        body = chat(prompt, tools=[tool], stream=stream) | {"model": "whole"}
        assert httpx.post(stack.url + PATH, json=body).status_code == 200
        (question,) = running.asked
        kinds = [(shown.get("kind", "text"), shown.get("name"), shown["text"]) for shown in question["texts"]]
        assert ("text", None, "Hello.") in kinds
        assert json.loads(next(text for kind, name, text in kinds if (kind, name) == ("tool", "f"))) == {"x": "y"}


@pytest.mark.parametrize("after", AFTERS)
def test_a_call_without_arguments_is_refused_by_its_name(fresh: tuple[Stack, Guard], after: str) -> None:
    """Streamed or not: a guard that allows no call of `wipe` lets none through, though it has no text."""
    stack, running = fresh
    running.decide = lambda question: (
        {"action": "refuse", "reason": "no wiping"} if "wipe" in json.dumps(question["texts"]) else ALLOW
    )
    tool = {"type": "function", "function": {"name": "wipe", "parameters": {"type": "object"}}}
    for text in ("", "Now."):
        for stream in (False, True):
            body = chat(scripted(text=text, tool_calls=[{"name": "wipe"}]), tools=[tool], stream=stream)
            reply = httpx.post(stack.url + PATH, json=body | {"model": after})
            assert (reply.status_code, "no wiping" in reply.text) == (400, True), (text, stream, reply.text)


def test_choices_are_told_apart(fresh: tuple[Stack, Guard]) -> None:
    stack, running = fresh
    for stream in (False, True):
        running.asked.clear()
        running.decide = lambda question: {
            "action": "replace",
            "texts": [f"number {shown.get('choice', 0)}" for shown in question["texts"]],
        }
        body = chat("hi", n=2, stream=stream, logprobs=True, max_tokens=5) | {"model": "whole"}
        reply = httpx.post(stack.url + PATH, json=body)
        assert "number 0" in reply.text
        assert "number 1" in reply.text
        assert '"token":' not in reply.text  # those of a text that was replaced


def test_a_reply_is_stored_as_the_client_got_it(service: Guard) -> None:
    with Stack(config={**config_of(service, before=False, after="whole"), "store": {"where": "memory"}}) as stack:
        for stream in (False, True):
            service.decide = masking
            body = {"model": "m", "input": scripted(text=TEXT), "stream": stream}
            reply = httpx.post(stack.url + "/v1/responses", json=body).text
            (name, *_) = re.findall(r'"id":\s?"(resp_[^"]+)"', reply)
            stored = httpx.get(f"{stack.url}/v1/responses/{name}")
            assert stored.status_code == 200
            assert "****" in json.dumps(stored.json()["output"])
            assert SECRET not in json.dumps(stored.json()["output"])
            kept = len(stack.gateway.deployment.runtime.response_store._texts)  # type: ignore[union-attr]
            service.decide = refusing(SECRET)
            assert httpx.post(stack.url + "/v1/responses", json=body).status_code == 400
            stack.records()
            assert len(stack.gateway.deployment.runtime.response_store._texts) == kept  # type: ignore[union-attr]


# -- workers ------------------------------------------------------------------------------------------------------


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
        assert record["ms"] >= record["guard_ms"] + record["overhead_ms"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_ends_the_wait_for_a_guard(service: Guard, stream: bool) -> None:
    service.held.clear()
    config = {**config_of(service, before=False, after="whole", timeout_s=30), "deadlines": {"total_s": 0.5}}
    with Stack(config=config) as stack:
        reply = httpx.post(stack.url + PATH, json=chat("hi", stream=stream), timeout=30)
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")


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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", AFTERS)
def test_rounds_with_tools_of_the_gateway(service: Guard, after: str, stream: bool) -> None:
    service.decide = masking
    with web() as pages:
        tools = {"tools": {"web_search": {"url": pages.url}, "web_fetch": {"allow_networks": ["127.0.0.0/8"]}}}
        with Stack(config={**config_of(service, before=False, after=after), **tools}) as stack:
            rounds = (
                {"text": "Let me look.", "tool_calls": [call("web_search", query="weather")]},
                {"tool_calls": [call("web_fetch", url=f"{pages.url}/page")]},
                {"text": f"It rains, {SECRET}."},
            )
            message = post(stack, asked(*rounds, tools=(SEARCH, FETCH)), stream=stream)
            kinds = [block["type"] for block in message["content"] if block["type"] != "thinking"]
            assert kinds == [
                "text", "server_tool_use", "web_search_tool_result", "server_tool_use", "web_fetch_tool_result", "text",
            ]  # fmt: skip
            assert message["content"][-1]["text"] == "It rains, ****."
            assert message["stop_reason"] == "end_turn"
            service.decide = refusing(SECRET)
            reply = httpx.post(stack.url + "/v1/messages", json={**asked(*rounds), "stream": stream}, timeout=30)
            assert SECRET not in reply.text
            assert "not here" in reply.text
            assert stack.record()["outcome"] == "refused"


# -- what is told to whom -----------------------------------------------------------------------------------------


def test_no_secret_reaches_a_guard_and_none_of_its_own_a_log(service: Guard) -> None:
    own = {"Authorization": "Bearer guards-own-secret-0123456789"}
    config = config_of(service, headers=own, after="whole") | {"log": {"level": "debug"}}
    config["models"] = {"m": {"headers": {"x-worker": "workers-secret"}}}
    with Stack(config=config) as stack:
        headers = {"authorization": f"Bearer {KEY}", "cookie": "c=client-cookie", "x-request-id": "req-7"}
        httpx.post(stack.url + PATH, json=chat("hi"), headers=headers)
        service.decide = lambda question: {"action": "refuse", "reason": f"because of {KEY}"}
        reply = httpx.post(stack.url + PATH, json=chat("hi"), headers=headers)
        assert KEY not in reply.text
        assert service.headers[0]["authorization"] == own["Authorization"]
        said = json.dumps([service.asked, [{**one, "authorization": ""} for one in service.headers]])
        for secret in (KEY, "client-cookie", "workers-secret", stack.sim.url):
            assert secret not in said
        stack.gateway.log.flush()
        page = httpx.get(stack.url + "/metrics").text
        assert "guards-own-secret" not in stack.output.getvalue().decode() + page
        assert 'dragoman_guard_checks_total{guard="g",result="allowed",stage="after"} 1.0' in page
        assert 'dragoman_guard_checks_total{guard="g",result="refused",stage="before"} 1.0' in page
        assert 'dragoman_guard_seconds_count{guard="g",stage="before"} 2.0' in page
        assert [line["result"] for line in stack.events("guard asked")] == ["allowed", "allowed", "refused"]
        assert service.asked[0]["id"] == "req-7"


def test_large_requests_are_shown_too(service: Guard) -> None:
    service.decide = masking
    with Stack(({"max_model_len": 10_000_000},), config=config_of(service, max_bytes="8MiB")) as stack:
        text = f"{SECRET} " * 100_000
        reply = httpx.post(stack.url + PATH, json=chat(text, max_tokens=1), timeout=60)
        assert reply.status_code == 200
        assert SECRET not in sent(stack)
        stack.run(stack.gateway.reload(stack.config(config_of(service, max_bytes="1MiB"))))
        reply = httpx.post(stack.url + PATH, json=chat(text, max_tokens=1), timeout=60)
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "guard_unavailable")
        assert stack.events("guard failed")[-1]["reason"] == "too_large"


def test_the_guard_of_the_page(tmp_path: Path) -> None:
    """The program of docs/guards.md, as it stands there, between a client and a worker."""
    page = (Path(__file__).parents[2] / "docs" / "guards.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(program.splitlines()) <= 50
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-c", program.replace("9000", str(port))], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "guarding\n"
            guards = {"personal-data": {"url": f"http://127.0.0.1:{port}/", "after": "windows"}}
            with Stack(config={"guards": guards}) as stack:
                httpx.post(stack.url + PATH, json=chat("Write to ann@example.com"))
                assert json.loads(sent(stack))["messages"][0]["content"] == "Write to [mail]"
                answer = chat(scripted(text="The address is bob@example.com, I think."), stream=True)
                assert "bob@" not in httpx.post(stack.url + PATH, json=answer).text
                reply = httpx.post(stack.url + PATH, json=chat("this is forbidden"))
                assert reply.json()["error"]["message"] == "this gateway does not talk about that"
        finally:
            process.kill()
