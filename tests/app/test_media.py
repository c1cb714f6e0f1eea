"""Sound and images through a whole gateway: what workers get, what clients get, faults, limits, and attacks."""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config import Listen
from gateway.core.errors import Kind
from gateway.wire import multipart
from gateway.wire.openai.media.fields import FIELDS, FORMS, PATHS
from tests.app.media import (
    EVENTS,
    TRANSCRIBE,
    TYPE,
    Asked,
    Script,
    Worker,
    answer,
    begin,
    cut,
    end,
    part,
    scripted,
    sound,
    text,
    upload,
    wave,
)
from tests.dialects.asking import keyed
from tests.harness import Stack, sse_data, until

SPEECH, DRAW, EDIT = "/v1/audio/speech", "/v1/images/generations", "/v1/images/edits"
LARGE = bytes(range(256)) * 8192  # 2 MiB: in a file
VLLM = [
    {"object": "transcription.chunk", "model": "sim", "choices": [{"delta": {"content": "one"}}]},
    {
        "object": "transcription.chunk",
        "model": "sim",
        "choices": [{"delta": {"content": " two"}, "finish_reason": "stop"}],
    },
    {
        "object": "transcription.chunk",
        "model": "sim",
        "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
    },
]


def events(*bodies: Any, done: bool = False) -> bytes:
    found = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in bodies)
    return found + (b"data: [DONE]\n\n" if done else b"")


def config(*workers: Worker, **model: Any) -> dict[str, Any]:
    listed = [one.url for one in workers]
    return {"models": {"m": {"backend": "vllm", "upstream_model": "sim", "workers": listed, **model}}}


def gateway(*workers: Worker, listen: Listen | None = None, more: Any = None, **model: Any) -> Stack:
    return Stack((), {**config(*workers, **model), **(more or {})}, listen=listen)


def send(stack: Stack, body: bytes, path: str = TRANSCRIBE, **headers: str) -> httpx.Response:
    return httpx.post(stack.url + path, content=body, headers={**TYPE, **headers}, timeout=30)


def told(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


@pytest.fixture(scope="module")
def hearing() -> Iterator[tuple[Stack, Worker]]:
    """A gateway before a worker that transcribes."""
    with scripted(text) as worker, gateway(worker, more={"listen": {"max_body_bytes": 3 << 20}}) as stack:
        yield stack, worker


NAMING = [work for work in PATHS if any(field.name == "safety_identifier" for field in FIELDS[work])]


def test_whoever_is_named_by_a_safety_identifier_is_the_end_user() -> None:
    assert {"draw", "edit"} <= set(NAMING)
    more = {"end_users": {"body": True}}
    with (
        scripted(
            lambda worker, asked, handler: answer(handler, b'{"created":1,"data":[{"b64_json":"eA=="}]}')
        ) as worker,
        gateway(worker, more=more) as stack,
    ):
        for work in NAMING:
            for named in ("ann", "bob"):
                texts = {"model": "m", "prompt": "hi", "user": "bob", "safety_identifier": named}
                if named == "bob":
                    del texts["safety_identifier"]
                if work in FORMS:
                    files = [part(FORMS[work][0], b"image", "a.png")]
                    if work == "vary":
                        del texts["prompt"]
                    got = send(stack, upload(*files, *(part(*one) for one in texts.items())), PATHS[work])
                else:
                    got = httpx.post(stack.url + PATHS[work], json=texts, timeout=30)
                assert got.status_code == 200, got.text
                assert stack.record()["end_user"] == named, work


# -- what a worker gets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"sound", LARGE], ids=["in memory", "in a file"])
def test_the_worker_gets_the_upload_with_its_own_model(hearing: tuple[Stack, Worker], content: bytes) -> None:
    stack, worker = hearing
    got = send(stack, sound(content, language="en", **{"timestamp_granularities[]": "word"}))
    assert got.json()["text"] == "hello there"
    asked = worker.asked[-1]
    assert asked.path == TRANSCRIBE
    assert asked.fields == [("model", "sim"), ("language", "en"), ("timestamp_granularities[]", "word")]
    assert hashlib.sha256(asked.files["file"]).digest() == hashlib.sha256(content).digest()
    assert asked.names == {"file": "a.mp3"}
    assert int(asked.headers["content-length"]) == len(asked.body)


def test_the_record_has_the_operation_and_the_seconds(hearing: tuple[Stack, Worker]) -> None:
    stack, _ = hearing
    send(stack, sound())
    record = stack.record()
    assert (record["operation"], record["model"], record["outcome"]) == ("transcribe", "m", "ok")
    assert record["usage"]["audio_s"] == 3


def test_seconds_of_a_wave_file_are_known_without_the_worker() -> None:
    with scripted(lambda worker, asked, handler: answer(handler, b'{"text":"x"}')) as worker, gateway(worker) as stack:
        send(stack, sound(wave(5)))
        assert stack.record()["usage"]["audio_s"] == pytest.approx(5, abs=0.01)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (sound(model="nobody"), 404, "model_not_found"),
        (sound(model=None), 400, "missing_parameter"),
        (upload(part("file", b"x", "a"), part("model", "m"), part("model", "other")), 400, "ambiguous_model"),
        (upload(part("file", b"x", "a"), part("model", "m"), part("Model", "other")), 400, "ambiguous_model"),
        (upload(part("model", "m")), 400, "missing_parameter"),
        (upload(part("model", "m"), part("file", "words")), 400, "invalid_value"),
        (upload(part("model", "m"), part("file", b"", "a")), 400, "invalid_value"),
        (upload(part("model", "m"), part("file", b"x", "a"), part("file", b"y", "b")), 400, "invalid_value"),
        (upload(part("model", "m"), part("file", b"x", "a"), part("other", b"y", "b")), 400, "invalid_value"),
        (sound(stream="perhaps"), 400, "invalid_value"),
        (sound(top_k="-9"), 400, "invalid_value"),
        (sound(include="logprobs"), 400, "unsupported_parameter"),
        (sound()[:-5], 400, "invalid_multipart"),
        (b"--a-boundary\r\nno head", 400, "invalid_multipart"),
        (b"", 400, "invalid_multipart"),
        (upload(part("file", b"x", "a"), part("model", b"\xff\xfe")), 400, "invalid_multipart"),
        (upload(part("file", b"x", "a"), *[part("a", "b")] * 100), 413, "too_many_parts"),
        (upload(part("file", b"x", "a"), part("prompt", "x" * (300 << 10))), 413, "too_much_text"),
        (upload(part("file", b"x", "a" * 5000)), 400, "invalid_multipart"),
        (sound(bytes(4 << 20)), 413, "request_too_large"),
    ],
)
def test_what_is_wrong_is_told(hearing: tuple[Stack, Worker], body: bytes, status: int, code: str) -> None:
    stack, worker = hearing
    before = len(worker.asked)
    assert told(send(stack, body)) == (status, code)
    assert len(worker.asked) == before


def test_other_types_of_bodies_are_refused(hearing: tuple[Stack, Worker]) -> None:
    stack, _ = hearing
    assert told(httpx.post(stack.url + TRANSCRIBE, json={"model": "m"})) == (415, "unsupported_media_type")
    assert told(send(stack, sound(), **{"content-type": "multipart/form-data"})) == (400, "invalid_multipart")
    assert told(send(stack, sound(), **{"content-encoding": "gzip"})) == (415, "unsupported_content_encoding")


def test_names_of_files_cannot_write_heads(hearing: tuple[Stack, Worker]) -> None:
    stack, worker = hearing
    send(stack, upload(part("file", b"x", '../a%22; \\"b\\".mp3'), part("model", "m")))
    assert worker.asked[-1].fields == [("model", "sim")]
    assert "/" not in worker.asked[-1].names["file"]


def test_what_vllm_does_not_read_is_named(hearing: tuple[Stack, Worker]) -> None:
    stack, worker = hearing
    got = send(stack, sound(chunking_strategy="auto"))
    assert got.headers["x-dragoman-dropped"] == "chunking_strategy"
    assert worker.asked[-1].fields == [("model", "sim")]


def test_azure_names_the_deployment_in_the_path(hearing: tuple[Stack, Worker]) -> None:
    stack, worker = hearing
    got = send(stack, sound(model="whatever"), "/openai/deployments/m/audio/transcriptions?api-version=1")
    assert (got.status_code, worker.asked[-1].fields) == (200, [("model", "sim")])
    assert "apim-request-id" in got.headers
    got = send(stack, sound(), "/openai/deployments/nobody/audio/transcriptions?api-version=1")
    assert told(got) == (404, "DeploymentNotFound")


# -- replies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TRANSCRIBE, b"{}"),
        (TRANSCRIBE, b"[]"),
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


ASKED = {"model": "m", "prompt": "a cat", "input": "hello"}


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
        assert stack.record()["ttft_ms"] is not None


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


# -- retries ----------------------------------------------------------------------------------------------------------


def fails(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
    answer(handler, b"{}", status=500)


def dies(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
    cut(handler)


@pytest.mark.parametrize("first", [fails, dies])
@pytest.mark.parametrize("fallback", [False, True])
def test_another_worker_gets_the_same_upload(first: Script, fallback: bool) -> None:
    with scripted(first) as one, scripted(text) as two:
        models = config(one, two)["models"]
        if fallback:
            models = {**config(one, fallback=["n"])["models"], "n": config(two)["models"]["m"]}
        with Stack((), {"models": models, "retry": {"attempts": 4}}) as stack:
            for _ in range(40):  # which of two idle workers is asked first is drawn
                got = send(stack, sound(LARGE))
                assert (got.status_code, got.json()["text"]) == (200, "hello there")
                if one.asked:
                    break
            assert one.asked, "the first worker was asked"
            assert {hashlib.sha256(found.files["file"]).hexdigest() for found in (*one.asked, *two.asked)} == {
                hashlib.sha256(LARGE).hexdigest()
            }


def test_a_refusal_is_not_retried() -> None:
    def script(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
        answer(handler, b'{"error":{"message":"Invalid audio","type":"BadRequestError","code":400}}', status=400)

    with scripted(script) as worker, gateway(worker) as stack:
        got = send(stack, sound())
        assert (got.status_code, got.json()["error"]["message"], len(worker.asked)) == (400, "Invalid audio", 1)


# -- what models cannot do --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_worker_that_cannot_is_a_refusal_and_not_a_failure(status: int) -> None:
    def script(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
        answer(handler, b'{"detail":"Not Found"}', status=status)

    with scripted(script) as worker, gateway(worker) as stack:
        assert told(send(stack, sound())) == (400, "beyond_model")
        assert told(httpx.post(stack.url + SPEECH, json=ASKED)) == (400, "beyond_model")
        assert {record["outcome"] for record in stack.records()} == {"refused"}


@pytest.mark.parametrize(
    ("features", "can"),
    [(["transcription"], {TRANSCRIBE}), (["speech"], {SPEECH}), (["images"], {DRAW, EDIT}), (["tools"], set())],
)
def test_features_say_what_a_model_does(features: list[str], can: set[str]) -> None:
    def script(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
        kinds = {SPEECH: (b"RIFF", "audio/wav"), TRANSCRIBE: (b'{"text":"x"}', "application/json")}
        answer(handler, *kinds.get(asked.path, (b'{"data":[{"b64_json":"eA=="}]}', "application/json")))

    with scripted(script) as worker, gateway(worker, features=features) as stack:
        picture = upload(part("image[]", b"x", "a.png"), part("prompt", "a cat"), part("model", "m"))
        got = {TRANSCRIBE: send(stack, sound()), EDIT: send(stack, picture, EDIT)}
        got |= {path: httpx.post(stack.url + path, json=ASKED) for path in (SPEECH, DRAW)}
        assert {path for path, reply in got.items() if reply.status_code == 200} == can
        assert {told(reply) for path, reply in got.items() if path not in can} == {(400, "beyond_model")}
        assert {asked.path for asked in worker.asked} == can
        if features != ["tools"]:
            chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            assert told(httpx.post(stack.url + "/v1/chat/completions", json=chat)) == (400, "beyond_model")


# -- limits -----------------------------------------------------------------------------------------------------------


def begun(stack: Stack, size: int, key: str = "none", sent: bytes = b"") -> socket.socket:
    """A connection on which an upload of `size` bytes is announced and `sent` is there."""
    host, port = stack.url.removeprefix("http://").split(":")
    line = socket.create_connection((host, int(port)), timeout=20)
    head = f"POST {TRANSCRIBE} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: {size}\r\n"
    line.sendall(head.encode() + f"content-type: {TYPE['content-type']}\r\n\r\n".encode() + sent)
    return line


def status_of(line: socket.socket) -> int:
    return int(line.makefile("rb").readline().split()[1])


def test_callers_are_refused_before_their_upload_is_read() -> None:
    key, keys = keyed(limits={"requests": 1})
    with scripted(text) as worker, gateway(worker, more=keys) as stack:
        with begun(stack, 1 << 20, "nobody") as line:
            assert status_of(line) == 401
        assert send(stack, sound(), authorization=f"Bearer {key}").status_code == 200
        with begun(stack, 1 << 20, key) as line:
            assert status_of(line) == 429
        assert len(worker.asked) == 1


def test_uploads_count_once() -> None:
    key, keys = keyed(limits={"requests": 3})
    with scripted(text) as worker, gateway(worker, more=keys) as stack:
        statuses = [send(stack, sound(), authorization=f"Bearer {key}").status_code for _ in range(4)]
        assert statuses == [200, 200, 200, 429]


def test_seconds_of_sound_are_limited() -> None:
    """By the file before the request, then by the worker's report: it says 3."""
    limits = {"limits": [{"name": "sound", "kind": "audio_seconds", "limit": 10, "per_s": 3600, "scope": []}]}
    with scripted(text) as worker, gateway(worker, more=limits) as stack:
        assert send(stack, sound(wave(9))).status_code == 200  # 9 are reserved, 3 used
        assert send(stack, sound(wave(9))).status_code == 429
        assert [send(stack, sound()).status_code for _ in range(4)] == [200, 200, 200, 429]
        limited = send(stack, sound())
        assert told(limited) == (429, "rate_limit_exceeded")
        assert "audio_seconds" in limited.json()["error"]["message"]
        assert stack.record()["limit"] == "sound"
        assert httpx.post(stack.url + DRAW, json=ASKED).status_code != 429, "pictures have no seconds"


@pytest.mark.parametrize("format", ["text", "srt", "vtt", "json"])
def test_seconds_that_no_worker_reports_are_limited_by_the_files_size(format: str) -> None:
    def script(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
        answer(handler, b'{"text":"x"}', "application/json") if format == "json" else answer(
            handler, b"x", "text/plain"
        )

    limits = {"limits": [{"name": "sound", "kind": "audio_seconds", "limit": 10, "per_s": 3600, "scope": []}]}
    with scripted(script) as worker, gateway(worker, more=limits) as stack:
        mp3 = sound(b"ID3" + bytes(200_000), response_format=format)
        assert [send(stack, mp3).status_code for _ in range(3)] == [200, 429, 429]  # 6 seconds each
        assert [record["usage"]["audio_s"] for record in stack.records() if record["status"] == 200] == [5.0]


@pytest.mark.parametrize("leaves", [True, False], ids=["client", "worker"])
def test_sound_that_was_read_is_charged_however_its_stream_ends(leaves: bool) -> None:
    def script(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
        begin(handler, EVENTS, events(VLLM[0]))
        assert seen.wait(20)
        if leaves:
            worker.hold(handler)
        else:
            cut(handler)

    seen = threading.Event()
    limits = {"limits": [{"name": "sound", "kind": "audio_seconds", "limit": 10, "per_s": 3600, "scope": []}]}
    with scripted(script) as worker, gateway(worker, more={**limits, "retry": {"attempts": 1}}) as stack:
        with httpx.stream("POST", stack.url + TRANSCRIBE, content=sound(wave(9), stream="true"), headers=TYPE) as got:
            blocks = got.iter_raw()
            assert b"one" in next(blocks)
            seen.set()
            if not leaves:
                with pytest.raises(httpx.RemoteProtocolError):
                    list(blocks)
        until(lambda: bool(stack.records()))
        record = stack.record()
        assert record["outcome"] == ("cancelled" if leaves else "failed")
        usage = record["usage"]
        assert (usage["input"], usage["output"], round(usage["audio_s"])) == (0, 1, 9)
        assert told(send(stack, sound(wave(9)))) == (429, "rate_limit_exceeded")


# -- the bounds of what is held ---------------------------------------------------------------------------------------


def held(stack: Stack) -> int:
    return stack.gateway.deployment.runtime.budgets.uploads.reserved


def files() -> list[str]:
    """Large files that this process holds open, without a name."""
    found = []
    for one in Path("/proc/self/fd").iterdir():
        try:
            where, size = os.readlink(one), one.stat().st_size
        except OSError:
            continue
        if where.endswith("(deleted)") and size >= len(LARGE) // 2:
            found.append(where)
    return found


def test_nothing_is_left_of_an_upload(hearing: tuple[Stack, Worker]) -> None:
    stack, _ = hearing
    for body in (sound(LARGE), sound(LARGE, model="nobody"), sound(LARGE)[:-5], sound(LARGE, stream="perhaps")):
        send(stack, body)
    until(lambda: held(stack) == 0 and files() == [])


def test_all_uploads_together_are_bounded() -> None:
    with scripted(text) as worker, gateway(worker, more={"listen": {"max_uploads_bytes": 3 << 20}}) as stack:
        waiting = begun(stack, 2 << 20)
        until(lambda: held(stack) == 2 << 20)
        assert told(send(stack, sound(LARGE))) == (503, "no_room_for_body")
        assert send(stack, sound()).status_code == 200, "small ones are not counted"
        waiting.close()
        until(lambda: held(stack) == 0)
        assert send(stack, sound(LARGE)).status_code == 200


def test_a_slow_upload_is_ended() -> None:
    listen = Listen(body_timeout_s=0.5)
    with scripted(text) as worker, gateway(worker, listen=listen) as stack, begun(stack, 1 << 20, sent=sound()) as line:
        assert status_of(line) == 408
        until(lambda: held(stack) == 0)
        assert worker.asked == []


def test_a_full_disk_is_told(hearing: tuple[Stack, Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    stack, _ = hearing

    def full(**_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert told(send(stack, sound(LARGE))) == (503, "no_room_for_upload")
    until(lambda: held(stack) == 0)


def test_a_file_that_is_lost_is_no_success(hearing: tuple[Stack, Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    stack, _ = hearing
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    got = send(stack, sound(LARGE))
    assert (got.status_code, got.json()["error"]["code"]) == (500, "upload_lost")


# -- clients that leave -----------------------------------------------------------------------------------------------


def test_a_client_that_leaves_while_it_uploads_is_let_go(hearing: tuple[Stack, Worker]) -> None:
    stack, worker = hearing
    before = len(worker.asked)
    line = begun(stack, 2 << 20, sent=sound(LARGE)[: 1 << 20])
    until(lambda: held(stack) > 0)
    line.close()
    until(lambda: held(stack) == 0 and files() == [])
    assert (stack.record()["outcome"], len(worker.asked)) == ("cancelled", before)


@pytest.mark.parametrize("path", [TRANSCRIBE, SPEECH])
def test_a_client_that_leaves_ends_the_workers_work(path: str) -> None:
    def script(worker: Worker, asked: Asked, handler: BaseHTTPRequestHandler) -> None:
        if path == SPEECH:
            begin(handler, "audio/wav", b"RIFF")
        worker.hold(handler)

    with scripted(script) as worker, gateway(worker) as stack:
        content = sound(LARGE) if path == TRANSCRIBE else json.dumps(ASKED).encode()
        kind = TYPE if path == TRANSCRIBE else {}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(stack.url + path, content=content, headers=kind, timeout=1)
        assert worker.gone.wait(20)
        until(lambda: held(stack) == 0 and files() == [])
        until(lambda: bool(stack.records()))
        assert stack.record()["outcome"] == "cancelled"


def test_a_worker_that_takes_nothing_does_not_fill_the_memory() -> None:
    """The upload waits in its file until the worker reads on."""
    go_on, asked = threading.Event(), []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            with line:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += line.recv(4096)
                if head.startswith(b"GET"):
                    line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
                    continue
                asked.append(head)
                assert go_on.wait(20)
                size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                left = size - len(head.partition(b"\r\n\r\n")[2])
                while left:
                    left -= len(line.recv(min(left, 1 << 16)))
                line.sendall(
                    b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{"text":"x"}'
                )

    thread = threading.Thread(target=serve)
    thread.start()
    worker = Worker(text)
    worker.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    read: list[int] = []
    with pytest.MonkeyPatch.context() as patch, gateway(worker) as stack:
        pread = os.pread

        def counted(file: int, size: int, at: int) -> bytes:
            read.append(size)
            return pread(file, size, at)

        patch.setattr(os, "pread", counted)
        found: list[httpx.Response] = []
        sending = threading.Thread(target=lambda: found.append(send(stack, sound(bytes(20 << 20)))))
        sending.start()
        until(lambda: bool(asked))
        time.sleep(0.3)
        waited = sum(read)
        go_on.set()
        sending.join()
        assert found[0].json() == {"text": "x"}
        assert waited < 12 << 20, "what the sockets' own buffers take"
        assert sum(read) == 20 << 20
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


# -- attacks ----------------------------------------------------------------------------------------------------------


def test_no_upload_holds_the_loop() -> None:
    """What costs a parser the most: the reader takes 8 MiB of each in less than a tenth of what JSON may take."""
    edge = f"\r\n--{'x' * 60}".encode()
    head = f'--{"x" * 60}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'.encode()
    near = edge[:-1] + b"y"
    for content in (b"\r" * (8 << 20), b"\r\n" * (4 << 20), b"-" * (8 << 20), near * ((8 << 20) // len(near))):
        kept = io.BytesIO()
        reader = multipart.FormReader(b"multipart/form-data; boundary=" + b"x" * 60, kept.write)
        began = time.thread_time()
        stream = io.BytesIO(head + content + edge + b"--\r\n")
        while block := stream.read(1 << 16):
            reader.feed(block)
        assert time.thread_time() - began < 0.5
        assert kept.tell() == len(content)
    for options in (b";" * 60, b'";' * 60, b"a=b;" * 60, b'"' * 4000, b'\\"' * 2000, b"=" * 4000):
        reader = multipart.FormReader(b"multipart/form-data; boundary=x", len)
        began = time.thread_time()
        for _ in range(100):
            reader.feed(b"--x\r\nContent-Disposition: form-data; name=a;" + options + b"\r\n\r\n\r\n")
        assert time.thread_time() - began < 0.05


def test_every_kind_of_refusal_has_the_callers_form(hearing: tuple[Stack, Worker]) -> None:
    """In OpenAI's form and Azure's: an object with message, type, param, code."""
    stack, _ = hearing
    for path in (TRANSCRIBE, "/openai/deployments/m/audio/transcriptions?api-version=1"):
        for body in (b"", sound(stream="perhaps"), upload(part("model", "m"))):
            error = send(stack, body, path).json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
    assert {kind.value for kind in Kind} >= {"unsupported_media_type", "request_too_large"}
