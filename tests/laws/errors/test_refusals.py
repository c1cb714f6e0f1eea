"""Every failure has its documented status, body and code, at once; nothing that a client sends is a 5xx."""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from gateway.auth import new_key
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, Event, Failed, PartStart, Start
from gateway.core.http import Request
from gateway.core.messages import Op
from gateway.core.ports import Backend, Capabilities
from gateway.wire.openai.replies.refusals import ERRORS
from tests.laws.conformance.cases import CASES, DIALECTS, Case
from tests.laws.errors.asking import CHAT, MEASURED, body, in_time
from tests.support.clients import REQUESTS, usual
from tests.support.harness import Stack

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "errors.md").read_text()
POSTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")


def scripted(**script: Any) -> dict[str, Any]:
    return body(messages=[{"role": "user", "content": "sim:" + json.dumps(script)}])


def check(reply: httpx.Response, status: int, code: str, param: str | None = None) -> dict[str, Any]:
    """The whole form of an OpenAI error."""
    assert reply.headers["content-type"] == "application/json"
    assert re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", reply.headers["x-request-id"])
    error: dict[str, Any] = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert (reply.status_code, error["code"], error["param"]) == (status, code, param)
    return error


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without code marks."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_page_holds_the_table_of_the_code() -> None:
    written = {kind: (int(status), type_, code) for kind, status, type_, code, _ in rows("By kind")}
    assert written == {kind.name: row for kind, row in ERRORS.items()}
    assert ERRORS.keys() == set(Kind)


def codes_in_the_code() -> set[str]:
    """Every literal `code=` that an error is given anywhere in the gateway, other dialects' own ones excepted."""
    found = set()
    for path in (ROOT / "gateway").rglob("*.py"):
        inside = path.relative_to(ROOT / "gateway").parts
        if inside[0] == "dialects" and inside[1] != "openai.py":
            continue
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "GatewayError(" in text and "code=" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "GatewayError":
                found |= {
                    word.value.value
                    for word in node.keywords
                    if word.arg == "code" and isinstance(word.value, ast.Constant)
                }
    return {code for code in found if isinstance(code, str)}


def test_every_code_is_on_the_page() -> None:
    listed = [code for code, _, _ in rows("Finer codes")]
    finer = set(listed)
    assert len(listed) == len(finer), "one row a code"
    kinds = {kind.value for kind in Kind}
    assert codes_in_the_code() - kinds - finer == set(), "missing in docs/errors.md"
    assert not finer & kinds


PATHS = {**{name: path for name, (path, _) in REQUESTS.items()}, "sagemaker": "/sagemaker/invocations"}


class Failing:
    """A backend that fails: at once, or after the first words of a stream. Else it is the one it stands before."""

    def __init__(self, backend: Backend, make: Callable[[], GatewayError], midstream: bool) -> None:
        self.name = backend.name
        self._backend = backend
        self._make = make
        self._midstream = midstream
        self._fed = 0
        self.buffered_bytes = 0

    def reply_wire(self, op: Op) -> str:
        return "its own"

    def write(self, op: Op, can: Capabilities) -> Request:
        if not self._midstream:
            raise self._make()
        return self._backend.write(op, can)

    def reader(self, op: Op) -> Failing:
        return self

    def feed(self, block: bytes) -> list[Event]:
        self._fed += 1
        if self._fed == 1:
            return [Start("id", "m", 1), PartStart(0, 0, "text"), Delta(0, 0, "so ")]
        return [Delta(0, 0, "on ")] if self._fed < 10 else [Failed(self._make())]


@pytest.fixture(scope="module")
def every_dialect() -> Iterator[Stack]:
    named = {name: {"default_model": "m"} for name in REQUESTS if name != "openai"}
    with Stack(({"itl_ms": 2},), {"dialects": named}) as running:
        yield running


FINER: tuple[dict[str, Any], ...] = ({}, {"param": "messages", "upstream": 400}, {"code": "invalid_value"})
TOLD = [*itertools.product([kind for kind in Kind if kind is not Kind.CLIENT_GONE], FINER)]


@pytest.mark.parametrize("count", [10, pytest.param(len(TOLD), marks=pytest.mark.long)])
@pytest.mark.parametrize("midstream", [False, True])
@pytest.mark.parametrize("name", REQUESTS)
def test_the_record_has_the_code_that_the_client_was_told(
    every_dialect: Stack, name: str, midstream: bool, count: int
) -> None:
    stack = every_dialect
    (served,) = {id(served): served for served in stack.gateway.deployment.runtime.models.values()}.values()
    backend = served.backend
    for kind, more in Random(name).sample(TOLD, count):
        served.backend = Failing(backend, partial(GatewayError, kind, "no", **more), midstream)  # type: ignore[assignment]
        # Fifty tokens, if the dialect has this name for them.
        own = usual(name).field("max_tokens")
        cap = {"max_tokens": 50} if own is not None and own.name == "max_tokens" else {}
        body = {**REQUESTS[name][1], "model": "m", "stream": midstream, **cap}
        path = PATHS[name] if usual(name).answers(stream=midstream) else usual(name, stream=midstream).path()
        received = b""
        with (
            contextlib.suppress(httpx.RemoteProtocolError),  # a stream that is cut
            httpx.stream("POST", stack.url + path, json=body) as reply,
        ):
            for block in reply.iter_raw():
                received += block
        assert (reply.status_code == 200) == midstream
        received = received.partition(b"event: response.failed")[0]  # it has the codes of Codex
        told = set(re.findall(rb'code": ?"(\w+)"', received)) | {reply.headers.get("x-ms-error-code", "").encode()}
        assert told - {b""} == {stack.record()["code"].encode()}, (kind, more)
    served.backend = backend


def test_the_servers_own_answers_are_on_the_page() -> None:
    source = "".join(path.read_text() for path in (ROOT / "gateway" / "server").glob("*.py"))
    used = set(re.findall(r'HttpError\((\d+), "(\w+)"', source))
    assert used == {(status, code) for status, code, _ in rows("Before a dialect is known")}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b'{"model": "m",', "invalid_json"),
        (b"", "invalid_json"),
        (b"  ", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'"m"', "invalid_json"),
        (b"null", "invalid_json"),
        (b"\xff\xfe{}", "invalid_json"),
        (b"model=m", "invalid_json"),
        (b"{}", "missing_parameter"),
    ],
)
@pytest.mark.parametrize("path", POSTS)
def test_a_malformed_body(client: httpx.Client, path: str, content: bytes, code: str) -> None:
    reply = client.post(path, content=content, headers={"content-type": "application/json"})
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)
    in_time(reply)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": [1]}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"n": 1_000_000}, "n"),
        ({"n": 0}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stop": 5}, "stop"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [5]}, "messages.0"),
        ({"messages": [{"role": 5}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, "messages.0.content"),
        ({"tools": {}}, "tools"),
        ({"model": 5}, "model"),
        ({"model": ["m"]}, "model"),
        ({"presence_penalty": 99}, "presence_penalty"),
        ({"logit_bias": {"1": 1e6}}, "logit_bias"),
    ],
)
def test_a_wrong_type_names_its_field(client: httpx.Client, members: dict[str, Any], param: str) -> None:
    reply = client.post(CHAT, json=body(**members))
    error = reply.json()["error"]
    assert (reply.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["code"] == "invalid_value"
    assert error["param"] is not None
    assert error["param"].startswith(param)
    in_time(reply)


def test_an_unknown_model(client: httpx.Client) -> None:
    for path, content in zip(POSTS, (body(), {"prompt": "hi"}, {"input": "hi"}), strict=True):
        reply = client.post(path, json={**content, "model": "nobody"})
        assert "'nobody'" in check(reply, 404, "model_not_found", "model")["message"]
        in_time(reply)
    check(client.get("/v1/models/nobody"), 404, "model_not_found", "model")


def test_a_body_of_40_mib(client: httpx.Client) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * (1 << 20)

    for content in (b" " * (40 << 20), endless()):
        began = time.monotonic()
        reply = client.post(CHAT, content=content, headers={"content-type": "application/json"})
        check(reply, 413, "request_too_large")
        assert time.monotonic() - began < 30  # most of it is spent on sending


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x"])
def test_an_unsupported_media_type(client: httpx.Client, kind: str) -> None:
    reply = client.post(CHAT, content=json.dumps(body()), headers={"content-type": kind})
    check(reply, 415, "unsupported_media_type")
    in_time(reply)


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/x+json", ""])
def test_a_supported_media_type(client: httpx.Client, kind: str) -> None:
    headers = {"content-type": kind} if kind else {}
    assert client.post(CHAT, content=json.dumps(body()), headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("coding", "status", "code"),
    [
        ("gzip", 400, "invalid_content_encoding"),
        ("br", 400, "invalid_content_encoding"),
        ("zstd", 400, "invalid_content_encoding"),
        ("deflate, gzip", 415, "unsupported_content_encoding"),
        ("compress", 415, "unsupported_content_encoding"),
    ],
)
def test_a_compressed_body(client: httpx.Client, coding: str, status: int, code: str) -> None:
    headers = {"content-encoding": coding, "content-type": "application/json"}
    reply = client.post(CHAT, content=b"\x1f\x8b", headers=headers)
    check(reply, status, code)
    in_time(reply)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", CHAT, "POST"),
        ("DELETE", CHAT, "POST"),
        ("OPTIONS", CHAT, "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("PUT", "/v1/models/m", "GET, HEAD"),
    ],
)
def test_a_wrong_method(client: httpx.Client, method: str, path: str, allow: str) -> None:
    reply = client.request(method, path)
    check(reply, 405, "method_not_allowed")
    assert reply.headers["allow"] == allow
    in_time(reply)


@pytest.mark.parametrize("path", ["/v1", "/v1/chat", "/v1/chat/completions/", "/V1/models", "/x%0ay"])
def test_an_unknown_path(client: httpx.Client, path: str) -> None:
    reply = client.get(path)
    check(reply, 404, "unknown_path")
    in_time(reply)


def test_the_request_id_is_echoed_or_made(client: httpx.Client) -> None:
    assert client.get("/x", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    made = {client.get("/x").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3


def test_no_key() -> None:
    secret, entry = new_key("k")
    import yaml

    with (
        Stack(config={"keys": yaml.safe_load(entry)}) as stack,
        httpx.Client(base_url=stack.url, event_hooks=MEASURED) as client,
    ):
        client.get("/v1/models")
        for headers in ({}, {"authorization": "Bearer x"}, {"api-key": secret, "x-api-key": "other"}):
            for method, path in (("POST", CHAT), ("GET", CHAT), ("GET", "/v1/models"), ("GET", "/nothing")):
                reply = client.request(method, path, headers=headers)
                assert check(reply, 401, "invalid_api_key")["type"] == "authentication_error"
                assert reply.headers["www-authenticate"] == "Bearer"
                assert secret not in reply.text
                in_time(reply)


def test_a_dead_worker(client: httpx.Client) -> None:
    reply = client.post(CHAT, json=body(model="gone"))
    check(reply, 503, "no_worker_available")
    assert reply.headers["retry-after"] == "1"
    in_time(reply)


def test_a_worker_that_breaks_off(client: httpx.Client) -> None:
    check(client.post(CHAT, json=scripted(text="a", fault="reset")), 502, "upstream_error")


def test_a_worker_beyond_its_deadline() -> None:
    with Stack(config={"deadlines": {"first_byte_s": 0.1}}) as stack:
        reply = httpx.post(stack.url + CHAT, json=scripted(text="a", fault="stall@before"), timeout=30)
    check(reply, 504, "timeout")
    assert 0.1 <= reply.elapsed.total_seconds() < 15


def test_a_worker_that_refuses_keeps_its_words(client: httpx.Client, stack: Stack) -> None:
    reply = client.post(CHAT, json=scripted(text="a", fault="status:400"))
    message = check(reply, 400, "invalid_request")["message"]
    direct = httpx.post(stack.sim.url + CHAT, json={**scripted(text="a", fault="status:400"), "model": "sim"})
    assert message == direct.json()["error"]["message"]


def test_our_own_bug_is_a_500_without_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("canary-77")

    with Stack() as stack:
        monkeypatch.setattr("gateway.dialects.openai.OpenAI.read", broken)
        reply = httpx.post(stack.url + CHAT, json=body(), headers={"x-request-id": "find-me"})
        check(reply, 500, "internal_error")
        assert "canary-77" not in reply.text
        stack.gateway.log.flush()
        (bug,) = [line for line in stack.output.lines() if line["event"] == "bug"]
        assert (bug["id"], bug["error"]) == ("find-me", "RuntimeError")
        assert b"canary-77" not in stack.output.getvalue()
        assert b"dragoman_bugs_total 1.0" in stack.gateway.metrics.page()


def _stream_ends() -> list[tuple[str, str, str]]:
    """(dialect, view, how its failed streams end), from the page."""
    section = PAGE.split("## In a stream")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line[:3] == "| `"]
    return [(name.strip("`"), cells[0], cells[2]) for cells in rows for name in cells[0].split(", ")]


def test_a_failed_stream_ends_as_the_page_says() -> None:
    """Every dialect and lane; of SageMaker's two ways the second has a row of its own."""
    told = {name: end for name, _, end in _stream_ends() if name in DIALECTS}
    told["sagemaker"] = "cut"
    streaming = {case.client.dialect for case in CASES}
    assert told.keys() == streaming
    assert set(told.values()) == {"cut", "orderly end"}
    for case in CASES:
        if case.client.dialect != "sagemaker":
            lane, _ = case.open()
            assert lane.clean_end == (told[case.client.dialect] == "orderly end"), case


@pytest.mark.parametrize("case", [case for case in CASES if case.scenario.name == "usage alone"], ids=str)
def test_a_failed_stream_never_has_the_mark_of_a_success(case: Case) -> None:
    """A client that knows its API hears a failure and no end, before any output and behind some."""
    for frames in ([], case.frames[:2]):
        lane, _ = case.open()
        out = b"".join(map(lane.feed, frames))
        lane.error = GatewayError(Kind.TRUNCATED, "the worker broke off")
        heard = case.client.hear(out + lane.fail(lane.error))
        assert heard.error
        assert not heard.complete
