"""The dialect `sagemaker` over HTTP: its paths, its models, its failures, before a simulated worker."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.dialects.sagemaker.fields import MODEL
from tests.support.harness import Stack
from tests.unit.app.asking import key
from tests.unit.dialects.asking import HI
from tests.unit.dialects.sagemaker.exchange import payloads


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Two models on one worker, which knows them as "sim" and "sim-2"."""
    workers = ({"models": ("sim", "sim-2")},)
    with Stack(workers, {"dialects": {"sagemaker": {"default_model": "m"}}}) as running:
        other = {"backend": "vllm", "upstream_model": "sim-2", "aliases": ["org/other"], "workers": [running.sim.url]}
        running.run(running.gateway.reload(running.config({"models": {"other": other}})))
        yield running


@pytest.mark.parametrize("path", ["/invocations", "/sagemaker/invocations", "/sagemaker/endpoints/ep/invocations"])
def test_a_body_without_a_content_type(stack: Stack, path: str) -> None:
    reply = httpx.post(stack.url + path, content=json.dumps({"messages": HI, "max_tokens": 2}).encode())
    assert reply.status_code == 200
    body = reply.json()
    assert (body["model"], body["choices"][0]["finish_reason"]) == (MODEL, "length")
    assert body["id"] == "chatcmpl-" + reply.headers["x-request-id"]
    assert reply.headers.get("x-amzn-requestid") == (reply.headers["x-request-id"] if "endpoints" in path else None)
    assert reply.headers.get("x-amzn-invoked-production-variant") == ("AllTraffic" if "endpoints" in path else None)


@pytest.mark.parametrize(
    ("name", "body", "headers", "model"),
    [
        ("ep", {}, {}, "m"),
        ("ep", {"model": MODEL}, {}, "m"),
        ("ep", {"model": "other"}, {}, "other"),
        ("other", {"model": "m"}, {}, "other"),
        ("org%2Fother", {}, {}, "other"),
        ("alias", {"model": "other"}, {}, "m"),
        ("ep", {}, {"X-Amzn-SageMaker-Target-Model": "other"}, "other"),
        ("m", {}, {"X-Amzn-SageMaker-Inference-Component": "other"}, "other"),
        ("other", {}, {"X-Amzn-SageMaker-Target-Model": "m.tar.gz"}, "other"),
    ],
)
def test_which_model_answers(
    stack: Stack, name: str, body: dict[str, Any], headers: dict[str, str], model: str
) -> None:
    content = {"prompt": "hi", "max_tokens": 1, **body}
    reply = httpx.post(f"{stack.url}/sagemaker/endpoints/{name}/invocations", json=content, headers=headers)
    assert reply.status_code == 200
    asked = stack.sim.entries[-1]
    assert json.loads(asked.body)["model"] == {"m": "sim", "other": "sim-2"}[model]


def test_an_unknown_model_in_the_body_is_an_error_in_either_shape(stack: Stack) -> None:
    body = {"prompt": "hi", "model": "nobody"}
    raw = httpx.post(stack.url + "/invocations", json=body)
    assert (raw.status_code, raw.json()["error"]["code"]) == (404, "model_not_found")
    aws = httpx.post(stack.url + "/sagemaker/endpoints/ep/invocations", json=body)
    assert (aws.status_code, aws.headers["x-amzn-errortype"]) == (400, "ValidationError")
    assert "nobody" in aws.json()["message"]


@pytest.mark.parametrize("path", ["invocations", "invocations-response-stream"])
@pytest.mark.parametrize("target", [None, "other"])
def test_an_unknown_endpoint_is_an_unknown_model(path: str, target: str | None) -> None:
    """Where nothing else names a model and there is no default."""
    with Stack() as running:
        headers = {"x-amzn-sagemaker-target-model": target} if target else {}
        url = f"{running.url}/sagemaker/endpoints/org%2Fep/{path}"
        reply = httpx.post(url, json={"prompt": "hi"}, headers=headers)
        assert (reply.status_code, reply.headers["x-amzn-errortype"]) == (400, "ValidationError")
        named = target or "org/ep"
        unknown = f"the model '{named}' does not exist or you do not have access to it"
        assert reply.json()["message"] == f"{unknown}; GET /v1/models lists the models that you may use"
        bare = httpx.post(f"{running.url}/sagemaker/invocations", json={"prompt": "hi"})
        assert (bare.status_code, bare.json()["error"]["code"]) == (400, "missing_parameter")


def test_a_default_model_that_the_key_may_not_use() -> None:
    secret, entry = key("k", models=[])
    with Stack(config={"keys": entry, "dialects": {"sagemaker": {"default_model": "m"}}}) as running:
        headers = {"authorization": f"Bearer {secret}"}
        for path, said in (
            ("endpoints/org%2Fep/invocations", "the model 'org/ep' does not exist or you do not have access to it"),
            ("invocations", "no model was named, and there is no default model that you have access to"),
        ):
            reply = httpx.post(f"{running.url}/sagemaker/{path}", json={"prompt": "hi"}, headers=headers)
            assert said in reply.text


def test_paths_and_methods_that_are_not_there(stack: Stack) -> None:
    reply = httpx.get(stack.url + "/sagemaker/endpoints/ep/invocations")
    assert (reply.status_code, reply.headers["x-amzn-errortype"]) == (405, "UnknownOperationException")
    assert reply.headers["allow"] == "POST"
    reply = httpx.post(stack.url + "/sagemaker/endpoints/ep/async-invocations", json={})
    assert (reply.status_code, reply.headers["x-amzn-errortype"]) == (404, "UnknownOperationException")
    assert reply.headers["x-amzn-requestid"] == reply.headers["x-request-id"]
    reply = httpx.get(stack.url + "/sagemaker/models")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_path")


def test_the_response_stream(stack: Stack) -> None:
    headers = {"X-Amzn-SageMaker-Custom-Attributes": "k=v", "X-Amzn-SageMaker-Session-Id": "NEW_SESSION"}
    reply = httpx.post(
        stack.url + "/sagemaker/endpoints/ep/invocations-response-stream",
        content=json.dumps({"messages": HI, "max_tokens": 3}).encode(),
        headers=headers,
    )
    assert reply.headers["content-type"] == "application/vnd.amazon.eventstream"
    assert reply.headers["x-amzn-sagemaker-content-type"] == "text/event-stream"
    assert reply.headers["x-amzn-sagemaker-custom-attributes"] == "k=v"
    assert reply.headers["x-dragoman-dropped"] == "X-Amzn-SageMaker-Session-Id"
    parts = payloads(reply.content)
    assert len(parts) == 5
    assert parts[-1] == b"data: [DONE]\n\n"


def test_ping_needs_no_key_and_everything_else_does() -> None:
    keys = {"team": {"hash": "sha256:" + "0" * 64}}
    with Stack(config={"auth": "keys", "keys": keys}) as running:
        for path in ("/ping", "/sagemaker/ping"):
            reply = httpx.get(running.url + path)
            assert (reply.status_code, reply.content) == (200, b"")
        assert httpx.post(running.url + "/invocations", json={"prompt": "x"}).status_code == 401
        reply = httpx.post(running.url + "/sagemaker/endpoints/ep/invocations", json={"prompt": "x"})
        assert (reply.status_code, reply.headers["x-amzn-errortype"]) == (403, "MissingAuthenticationTokenException")


def test_an_unknown_access_key_is_refused_before_its_body_is_there() -> None:
    keys = {"team": {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_env": "SECRET"}}
    with Stack(config={"auth": "keys", "keys": keys}, environ={"SECRET": "s"}) as running:
        url = httpx.URL(running.url)
        head = (
            b"POST /sagemaker/endpoints/ep/invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"
            b"X-Amz-Date: 20270131T120000Z\r\nAuthorization: AWS4-HMAC-SHA256"
            b" Credential=%b/20270131/r/s/aws4_request, SignedHeaders=host;x-amz-date, Signature=" + b"0" * 64
        )
        for access_key, type_ in ((b"AKIDNOBODY", b"Unrecognized"), (b"AKIDEXAMPLE", b"InvalidSignature")):
            with socket.create_connection((url.host, url.port or 0)) as connection:
                connection.sendall(head % access_key + b"\r\n\r\n")
                answer = connection.recv(65536)
                assert answer.startswith(b"HTTP/1.1 403 ")
                assert b"x-amzn-errortype: " + type_ in answer


def test_ping_without_a_ready_worker() -> None:
    with Stack(({"loading_s": 3600},)) as running:
        assert httpx.get(running.url + "/ping").status_code == 503
        record = running.record()
        assert (record["status"], record["outcome"], record["code"]) == (503, "failed", "no_worker_available")


def test_ping_of_a_gateway_that_ends() -> None:
    with Stack(config={"relay": {"drain_s": 0}}) as running:
        assert httpx.get(running.url + "/ping").status_code == 200
        running.run(running.gateway.drain())
        assert httpx.get(running.url + "/ping").status_code == 503


def test_prefixes_move_all_but_the_container_contract() -> None:
    with Stack(config={"dialects": {"sagemaker": {"prefixes": ["/aws"], "default_model": "m"}}}) as running:
        body = {"prompt": "x", "max_tokens": 1}
        for path in ("/invocations", "/aws/invocations", "/aws/endpoints/ep/invocations"):
            assert httpx.post(running.url + path, json=body).status_code == 200
        assert httpx.post(running.url + "/sagemaker/invocations", json=body).status_code == 404
