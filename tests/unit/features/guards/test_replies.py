"""What a guard is shown of replies, and what it changes in them."""

from __future__ import annotations

import json
import re
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
import pytest

from tests.support.clients import DIALECTS, Way
from tests.support.harness import Stack
from tests.support.sampled import of_dialect, sampled
from tests.support.standins.guard import ALLOW, Guard
from tests.unit.app.media import Asked, Worker, answer
from tests.unit.app.media import scripted as scripted_worker
from tests.unit.features.guards.asking import AFTERS, REFUSED, SECRET, TEXT, USUAL, config_of, masking, refusing, send
from tests.unit.features.resume.broken import heard, posted
from tests.unit.kernel.asking import PATH, chat, scripted

WHOLE = [way for way in USUAL if way.operation in ("chat", "complete") and way.example.streams in ("asked", "never")]
WHOLE = [way for way in WHOLE if way.example.route != "compact"]  # its reply repeats the request
STREAMED = [way for way in USUAL if way.operation in ("chat", "complete") and way.answers(stream=True)]


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
        assert (record["outcome"], record["status"], record["time_to_first_token_ms"]) == (
            "refused",
            reply.status_code,
            None,
        )


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
