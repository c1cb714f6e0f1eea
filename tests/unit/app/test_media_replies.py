"""Replies about media: what whole is, what is cut, and what a worker that fails leads to."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
import pytest

from gateway.wire import sse
from tests.support.harness import Stack, sse_data, until
from tests.unit.app.hearing import ASKED, DRAW, SPEECH, VLLM, config, events, gateway, send
from tests.unit.app.media import EVENTS, TRANSCRIBE, TYPE, Asked, Worker, answer, begin, cut, end, scripted, sound
from tests.unit.kernel.asking import plain_asgi, read_whole


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TRANSCRIBE, b"{}"),
        (TRANSCRIBE, b"[]"),
        (TRANSCRIBE, b'{"text":"x","duration":-5}'),
        (TRANSCRIBE, b'{"text":"x","usage":{"type":"duration","seconds":1e300}}'),
        (TRANSCRIBE, b"no JSON"),
        (TRANSCRIBE, b'{"text":null}'),
        (TRANSCRIBE, b'{"error":{"message":"out of memory","type":"x","code":500}}'),
        (DRAW, b"{}"),
        (DRAW, b'{"data":[]}'),
        (DRAW, b'{"data":null}'),
        (SPEECH, b'{"error":{"message":"x"}}'),
    ],
)
def test_a_200_without_what_was_asked_for_is_a_failure(path: str, body: bytes) -> None:
    with scripted(lambda worker, asked, handler: answer(handler, body)) as worker, gateway(worker) as stack:
        asked = {"model": "m", "prompt": "a cat", "input": "hello"}
        got = send(stack, sound()) if path == TRANSCRIBE else httpx.post(stack.url + path, json=asked)
        assert got.status_code == 502
        assert stack.record()["outcome"] == "failed"


def test_a_text_passes_as_it_is() -> None:
    def script(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
        answer(handler, "WEBVTT\n\ngrüezi\n".encode(), "text/vtt")

    with scripted(script) as worker, gateway(worker) as stack:
        got = send(stack, sound(response_format="vtt"))
        assert (got.text, got.headers["content-type"]) == ("WEBVTT\n\ngrüezi\n", "text/vtt")


def test_json_of_vllm_is_the_text_that_was_asked_for() -> None:
    def script(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
        answer(handler, b'{"text":" gr\\u00fcezi","usage":{"type":"duration","seconds":4}}', "application/json")

    with scripted(script) as worker, gateway(worker) as stack:
        got = send(stack, sound(response_format="text"))
        assert (got.text, got.headers["content-type"]) == (" grüezi\n", "text/plain; charset=utf-8")
        assert stack.record()["usage"]["audio_s"] == 4


def test_chunks_of_vllm_are_events_of_openais_too() -> None:
    def script(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
        assert ("stream", "true") in asked.fields
        begin(handler, EVENTS, events(*VLLM, done=True))
        end(handler)

    with scripted(script) as worker, gateway(worker, aliases=["alias"]) as stack:
        got = send(stack, sound(model="alias", stream="true", stream_include_usage="true"))
        *whole, done = sse_data(got.content)
        assert done == b"[DONE]"
        found = [json.loads(one) for one in whole]
        assert [one["type"] for one in found if "type" in one] == [
            *["transcript.text.delta"] * 2,
            "transcript.text.done",
        ]
        assert [one["choices"][0]["delta"]["content"] for one in found if one["choices"]] == ["one", " two"]
        assert found[-1]["text"] == "one two"
        assert found[-1]["usage"] == {"type": "tokens", "input_tokens": 9, "output_tokens": 2, "total_tokens": 11}
        assert {one.get("model", "alias") for one in found} == {"alias"}
        usage = stack.record()["usage"]
        assert (usage["input"], usage["output"], usage["source"]) == (9, 2, "engine")


def test_a_server_may_answer_whole_although_a_stream_was_asked_for(hearing: tuple[Stack, Worker]) -> None:
    stack, _ = hearing
    got = send(stack, sound(stream="true"))
    assert (got.status_code, got.json()["text"]) == (200, "hello there")


_TWO = {
    "created": 1,
    "size": "1x1",
    "data": [{"b64_json": "eA=="}, {"b64_json": "eQ=="}],
    "usage": {"input_tokens": 3, "output_tokens": 7},
}
_EACH = {"type": "image_generation.completed", "created_at": 1, "size": "1x1"}
_HEARD = {"type": "transcript.text.done", "text": "hello\nthere"}
_HELLO = json.dumps({"text": "hello\nthere"}, indent=1).encode()


@pytest.mark.parametrize("wrap", [lambda app: app, plain_asgi], ids=["direct", "asgi"])
@pytest.mark.parametrize(
    ("path", "members", "reply", "kind", "told"),
    [
        (TRANSCRIBE, {}, _HELLO, "application/json", [_HEARD]),
        (TRANSCRIBE, {"response_format": "text"}, b"hello\nthere", "text/plain", [_HEARD]),
        (
            DRAW,
            {"n": 2},
            json.dumps(_TWO, indent=1).encode(),
            "application/json",
            [{**_EACH, "b64_json": "eA=="}, {**_EACH, "b64_json": "eQ==", "usage": _TWO["usage"]}],
        ),
        (DRAW, {}, b'{"data":["no object"]}', "application/json", None),
    ],
    ids=["json", "text", "images", "neither"],
)
def test_a_whole_reply_behind_a_keep_alive_is_the_end_of_the_stream(
    wrap: Callable[[Any], Any], path: str, members: Any, reply: bytes, kind: str, told: Any
) -> None:
    def script(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
        time.sleep(0.4)
        answer(handler, reply, kind)

    more = {"relay": {"keepalive_s": 0.1}}
    with scripted(script) as worker, Stack((), {**config(worker), **more}, wrap=wrap) as stack:
        form = path == TRANSCRIBE
        content = sound(stream="true", **members) if form else json.dumps({**ASKED, "stream": True, **members})
        got = raw_reply(stack, path, content if isinstance(content, bytes) else content.encode(), form)
        head, _, body = got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1" not in body
        frames = sse.Reader().feed(unchunked(body, whole=told is not None))
        said = [json.loads(one.data) for one in frames if not one.silent]
        assert said == told if told is not None else "error" in said[-1]
        record = stack.record()
        assert (record["outcome"], record["status"]) == ("ok" if told is not None else "failed", 200)
        assert not stack.events("bug")
        if told is not None:
            assert record["usage"]["output"] > 0


def raw_reply(stack: Stack, path: str, content: bytes, form: bool) -> bytes:
    """All bytes of the reply, as they came."""
    kind = TYPE["content-type"] if form else "application/json"
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: {kind}\r\n"
    client = socket.create_connection(("127.0.0.1", int(stack.url.rsplit(":", 1)[1])))
    client.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    return read_whole(client)


def unchunked(body: bytes, whole: bool) -> bytes:
    """The content of a chunked body, to its end if it is `whole`."""
    content = b""
    while body or whole:
        size, _, body = body.partition(b"\r\n")
        if not int(size, 16):
            assert body == b"\r\n"
            return content
        content, body = content + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return content


OPENAI = [
    {"type": "transcript.text.delta", "delta": "one"},
    {"type": "transcript.text.done", "text": "one", "usage": {"type": "tokens", "input_tokens": 5, "output_tokens": 1}},
]

DRAWN = [
    {"type": "image_generation.partial_image", "b64_json": "eA=="},
    {"type": "image_generation.completed", "b64_json": "eA==", "usage": {"input_tokens": 3, "output_tokens": 7}},
]


@pytest.mark.parametrize(("path", "wire"), [(TRANSCRIBE, OPENAI), (DRAW, DRAWN)])
def test_a_stream_is_whole_by_its_last_event(path: str, wire: list[Any]) -> None:
    """Whole, then cut before it, then with an error in its place."""
    failure = {"error": {"message": "it broke", "type": "server_error", "code": 500}}
    opening = wire[:1]
    ways = {
        "whole": (wire, True),
        "cut": (opening, False),
        "ended": (opening, True),
        "error": ([*opening, failure], True),
    }

    def script(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
        sent, ends = ways[asked.headers["x-request-id"].split("-")[0]]
        begin(handler, EVENTS, events(*opening))
        assert seen.wait(20)
        for one in sent[1:]:
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(events(one)), events(one)))
        if ends:
            end(handler)
        else:
            cut(handler)

    seen = threading.Event()
    with scripted(script) as worker, gateway(worker, more={"retry": {"attempts": 1}}) as stack:
        for way in ways:
            seen.clear()
            body = b""
            kind = TYPE if path == TRANSCRIBE else {}
            content = sound(stream="true") if path == TRANSCRIBE else json.dumps({**ASKED, "stream": True}).encode()
            headers = {**kind, "x-request-id": way}
            try:
                with httpx.stream("POST", stack.url + path, content=content, headers=headers) as got:
                    for block in got.iter_raw():
                        body += block
                        seen.set()
            except httpx.RemoteProtocolError:
                assert way != "whole"
            found = [json.loads(one.removeprefix(b"data: ")) for one in body.split(b"\n\n") if one.startswith(b"data:")]
            assert found[0] == wire[0]
            if way == "whole":
                assert found == wire
            else:
                assert "error" in found[-1]
            until(partial(lambda expected: stack.record()["id"] == expected, way))
            assert stack.record()["outcome"] == ("ok" if way == "whole" else "failed")
        assert stack.records()[0]["usage"]["output"] in (1, 7)


@pytest.mark.parametrize("ends", ["cut", "silence"])
@pytest.mark.parametrize(("path", "wire"), [(TRANSCRIBE, OPENAI), (DRAW, DRAWN)])
def test_a_reply_whose_last_event_came_is_whole(path: str, wire: list[Any], ends: str) -> None:
    def script(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
        begin(handler, EVENTS, events(*wire))
        if ends == "cut":
            cut(handler)
        else:
            worker.hold(handler)

    with scripted(script) as worker, gateway(worker) as stack:
        kind = TYPE if path == TRANSCRIBE else {}
        content = sound(stream="true") if path == TRANSCRIBE else json.dumps({**ASKED, "stream": True}).encode()
        got = httpx.post(stack.url + path, content=content, headers=kind, timeout=10)
        assert got.content == events(*wire)
        assert stack.record()["outcome"] == "ok"


def test_sound_passes_as_it_is_made() -> None:
    first, more = threading.Event(), threading.Event()

    def script(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
        assert json.loads(asked.body)["model"] == "sim"
        begin(handler, "audio/mpeg", b"ID3 one")
        assert first.wait(20)
        handler.wfile.write(b"4\r\n two\r\n")
        end(handler)
        more.set()

    with scripted(script) as worker, gateway(worker) as stack:
        with httpx.stream("POST", stack.url + SPEECH, json={"model": "m", "input": "hello", "voice": "v"}) as got:
            blocks = got.iter_raw()
            assert (got.headers["content-type"], next(blocks)) == ("audio/mpeg", b"ID3 one")
            first.set()
            assert b"".join(blocks) == b" two"
        assert stack.record()["time_to_first_token_ms"] is not None


@pytest.mark.parametrize("empty", [True, False])
def test_sound_that_breaks_off_is_cut(empty: bool) -> None:
    told_ = threading.Event()

    def script(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
        begin(handler, "audio/wav", *([] if empty else [b"RIFF"]))
        assert empty or told_.wait(20)
        if empty:
            end(handler)
        else:
            cut(handler)

    with scripted(script) as worker, gateway(worker) as stack:
        if empty:
            assert httpx.post(stack.url + SPEECH, json=ASKED).status_code == 502
        else:
            with httpx.stream("POST", stack.url + SPEECH, json=ASKED) as got:
                blocks = got.iter_raw()
                assert next(blocks) == b"RIFF"
                told_.set()
                with pytest.raises(httpx.RemoteProtocolError):
                    list(blocks)
        assert stack.record()["outcome"] == "failed"


def test_sound_without_a_length_may_be_cut_unseen_and_is_refused() -> None:
    def script(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
        answer(handler, b"RIFF", "audio/wav", length=False)
        cut(handler)

    with scripted(script) as worker, gateway(worker) as stack:
        assert httpx.post(stack.url + SPEECH, json=ASKED).status_code == 502
