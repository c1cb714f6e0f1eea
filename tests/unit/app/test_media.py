"""Sound and images through a whole gateway: what workers get, which of them gets it, and limits."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
import pytest

from gateway.core.errors import Kind
from gateway.wire.openai.media.fields import FIELDS, FORMS, PATHS
from gateway.wire.openai.requests.bounds import RANGES
from tests.support.harness import Stack, until
from tests.unit.app.hearing import ASKED, DRAW, EDIT, LARGE, SPEECH, VLLM, config, events, gateway, send, told
from tests.unit.app.media import (
    EVENTS,
    TRANSCRIBE,
    TYPE,
    Asked,
    Script,
    Worker,
    answer,
    begin,
    cut,
    part,
    scripted,
    sound,
    text,
    upload,
    wave,
)

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
        (upload(part("file", b"x", "a"), part("model", "m"), part("model[]", "other")), 400, "ambiguous_model"),
        (upload(part("file", b"x", "a"), part("model", "m"), part("MODEL[0]", "other")), 400, "ambiguous_model"),
        (upload(part("file", b"x", "a"), part("model", "m"), *[part("language", "x")] * 2), 400, "invalid_value"),
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


@pytest.mark.parametrize("name", [*RANGES, "n"])
def test_what_is_not_a_number_is_refused_by_its_name(hearing: tuple[Stack, Worker], name: str) -> None:
    stack, _ = hearing
    for value in ("[" * 1200, "1e400", '"\\ud800"', "9" * 5000):
        members: dict[str, Any] = {name: value}
        got = send(stack, sound(**members))
        assert (*told(got), got.json()["error"]["param"]) == (400, "invalid_value", name), value[:10]


def test_other_types_of_bodies_are_refused(hearing: tuple[Stack, Worker]) -> None:
    stack, _ = hearing
    assert told(httpx.post(stack.url + TRANSCRIBE, json={"model": "m"})) == (415, "unsupported_media_type")
    assert told(send(stack, sound(), **{"content-type": "multipart/form-data"})) == (400, "invalid_multipart")
    assert told(send(stack, sound(), **{"content-encoding": "compress"})) == (415, "unsupported_content_encoding")


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
            until(lambda: all(worker.serving for worker in stack.gateway.deployment.pools["m"].workers))
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


def test_every_kind_of_refusal_has_the_callers_form(hearing: tuple[Stack, Worker]) -> None:
    """In OpenAI's form and Azure's: an object with message, type, param, code."""
    stack, _ = hearing
    for path in (TRANSCRIBE, "/openai/deployments/m/audio/transcriptions?api-version=1"):
        for body in (b"", sound(stream="perhaps"), upload(part("model", "m"))):
            error = send(stack, body, path).json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
    assert {kind.value for kind in Kind} >= {"unsupported_media_type", "request_too_large"}
