"""deploy/nginx.conf, haproxy.cfg and envoy.yaml in the real proxies: streams, leaving clients, cuts, addresses."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import boto3
import botocore.config
import httpx
import pytest
from websockets.asyncio.client import connect

from gateway.config import Config
from tests.acceptance.deploy.proxies import BINARIES, proxy
from tests.repo.tree import ROOT
from tests.support.harness import Stack

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}
NOTICE_S = 30.0
"""A proxy that asks every 0.2 s has noticed long before."""
REQUESTS = 30
"""So many go to one gateway of two by chance once in 10^9 times."""
PROXIES = pytest.mark.parametrize("name", list(BINARIES))


@contextmanager
def front(name: str, folder: Path, *stacks: Stack) -> Iterator[httpx.Client]:
    """A client of the proxy before gateways."""
    with proxy(name, folder, [stack.url.removeprefix("http://") for stack in stacks]) as address:
        trusted = ssl.create_default_context(cafile=folder / "cert.pem")
        with httpx.Client(base_url=address, verify=trusted, timeout=30) as client:
            yield client


@PROXIES
@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/v1/chat/completions", b"data: [DONE]\n\n"),
        ("/sagemaker/endpoints/m/invocations-response-stream", b"[DONE]"),
        ("/ollama/chat/completions", b'"done":true'),
        ("/azure/chat/completions?api-version=2024-05-01-preview", b"data: [DONE]\n\n"),
    ],
)
def test_a_token_arrives_before_the_next_is_made(name: str, path: str, end: bytes, tmp_path: Path) -> None:
    """The worker falls silent after two tokens: what a proxy keeps back never arrives."""
    with Stack(({"fault": "stall@2"},)) as stack, front(name, tmp_path, stack) as client:
        with client.stream("POST", path, json=STREAM) as reply:
            assert reply.status_code == 200
            text = b""
            for block in reply.iter_raw():
                text += block
                if text.count(b'"content":"') - text.count(b'"content":""') >= 2:
                    break
        assert end not in text
        # Who hangs up frees the worker, too.
        stack.run(stack.sim.ledger.wait(aborted=1))


@PROXIES
def test_a_stream_arrives_whole(name: str, tmp_path: Path) -> None:
    with Stack(({"output_tokens": 501},)) as stack, front(name, tmp_path, stack) as client:
        reply = client.post("/v1/chat/completions", json={**STREAM, "stream_options": {"include_usage": True}})
        assert reply.text.endswith("data: [DONE]\n\n")
        assert reply.text.count('"content":') > 500


@PROXIES
def test_who_leaves_before_the_reply_frees_the_worker(name: str, tmp_path: Path) -> None:
    with Stack(({"fault": "stall@2"},)) as stack, front(name, tmp_path, stack) as client:
        port, body = client.base_url.port, json.dumps(CHAT).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
        trusted = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        with (
            socket.create_connection(("127.0.0.1", port or 0)) as plain,
            trusted.wrap_socket(plain, server_hostname="127.0.0.1") as leaving,
        ):
            leaving.sendall(head % (port or 0) + b"content-length: %d\r\n\r\n%b" % (len(body), body))
            stack.run(stack.sim.ledger.wait(running=1))
        stack.run(stack.sim.ledger.wait(received=1, aborted=1))


@PROXIES
def test_a_cut_stream_is_cut_for_the_client(name: str, tmp_path: Path) -> None:
    with (
        Stack(({"fault": "reset@2"},)) as stack,
        front(name, tmp_path, stack) as client,
        client.stream("POST", "/v1/chat/completions", json=STREAM) as reply,
    ):
        blocks: list[bytes] = []
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):  # as the proxy ends its TLS
            blocks.extend(reply.iter_raw())
    text = b"".join(blocks)
    assert b'"error"' in text
    assert b"[DONE]" not in text


@PROXIES
def test_bodies_up_to_the_gateways_limit_pass(name: str, tmp_path: Path) -> None:
    with Stack() as stack, front(name, tmp_path, stack) as client:
        large = {**CHAT, "messages": [{"role": "user", "content": "x" * (4 << 20)}], "max_tokens": 1}
        assert client.post("/v1/chat/completions", json=large).status_code == 400, "beyond the worker's context"
        assert len(stack.sim.entries[-1].body) > 4 << 20


@PROXIES
def test_a_client_is_known_by_the_address_that_the_proxy_saw(name: str, tmp_path: Path) -> None:
    """Whatever the client itself says in X-Forwarded-For."""
    limit = {"name": "requests", "kind": "requests", "limit": 3, "per_s": 3600, "scope": ["address"]}
    config = {"listen": {"trusted_proxies": ["127.0.0.1"]}, "limits": [limit]}
    with Stack(config=config) as stack, front(name, tmp_path, stack) as client:
        address = str(client.base_url).rstrip("/")
        trusted = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        for source in ("127.0.0.2", "127.0.0.3"):
            with httpx.Client(transport=httpx.HTTPTransport(verify=trusted, local_address=source)) as other:
                statuses = [
                    other.post(
                        f"{address}/v1/chat/completions", json=CHAT, headers={"x-forwarded-for": f"10.0.0.{number}"}
                    ).status_code
                    for number in range(4)
                ]
            assert statuses == [200, 200, 200, 429]


@PROXIES
def test_signed_requests_are_still_signed(name: str, tmp_path: Path) -> None:
    """SigV4 signs the Host header and the path as the client wrote them."""
    keys = {"notebooks": {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_env": "SECRET"}}
    config = {"auth": "keys", "keys": keys}
    with Stack(config=config, environ={"SECRET": "s" * 40}) as stack, front(name, tmp_path, stack) as client:
        address = str(client.base_url).rstrip("/")
        signed = boto3.Session(region_name="eu-west-1").client(
            "sagemaker-runtime",
            endpoint_url=f"{address}/sagemaker",
            verify=str(tmp_path / "cert.pem"),
            aws_access_key_id="AKIDEXAMPLE",
            aws_secret_access_key="s" * 40,
            config=botocore.config.Config(retries={"total_max_attempts": 1}),
        )
        body = b'{"messages": [{"role": "user", "content": "hi"}]}'
        reply = signed.invoke_endpoint(EndpointName="m", Body=body)
        assert b'"choices"' in reply["Body"].read()
        signed.close()


@PROXIES
def test_a_web_socket_passes(name: str, tmp_path: Path) -> None:
    create = json.dumps({"type": "response.create", "model": "m", "input": "hi"})

    async def talked(url: str, trusted: ssl.SSLContext) -> None:
        # Without threads: two of them may not use one TLS connection of Python 3.11, as a client that waits does.
        async with asyncio.timeout(60), connect(url, ssl=trusted, proxy=None, open_timeout=30) as talk:
            for _ in range(2):
                await talk.send(create)
                while json.loads(await talk.recv())["type"] != "response.completed":
                    pass

    with Stack() as stack, front(name, tmp_path, stack) as client:
        url = f"wss://{client.base_url.host}:{client.base_url.port}/v1/responses"
        asyncio.run(talked(url, ssl.create_default_context(cafile=tmp_path / "cert.pem")))
        # An offer of another protocol is answered as HTTP/1.1.
        headers = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAAABk"}
        assert client.get("/v1/models", headers=headers).status_code == 200


@PROXIES
def test_probes_and_metrics_are_not_for_clients(name: str, tmp_path: Path) -> None:
    with Stack() as stack, front(name, tmp_path, stack) as client:
        assert httpx.get(f"{stack.url}/metrics").status_code == 200
        statuses = [client.get(f"/{path}").status_code for path in ("metrics", "livez", "readyz")]
    assert statuses == [404, 404, 404]


@pytest.mark.parametrize("name", ["haproxy", "envoy"])
def test_a_gateway_that_drains_gets_nothing_new(name: str, tmp_path: Path) -> None:
    with Stack() as one, Stack() as other, front(name, tmp_path, one, other) as client:
        one.gateway.draining = True
        end = monotonic() + NOTICE_S
        while _asked(one, client):
            assert monotonic() < end, "it still sends requests to a gateway whose /readyz says 503"
        assert _asked(other, client) == REQUESTS


def _asked(stack: Stack, client: httpx.Client) -> int:
    """How many of some requests went to this gateway."""
    before = len(stack.records())
    for _ in range(REQUESTS):
        assert client.get("/v1/models").status_code == 200
    return len(stack.records()) - before


def numbers(pattern: str, file: str) -> list[float]:
    """All numbers that `pattern` finds in a file of deploy/."""
    found = [float(one) for one in re.findall(pattern, (ROOT / "deploy" / file).read_text())]
    assert found, (file, pattern)
    return found


def test_the_proxies_wait_longer_than_the_gateway() -> None:
    longest = Config().deadlines.first_byte_s
    assert min(numbers(r"proxy_read_timeout (\d+)s;", "nginx.conf")) > longest
    assert min(numbers(r"timeout (?:client|server) +(\d+)s", "haproxy.cfg")) > longest
    assert numbers(r"(?m:^) +timeout: (\d+)s(?m:$)\n +idle_timeout", "envoy.yaml") == [0], "of a whole reply"
    assert min(numbers(r"(?:stream_|^ +)idle_timeout: (\d+)s(?m:$)", "envoy.yaml")) > longest


def test_the_proxies_drop_idle_connections_before_the_gateway_does() -> None:
    kept = Config().listen.keep_alive_s
    assert max(numbers(r"(?m:^) +keepalive_timeout (\d+)s;", "nginx.conf")) < kept
    assert max(numbers(r"common_http_protocol_options: {idle_timeout: (\d+)s}", "envoy.yaml")) < kept


def test_nginx_takes_the_bodies_that_the_gateway_takes() -> None:
    assert numbers(r"client_max_body_size (\d+)m;", "nginx.conf") == [Config().listen.max_body_bytes / 2**20]
