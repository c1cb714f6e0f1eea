"""What reaches a worker: paths, hosts and headers of the configuration, and no credential of a client."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gateway.app.routes import route_table
from gateway.config import Config
from gateway.dialects import REGISTRY
from tests.support.clients import QUERY
from tests.support.harness import Stack
from tests.support.simulated import Entry

CANARY = "canary-7f3a"
CREDENTIALS = {
    "authorization": f"Bearer {CANARY}",
    "proxy-authorization": f"Basic {CANARY}",
    "api-key": CANARY,
    "x-api-key": CANARY,
    "x-auth-token": CANARY,
    "cookie": f"session={CANARY}",
    "x-amz-security-token": CANARY,
    "x-amzn-sagemaker-custom-attributes": CANARY,
    "x-friendli-team": CANARY,
    "openai-organization": CANARY,
    "x-forwarded-for": f"{CANARY}.example",
    "x-forwarded-host": f"{CANARY}.example",
    "forwarded": f"host={CANARY}.example",
    "x-original-url": f"/{CANARY}",
    "x-http-method-override": "DELETE",
    "x-data-parallel-rank": "7",
    "x-vllm-priority": "-100",
    "referer": f"http://{CANARY}.example",
    "user-agent": CANARY,
}
# What clients may cause: generation, of sound and images too, and the question how long a prompt is.
CALLED = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize"}
CALLED |= {"/v1/audio/speech", "/v1/images/generations"}
OURS = {"host", "content-type", "content-length", "accept-encoding", "x-request-id", "accept", "user-agent"}
CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
BODIES: tuple[dict[str, Any], ...] = (CHAT, {"prompt": "x", "max_tokens": 2}, {"input": "x"})


@pytest.fixture
def stack() -> Iterator[Stack]:
    config = {"dialects": {name: {"default_model": "m"} for name in REGISTRY}, "routing": {"scrape_s": 0}}
    with Stack(config=config) as stack:
        yield stack


OWN = ("/health", "/v1/models")
"""What the gateway asks a worker on its own account."""


def asked(stack: Stack) -> list[Entry]:
    """All that the worker was asked but health probes."""
    return [entry for entry in stack.sim.ledger.entries if entry.path not in OWN and entry.method == "POST"]


def everything(stack: Stack, **headers: str) -> list[int]:
    """Every route of every dialect, with every kind of body."""
    found = []
    with httpx.Client(base_url=stack.url, headers=headers) as client:
        for line in route_table(Config()):
            if line.dialect == "-":
                continue
            path = line.path.replace("{model:path}", "m").replace("{name:path}", "m")
            for body in BODIES:
                sent = {"model": "m", **body} if line.method == "POST" else None
                answer = client.request(line.method, f"{path}?{QUERY}", json=sent)
                found.append(answer.status_code)
    return found


def test_no_credential_of_a_client_reaches_a_worker(stack: Stack) -> None:
    statuses = everything(stack, **CREDENTIALS)
    entries = asked(stack)
    assert len(entries) > 10
    assert statuses.count(200) > 10
    for entry in entries:
        assert entry.path in CALLED
        assert entry.method == "POST"
        assert {name.decode() for name, _ in entry.headers} <= OURS
        for name, value in entry.headers:
            assert CANARY.encode() not in value, name
        assert CANARY.encode() not in entry.body


def test_the_workers_own_key_and_headers_do_and_win() -> None:
    model = {"api_key_env": "UPSTREAM_KEY", "headers": {"X-Project": "search"}, "upstream_model": "sim"}
    config = {"models": {"m": model}, "routing": {"scrape_s": 0}}
    with Stack(config=config, environ={"UPSTREAM_KEY": "sk-upstream"}) as stack:
        everything(stack, **CREDENTIALS)
        entries = asked(stack)
        assert entries
        for entry in entries:
            values = [value for name, value in entry.headers if name == b"authorization"]
            assert values == [b"Bearer sk-upstream"]
            assert entry.header("x-project") == "search"
            assert json.loads(entry.body)["model"] == "sim"
            assert CANARY.encode() not in b"".join(value for _, value in entry.headers)


@pytest.mark.parametrize(
    "model",
    [
        "../../admin",
        "m/../../metrics",
        "http://169.254.169.254/latest",
        "m\r\nx-injected: 1",
        "m?x=1",
        "m#x",
        "%2e%2e%2fadmin",
        "\\\\host\\share",
    ],
)
def test_a_model_name_is_no_path(stack: Stack, model: str) -> None:
    for path in ("/v1/chat/completions", "/friendli/v1/chat/completions", "/ollama/chat/completions"):
        answer = httpx.post(stack.url + path, json={**CHAT, "model": model})
        assert answer.status_code in (400, 404)
    assert asked(stack) == []


@pytest.mark.parametrize(
    "path",
    [
        "/metrics/../v1/models",
        "/v1/load_lora_adapter",
        "/v1/../metrics",
        "/v1/chat/completions/../../../metrics",
        "/tokenizer_info",
        "/v1/responses",
        "/pause",
        "/openai/v1/files",
        "/sagemaker/endpoints/m/../../../version",
        "//evil.example/v1/models",
        "/azure/images/embeddings",
    ],
)
def test_a_path_that_no_dialect_has_reaches_nobody(stack: Stack, path: str) -> None:
    # By a socket: a client library would tidy the path up.
    parts = urlsplit(stack.url)
    body = json.dumps({**CHAT, "model": "m"}).encode()
    with socket.create_connection((parts.hostname, parts.port)) as link:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
        link.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        status = int(link.makefile("rb").readline().split()[1])
    assert status in (400, 404, 405)
    assert asked(stack) == []


@pytest.mark.parametrize(
    "field", ["api_base", "base_url", "url", "endpoint", "api_key", "extra_headers", "headers", "custom_llm_provider"]
)
def test_a_field_moves_no_request(stack: Stack, field: str) -> None:
    """It may be a field of the model's own, which is forwarded; where it goes and with what is not its business."""
    httpx.post(f"{stack.url}/v1/chat/completions", json={**CHAT, "model": "m", field: f"http://{CANARY}.example"})
    for entry in asked(stack):
        assert entry.path == "/v1/chat/completions"
        assert (entry.header("host") or "") in stack.sim.url
        assert CANARY.encode() not in b"".join(value for _, value in entry.headers)


def test_only_the_listed_paths_are_called() -> None:
    with Stack(config={"models": {"m": {"paths": ["/v1/chat/completions"]}}}) as stack:
        assert httpx.post(f"{stack.url}/v1/chat/completions", json={**CHAT, "model": "m"}).status_code == 200
        refused = httpx.post(f"{stack.url}/v1/completions", json={"model": "m", "prompt": "x"})
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == "this model does not offer this operation"
        assert httpx.post(f"{stack.url}/friendli/v1/completions", json={"model": "m", "prompt": "x"}).status_code == 422
        everything(stack)
        assert {entry.path for entry in asked(stack)} == {"/v1/chat/completions"}


def test_a_host_that_a_client_names_is_not_the_workers(stack: Stack) -> None:
    with httpx.Client() as client:
        answer = client.post(
            f"{stack.url}/v1/chat/completions", json={**CHAT, "model": "m"}, headers={"host": f"{CANARY}.example"}
        )
    assert answer.status_code == 200
    (entry,) = asked(stack)
    assert f"http://{entry.header('host')}" == stack.sim.url
