"""What is a request, and what is none."""

from __future__ import annotations

import json
import re
import socket
from typing import Any
from urllib.parse import unquote

import pytest

from gateway.config import Listen
from gateway.core.http import path_parameter
from gateway.server.protocol import decoded
from tests.support.harness import Stack, until
from tests.unit.server.raw import CHUNKED, LINE, MODELS, Raw, ask, chat, chunked, code_of, connections, post, scripted

# -- not HTTP -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    {
        "no-host": LINE + b"\r\n",
        "two-hosts": LINE + b"host: x\r\nhost: x\r\n\r\n",
        "host-with-a-space": LINE + b"host: x y\r\n\r\n",
        "host-with-a-path": LINE + b"host: x/livez\r\n\r\n",
        "host-with-a-user": LINE + b"host: me@x\r\n\r\n",
        "host-with-a-query": LINE + b"host: x?y\r\n\r\n",
        "host-of-other-letters": LINE + b"host: \xc3\xa4\r\n\r\n",
        "two-hosts-1.0": b"GET /v1/models HTTP/1.0\r\nhost: x\r\nhost: y\r\n\r\n",
        "length-and-chunked": b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n"
        + CHUNKED
        + b"\r\n0\r\n\r\n",
        "chunked-and-length": b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
        + CHUNKED
        + b"content-length: 5\r\n\r\n0\r\n\r\n",
        "two-lengths": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        "signed-length": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: +1\r\n\r\n",
        "negative-length": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        "vast-length": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        "length-list": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1, 1\r\n\r\n",
        "odd-coding": b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, gzip\r\n\r\n",
        "masked-coding": b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n",
        "chunked-1.0": b"POST /v1/chat/completions HTTP/1.0\r\nhost: x\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
        "bare-line-feeds": b"GET /v1/models HTTP/1.1\nhost: x\n\n",
        "bare-line-feed": LINE + b"host: x\nfoo: bar\r\n\r\n",
        "bare-return": LINE + b"host: x\rfoo: bar\r\n\r\n",
        "folded": LINE + b"host: x\r\nfoo: bar\r\n baz\r\n\r\n",
        "space-before-colon": LINE + b"host : x\r\n\r\n",
        "no-colon": LINE + b"host: x\r\nfoo\r\n\r\n",
        "nul-in-header": LINE + b"host: x\r\nfoo: a\0b\r\n\r\n",
        "absolute-without-host": b"GET http:///v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
        "absolute-with-user": b"GET http://me@x/v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
        "other-scheme": b"GET ftp://x/v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
        "bare-name": b"GET v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
        "other-protocol": b"OPTIONS /v1/models RTSP/1.0\r\nhost: x\r\n\r\n",
        "two-spaces": b"GET  /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
        "two-spaces-behind": b"GET /v1/models  HTTP/1.1\r\nhost: x\r\n\r\n",
        "space-at-the-end": b"GET /v1/models HTTP/1.1 \r\nhost: x\r\n\r\n",
        "connect": b"CONNECT x:443 HTTP/1.1\r\nhost: x:443\r\n\r\n",
        "connect-path": b"CONNECT /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
        "asterisk": b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
        "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "version-2": b"GET /v1/models HTTP/2.0\r\nhost: x\r\n\r\n",
        "version-9": b"GET /v1/models HTTP/9.9\r\nhost: x\r\n\r\n",
        "version-0.9": b"GET /v1/models\r\nhost: x\r\n\r\n",
        "method": b"G@T /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
        "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 32,
        "raw-byte-in-path": b"GET /v1/\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        "raw-byte-in-query": b"GET /v1/models?\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        "nul-in-path": b"GET /v1/\0 HTTP/1.1\r\nhost: x\r\n\r\n",
    }.items(),
    ids=lambda item: item[0],
)
def test_what_is_not_http_is_400(stack: Stack, data: tuple[str, bytes]) -> None:
    status, body = ask(stack, data[1])
    assert (status, code_of(body)) == (400, "invalid_request")


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n", b"1\r\nab\r\n"])
def test_a_broken_chunk_is_400(stack: Stack, chunk: bytes) -> None:
    status, body = ask(stack, b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + CHUNKED + b"\r\n" + chunk)
    assert (status, code_of(body)) == (400, "invalid_request")


@pytest.mark.parametrize(
    "path", [b"/v1/%ff", b"/v1/%00", b"/%2e%2e/etc", b"//x/y", b"/v1/models/%ff%00%0d%0aa:b", b"/%"]
)
def test_odd_paths_lead_nowhere(stack: Stack, path: bytes) -> None:
    with Raw(stack) as client:
        status, headers, body = client.send(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path).response()
    assert status in (400, 404)
    assert code_of(body) in ("unknown_path", "model_not_found", "invalid_request")
    assert b"a" not in headers


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c", b"TLS/1.0"])
def test_no_other_protocol_is_taken_up(stack: Stack, protocol: bytes) -> None:
    """Java's HttpClient offers HTTP/2 with the first request to every server, and must be served."""
    offer = [b"connection: Upgrade, HTTP2-Settings", b"upgrade: " + protocol, b"http2-settings: AAMAAABk"]
    with Raw(stack) as client:
        assert client.send(post(chat(), *offer)).response()[0] == 200
        head = b"".join(line + b"\r\n" for line in offer)
        assert client.send(LINE + b"host: x\r\n" + head + b"\r\n" + MODELS).response()[0] == 200
        assert client.response()[0] == 200


# -- several requests on one connection -----------------------------------------------------------------------------


def test_pipelined_requests_are_answered_in_order(stack: Stack) -> None:
    texts = ["one", "two", "three", "four"]
    with Raw(stack) as client:
        client.send(b"".join(post(chat(scripted(text=text))) for text in texts) + MODELS)
        said = [json.loads(client.response()[2])["choices"][0]["message"]["content"] for _ in texts]
        assert said == texts
        assert client.response()[0] == 200


def test_what_is_broken_behind_a_running_request_does_not_harm_it(stack: Stack) -> None:
    with Raw(stack) as client:
        client.send(post(chat(scripted(text="slow", fault="stall:0.2@before"))) + b"BROKEN\r\n\r\n")
        status, _, body = client.response()
        assert (status, json.loads(body)["choices"][0]["message"]["content"]) == (200, "slow")
        assert client.rest().startswith(b"HTTP/1.1 400 ")


def test_a_slow_head_behind_a_running_request_does_not_harm_it(quick: Stack) -> None:
    with Raw(quick) as client:
        client.send(post(chat(scripted(text="slow", fault="stall:0.6@before"))) + b"GET /v1/mod")
        assert client.response()[0] == 200
        assert client.rest().startswith(b"HTTP/1.1 408 ")


def test_a_broken_body_behind_a_running_request_does_not_harm_it(stack: Stack) -> None:
    broken = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + CHUNKED + b"\r\nzz\r\n"
    with Raw(stack) as client:
        client.send(post(chat(scripted(text="slow", fault="stall:0.2@before"))) + broken)
        assert client.response()[0] == 200
        assert client.rest().startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("behind", [b"", MODELS * 3], ids=["alone", "pipelined"])
@pytest.mark.parametrize("size", [10, 150_000], ids=["small", "large"])
def test_a_leaving_client_is_noticed_whatever_it_sent(stack: Stack, behind: bytes, size: int) -> None:
    aborted = stack.sim.ledger.aborted
    script = {"text": "a", "fault": "stall@before"}
    content = chat("sim:" + json.dumps(script), metadata={"k": "x" * size})
    with Raw(stack) as client:
        client.send(post(content) + behind)
        until(lambda: stack.sim.ledger.running == 1)
    stack.run(stack.sim.ledger.wait(aborted=aborted + 1))


@pytest.mark.parametrize("lines", [b"\r\n", b"\n\r\n" * 5], ids=["one", "some"])
def test_empty_lines_before_a_request_are_skipped(stack: Stack, lines: bytes) -> None:
    with Raw(stack) as client:
        client.send(lines)
        # The lines have come, and no request yet.
        until(lambda: any(not c._idle and c._fruitless for c in connections(stack)))
        assert client.send(MODELS).response()[0] == 200
        assert client.send(lines + MODELS + lines + post(chat()) + lines + MODELS).response()[0] == 200
        assert [client.response()[0] for _ in range(2)] == [200, 200]


def test_nothing_but_empty_lines_is_refused(stack: Stack) -> None:
    status, body = ask(stack, b"\r\n" * 40_000)
    assert (status, code_of(body)) == (400, "invalid_request")


SEVERAL = [
    (post(chat(scripted(text="a\r\n\r\nb"))), 200),
    (b"GET http://other.example/v1/models?a=b HTTP/1.1\r\nhost: x\r\n\r\n", 200),
    (chunked(json.dumps(chat("x" * 300)).encode(), 1), 200),
    (b"\r\n\r\n" + MODELS, 200),
    (chunked(json.dumps(chat(), indent="\r\n\r\n").encode(), 3, b"a: b\r\n"), 200),
    (b"POST /v1/none HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n\r\n\r\n\r\n\r\n12", 404),
    (post(chat(), b"connection: upgrade", b"upgrade: h2c"), 200),
    (b"HEAD /nothing HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n", 404),
]
"""Messages of every framing, and the statuses of their answers."""


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64, 1000, 100_000])
def test_what_is_a_request_does_not_depend_on_how_it_arrives(size: int) -> None:
    """Cut anywhere, in one read or in many: the same requests, in order."""
    data = b"".join(message for message, _ in SEVERAL)
    last = b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    arrived: list[int] = []

    def read(app: Any) -> Any:
        async def counted(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                arrived.append(sum(c.running is not None for c in connections(running)))
            await app(scope, receive, send)

        return counted

    running = Stack(listen=Listen(), wrap=read)
    with running, Raw(running) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(data + last), size):
            client.send((data + last)[at : at + size])
        received = client.rest()
    assert [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", received)] == [*(s for _, s in SEVERAL), 200]
    assert received.endswith(b"alive\n")
    assert arrived == [1] * (len(SEVERAL) + 1)


# -- targets --------------------------------------------------------------------------------------------------------


def test_a_target_in_absolute_form_is_served_and_its_host_counts() -> None:
    """RFC 9112, section 3.2.2."""
    seen: list[Any] = []

    def look(app: Any) -> Any:
        async def looking(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                seen.append((scope["path"], scope["query_string"], dict(scope["headers"])[b"host"]))
            await app(scope, receive, send)

        return looking

    with Stack(wrap=look) as stack, Raw(stack) as client:
        for target in (b"HTTP://one.example:81/v1/models?a=/b", b"https://two.example"):
            client.send(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % target)
            assert client.response()[0] == 200
    assert seen == [("/v1/models", b"a=/b", b"one.example:81"), ("/", b"", b"two.example")]


@pytest.mark.parametrize(
    "host", [b"", b"x", b"one-two.example:81", b"[::1]:8080", b"[fe80::1%25eth0]", b"a_b", b"127.0.0.1"]
)
def test_a_host_is_taken(stack: Stack, host: bytes) -> None:
    with Raw(stack) as client:
        assert client.send(LINE + b"host: %b\r\n\r\n" % host).response()[0] == 200


@pytest.mark.parametrize("slash", [b"%2F", b"%2f"])
def test_an_encoded_slash_separates_nothing(slash: bytes) -> None:
    config = {"models": {"org/m": {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}}}
    with Stack((), config=config) as stack, Raw(stack) as client:
        statuses = []
        for path in (b"/v1/models", b"/v1%bmodels", b"/v1/models/org%bm", b"/v1/models/org%%25%bm"):
            path = path.replace(b"%b", slash).replace(b"%%25", b"%25").replace(b"%25%2", b"%252")
            client.send(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path)
            statuses.append(client.response()[0])
    assert statuses == [200, 404, 200, 404]


@pytest.mark.parametrize(
    "path", ["a/b", "a%2Fb", "a%2fb", "a%252Fb", "%25%32%46", "%e4%bd%a0/%2F", "100%", "%%", "a+b"]
)
def test_a_path_is_decoded_once(path: str) -> None:
    assert path_parameter(decoded(path)) == unquote(path)
