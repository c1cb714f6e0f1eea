"""The server's edge: what a client may send, how slowly, how much, and what it gets told."""

from __future__ import annotations

import json
import re
import resource
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from gateway.app import Gateway
from gateway.server import Edge
from gateway.server.connection import Downstream
from tests.harness import Stack

QUICK = Edge(
    header_timeout_s=0.3,
    body_timeout_s=0.3,
    write_idle_s=0.5,
    max_body_bytes=200_000,
    max_connections=20,
)
LIMITED = {"listen": {"max_body_bytes": 200_000}}
MODELS = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(edge=QUICK, config=LIMITED) as running:
        yield running


class Raw:
    """A client that says what it likes."""

    def __init__(self, stack: Stack) -> None:
        self.socket = socket.create_connection(("127.0.0.1", int(stack.url.rsplit(":", 1)[1])))
        self.socket.settimeout(10)
        self.left = b""

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> Raw:
        self.socket.sendall(data)
        return self

    def _more(self) -> bool:
        try:
            block = self.socket.recv(1 << 20)
        except ConnectionResetError:
            return False
        self.left += block
        return bool(block)

    def response(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """The next whole response that has a content-length."""
        while b"\r\n\r\n" not in self.left:
            assert self._more(), self.left
        head, _, rest = self.left.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
        size = int(headers[b"content-length"])
        while len(rest) < size:
            assert self._more(), "the connection ended inside of a body"
            rest = self.left.partition(b"\r\n\r\n")[2]
        self.left = rest[size:]
        return int(lines[0].split()[1]), headers, rest[:size]

    def rest(self) -> bytes:
        """Everything until the connection ends."""
        while self._more():
            pass
        return self.left


def ask(stack: Stack, data: bytes) -> tuple[int, bytes]:
    """Status (0 if there was none) and body of the only answer to `data`, after which the gateway ends."""
    with Raw(stack) as client:
        received = client.send(data).rest()
    head, _, body = received.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


def code_of(body: bytes) -> str:
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["code"], str)
    return error["code"]


def post(content: Any, *headers: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n%b" % (
        path,
        b"".join(header + b"\r\n" for header in headers),
        len(body),
        body,
    )


def chat(text: str = "hi", **members: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **members}


def scripted(**script: Any) -> str:
    return "sim:" + json.dumps(script)


def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Waits for what happens in the stack's thread and announces itself in no other way."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


def only_connection(stack: Stack) -> Any:
    (protocol,) = stack.server.server_state.connections
    return protocol


def elapsed(job: Callable[[], Any]) -> tuple[float, Any]:
    began = time.monotonic()
    result = job()
    return time.monotonic() - began, result


# -- slow clients ---------------------------------------------------------------------------------------------------


def test_a_header_that_drips_is_ended_by_its_deadline(stack: Stack) -> None:
    with Raw(stack) as client:
        client.send(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n")
        began = time.monotonic()
        client.socket.settimeout(0.02)
        received = b""
        while time.monotonic() - began < 5:
            try:
                client.send(b"a: b\r\n")
                received = client.socket.recv(65536)
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                pass
            break
        assert 0.25 < time.monotonic() - began < 10
        assert received.startswith(b"HTTP/1.1 408 ")
        assert code_of(received.partition(b"\r\n\r\n")[2]) == "request_timeout"


def test_a_connection_that_says_nothing_is_closed_in_silence(stack: Stack) -> None:
    with Raw(stack) as client:
        seconds, received = elapsed(client.rest)
    assert received == b""
    assert 0.25 < seconds < 1


def test_a_second_header_that_drips_is_ended_too(stack: Stack) -> None:
    with Raw(stack) as client:
        assert client.send(MODELS).response()[0] == 200
        seconds, received = elapsed(client.send(b"GET /v1/mo").rest)
    assert received.startswith(b"HTTP/1.1 408 ")
    assert 0.25 < seconds < 1


def test_blank_lines_keep_no_connection_for_ever() -> None:
    with Stack(edge=QUICK) as stack, Raw(stack) as client:
        assert client.send(MODELS).response()[0] == 200
        only_connection(stack).timeout_keep_alive = 0.2
        assert client.send(b"\r\n").rest() == b""


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_body_that_stalls_is_ended_by_its_deadline(stack: Stack, version: bytes) -> None:
    head = b"POST /v1/chat/completions HTTP/%b\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
    with Raw(stack) as client:
        seconds, received = elapsed(client.send(head % version).rest)
    assert received.startswith(b"HTTP/1.1 408 ")
    assert code_of(received.partition(b"\r\n\r\n")[2]) == "request_timeout"
    assert 0.25 < seconds < 1
    until(lambda: not stack.gateway.state.runtime.running.runs)
    record = stack.records()[-1]
    assert (record["status"], record["outcome"], record["code"]) == (408, "refused", "request_timeout")


def test_a_body_may_take_longer_than_one_pause(stack: Stack) -> None:
    body = json.dumps(chat("x" * 1000)).encode()
    with Raw(stack) as client:
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body))
        for at in range(0, len(body), 200):
            time.sleep(0.1)  # the pause is what is tested
            client.send(body[at : at + 200])
        assert client.response()[0] == 200


def drip(stack: Stack, content: bytes, enough: Callable[[int], bool]) -> tuple[int, bytes]:
    """A request whose body comes byte by byte, without a pause, until the gateway ends it or it is enough: how many
    bytes were sent, and what was received meanwhile."""
    with Raw(stack) as client:
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(content))
        client.socket.settimeout(0.01)
        for sent in range(len(content)):
            try:
                client.send(content[sent : sent + 1])
                received = client.socket.recv(65536)
            except TimeoutError:
                if enough(sent + 1):
                    return sent + 1, b""
                continue
            except (ConnectionResetError, BrokenPipeError):
                received = b""
            return sent + 1, received
    raise AssertionError("it read all of it")


def test_a_body_that_drips_without_a_pause_is_ended_by_its_rate() -> None:
    edge = Edge(body_timeout_s=0.3, min_body_rate_bytes=1000)
    with Stack(edge=edge) as stack:
        sent, received = drip(stack, b"{" * 10_000, lambda sent: False)
        assert received.startswith(b"HTTP/1.1 408 ")
        assert code_of(received.partition(b"\r\n\r\n")[2]) == "request_timeout"
        assert sent < 1000  # at 100 bytes a second and less; at the rate that is asked it might go on for ever


def test_without_a_rate_a_body_may_drip_for_ever() -> None:
    edge = Edge(body_timeout_s=0.3, min_body_rate_bytes=0)
    with Stack(edge=edge) as stack:
        began = time.monotonic()
        _, received = drip(stack, b"{" * 10_000, lambda sent: time.monotonic() - began > 1.0)
        assert received == b""


def test_we_who_do_not_read_do_not_blame_the_client() -> None:
    """Reading is paused while an application lets a body lie; its client is not late."""

    async def lazy(scope: Any, receive: Any, send: Any) -> None:
        import asyncio

        if scope["type"] == "http" and scope["path"] == "/lazy":
            await asyncio.sleep(0.5)  # longer than the body's deadline
            size = 0
            while True:
                message = await receive()
                size += len(message["body"])
                if not message["more_body"]:
                    break
            body = str(size).encode()
            headers = [(b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        await gateway[0](scope, receive, send)

    gateway: list[Gateway] = []

    def wrap(app: Any) -> Any:
        gateway.append(app)
        return lazy

    with Stack((), edge=QUICK, wrap=wrap, config={"models": {"x": GONE}}) as stack, Raw(stack) as client:
        client.send(post(b"x" * 8_000_000, path=b"/lazy"))
        assert client.response()[2] == b"8000000"


GONE = {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}


def test_a_reader_that_stalls_is_dropped_when_its_time_is_over() -> None:
    with Stack(({"max_model_len": 400_000},), edge=QUICK) as stack, Raw(stack) as client:
        client.send(post(chat("long", stream=True, max_tokens=300_000, ignore_eos=True)))
        until(lambda: bool(stack.server.server_state.connections))
        until(lambda: only_connection(stack).flow.write_paused)
        began = time.monotonic()
        kept = only_connection(stack).transport.get_extra_info("socket")
        assert kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 131072
        stack.run(stack.sim.ledger.wait(aborted=1))
        assert 0.3 < time.monotonic() - began < 10
        with pytest.raises(ConnectionResetError):  # else the kernel would keep what it has to send
            list(iter(partial(client.socket.recv, 1 << 20), b""))
        until(lambda: not stack.server.server_state.connections)
        assert stack.records()[-1]["outcome"] == "cancelled"


# -- too much -------------------------------------------------------------------------------------------------------


def test_an_endless_header_is_refused_and_not_kept(stack: Stack) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Raw(stack) as client:
        client.send(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx: ")
        sent = 0
        block = b"a" * (1 << 16)
        try:
            while sent < 32 << 20:
                client.send(block)
                sent += len(block)
        except (ConnectionResetError, BrokenPipeError):
            pass
        received = client.rest()
    assert received.startswith(b"HTTP/1.1 431 ")
    assert code_of(received.partition(b"\r\n\r\n")[2]) == "headers_too_large"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 << 10  # KiB


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + b"".join(b"a%d: b\r\n" % n for n in range(20_000)),
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 101,
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\na: " + b"b" * 40_000 + b"\r\n",
        b"GET /v1/models?" + b"a" * 40_000 + b" HTTP/1.1\r\nhost: x\r\n",
    ],
    ids=["20k-fields", "101-fields", "long-field", "long-target"],
)
def test_a_head_beyond_the_limits_is_431(stack: Stack, head: bytes) -> None:
    status, body = ask(stack, head + b"\r\n")
    assert (status, code_of(body)) == (431, "headers_too_large")


def test_a_head_beyond_the_limits_right_behind_another_request_ends_the_connection(stack: Stack) -> None:
    line = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"
    with Raw(stack) as client:
        client.send(line + b"\r\n" + line + b"a: " + b"b" * 40_000 + b"\r\n\r\n")
        received = client.rest()
    assert received.count(b"HTTP/1.1 ") == received.count(b"HTTP/1.1 200 OK") == 1
    assert b"connection: close" in received


def test_a_head_that_begins_behind_a_body_is_measured_whole(stack: Stack) -> None:
    body = json.dumps(chat()).encode()
    first = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    with Raw(stack) as client:
        client.send(first + b"GET /v1/models HTTP/1.1\r\nhost: x\r\na: " + b"b" * 20_000)
        assert client.response()[0] == 200
        client.send(b"\r\nc: " + b"d" * 20_000 + b"\r\n\r\n")
        assert client.rest().startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("tail", [b"0\r\nx: ", b"1;"], ids=["trailer", "chunk-extension"])
def test_what_surrounds_a_body_is_limited_too(stack: Stack, tail: bytes) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    with Raw(stack) as client:
        client.send(head + tail)
        try:
            for _ in range(512):
                client.send(b"a" * (1 << 16))
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert client.rest().startswith(b"HTTP/1.1 431 ")


def test_a_trailer_is_no_header(stack: Stack) -> None:
    content = json.dumps(chat()).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    with Raw(stack) as client:
        client.send(head + b"%x\r\n%b\r\n0\r\ncontent-encoding: gzip\r\nhost: y\r\n\r\n" % (len(content), content))
        assert client.response()[0] == 200


def test_a_body_beyond_the_limit_is_refused_by_its_length_alone(stack: Stack) -> None:
    with Raw(stack) as client:
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 200001\r\n\r\n")
        status, _, body = client.response()
        assert (status, code_of(body)) == (413, "request_too_large")
        # The connection serves on, once the body that was promised has passed by.
        assert client.send(b"x" * 200_001 + MODELS).response()[0] == 200


def test_a_chunked_body_beyond_the_limit_is_refused_and_thrown_away(stack: Stack) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with Raw(stack) as client:
        client.send(head + chunk * 4)
        status, _, body = client.response()
        assert (status, code_of(body)) == (413, "request_too_large")
        assert client.send(chunk + b"0\r\n\r\n" + MODELS).response()[0] == 200
        # What is thrown away has a limit as well.
        client.send(head + chunk * 4)
        assert client.response()[0] == 413
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            client.send(chunk * 500)


def test_after_a_refused_body_the_connection_expires_like_any_other() -> None:
    with Stack(edge=QUICK, config=LIMITED) as stack, Raw(stack) as client:
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 200001\r\n\r\n")
        assert client.response()[0] == 413
        only_connection(stack).timeout_keep_alive = 0.2
        assert client.send(b"x" * 200_001).rest() == b""


def test_a_client_that_closes_after_its_answer_still_gets_it(stack: Stack) -> None:
    """Its body is refused while it is still sending, and no connection reset takes the refusal away."""
    with Raw(stack) as client:
        client.send(post(b"x" * 250_000, b"connection: close"))
        status, headers, body = client.response()
        assert (status, code_of(body)) == (413, "request_too_large")
        assert headers[b"connection"] == b"close"


def test_expect_100_continue(stack: Stack) -> None:
    content = json.dumps(chat()).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n"
    with Raw(stack) as client:
        client.send(head % len(content))
        while b"\r\n\r\n" not in client.left:
            assert client._more()
        assert client.left == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.left = b""
        assert client.send(content).response()[0] == 200
    with Raw(stack) as client:
        assert client.send(head % 200_001).response()[0] == 413  # without a 100 before it


def test_connections_beyond_the_limit_are_503(stack: Stack) -> None:
    clients = [Raw(stack).send(b"GET ") for _ in range(20)]
    try:
        with Raw(stack) as one_more:
            received = one_more.rest()
            assert received.startswith(b"HTTP/1.1 503 ")
            assert code_of(received.partition(b"\r\n\r\n")[2]) == "overloaded"
    finally:
        for client in clients:
            client.socket.close()
    until(lambda: not stack.server.server_state.connections)
    with Raw(stack) as client:
        assert client.send(MODELS).response()[0] == 200


# -- not HTTP -------------------------------------------------------------------------------------------------------

LINE = b"GET /v1/models HTTP/1.1\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"


@pytest.mark.parametrize(
    "data",
    {
        "no-host": LINE + b"\r\n",
        "two-hosts": LINE + b"host: x\r\nhost: x\r\n\r\n",
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
        "absolute-target": b"GET http://x/v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
        "other-host-target": b"GET http://169.254.169.254/ HTTP/1.1\r\nhost: x\r\n\r\n",
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
        assert client.rest() == b""


def test_a_slow_head_behind_a_running_request_does_not_harm_it(stack: Stack) -> None:
    with Raw(stack) as client:
        client.send(post(chat(scripted(text="slow", fault="stall:0.6@before"))) + b"GET /v1/mod")
        assert client.response()[0] == 200
        assert client.rest() == b""


def test_a_broken_body_behind_a_running_request_does_not_harm_it(stack: Stack) -> None:
    broken = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + CHUNKED + b"\r\nzz\r\n"
    with Raw(stack) as client:
        client.send(post(chat(scripted(text="slow", fault="stall:0.2@before"))) + broken)
        assert client.response()[0] == 200
        assert client.rest() == b""


@pytest.mark.parametrize("behind", [b"", MODELS * 3], ids=["alone", "pipelined"])
@pytest.mark.parametrize("size", [10, 150_000], ids=["small", "large"])
def test_a_leaving_client_is_noticed_whatever_it_sent(stack: Stack, behind: bytes, size: int) -> None:
    aborted = stack.sim.ledger.aborted
    script = {"text": "a", "fault": "stall@before"}
    content = chat("sim:" + json.dumps(script), metadata={"k": "x" * size})
    with Raw(stack) as client:
        client.send(post(content) + behind)
        until(lambda: stack.sim.ledger.running == 1)
        left = time.monotonic()
    stack.run(stack.sim.ledger.wait(aborted=aborted + 1))
    assert time.monotonic() - left < 5


# -- what is told of refusals ---------------------------------------------------------------------------------------

BODY = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("data", "status", "code", "name"),
    [
        (LINE + b"\r\n", 400, "invalid_request", None),
        (b"\xff\xff", 400, "invalid_request", None),
        (LINE + b"x-request-id: mine-1\r\nhost: x\r\nhost: y\r\n\r\n", 400, "invalid_request", "mine-1"),
        (LINE + b"x-request-id: a b\r\nhost: x\r\nhost: y\r\n\r\n", 400, "invalid_request", None),
        (LINE + b"x-request-id: mine-2\r\n" + b"a: b\r\n" * 101, 431, "headers_too_large", "mine-2"),
        (LINE + b"x-request-id: mine-3\r\na: b\r\n", 408, "request_timeout", "mine-3"),
    ],
    ids=["no-host", "not-http", "named", "harmful-name", "too-large", "slow"],
)
def test_a_refusal_has_a_line_a_count_and_a_name(data: bytes, status: int, code: str, name: str | None) -> None:
    with Stack((), edge=QUICK, config={"models": {"x": GONE}}) as stack:
        with Raw(stack) as client:
            head = client.send(data).rest().rpartition(b"HTTP/1.1 ")[2]
        assert head.startswith(b"%d " % status)
        (given,) = re.findall(rb"\r\nx-request-id: (\S+)\r\n", head)
        assert given.decode() == name if name else re.fullmatch(rb"[0-9a-f]{32}", given)
        (line,) = stack.events("refused")
        line.pop("time")
        assert line == {
            "level": "info",
            "event": "refused",
            "id": given.decode(),
            "status": status,
            "code": code,
            "client": "127.0.0.1",
        }
        assert f'dragoman_refused_connections_total{{status="{status}"}} 1.0' in httpx.get(stack.url + "/metrics").text


def test_a_refused_body_has_the_name_of_its_record(stack: Stack) -> None:
    """Its request is known to the application, which gave it an id."""
    with Raw(stack) as client:
        received = client.send(BODY + CHUNKED + b"\r\nzz\r\n").rest()
    (given,) = re.findall(rb"\r\nx-request-id: (\S+)\r\n", received)
    until(lambda: any(record["id"] == given.decode() for record in stack.records()))
    (record,) = [record for record in stack.records() if record["id"] == given.decode()]
    assert (record["status"], record["outcome"], record["code"]) == (400, "refused", "invalid_request")


def test_a_refusal_does_not_take_the_name_of_the_request_before(stack: Stack) -> None:
    with Raw(stack) as client:
        assert client.send(LINE + b"x-request-id: before\r\nhost: x\r\n\r\n").response()[0] == 200
        status, headers, _ = client.send(b"BROKEN\r\n\r\n").response()
    assert status == 400
    assert re.fullmatch(rb"[0-9a-f]{32}", headers[b"x-request-id"])


def test_a_refusal_of_what_waits_behind_another_request_does_not_take_its_name(stack: Stack) -> None:
    broken = BODY + b"x-request-id: second\r\n" + CHUNKED + b"\r\nzz\r\n"
    with Raw(stack) as client:
        client.send(post(chat(scripted(text="slow", fault="stall:0.2@before")), b"x-request-id: first") + broken)
        assert client.response()[1][b"x-request-id"] == b"first"
    assert "second" in [line.get("id") for line in stack.events("refused")]


def test_what_was_answered_already_is_not_refused_as_well() -> None:
    with Stack(edge=QUICK, config=LIMITED) as stack:
        with Raw(stack) as client:
            client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 200001\r\n\r\n")
            assert client.response()[0] == 413
            assert client.rest() == b""  # the rest of its body is late
        assert stack.events("refused") == []


def test_too_many_connections_are_a_warning() -> None:
    with Stack(edge=Edge(max_connections=1)) as stack, Raw(stack).send(b"GET ") as held, Raw(stack) as one_more:
        received = one_more.rest()
        (line,) = stack.events("refused")
        assert (line["level"], line["status"], line["code"]) == ("warning", 503, "overloaded")
        assert b"x-request-id: " + line["id"].encode() in received
        assert held.left == b""


def test_a_flood_of_refusals_is_counted_and_not_written() -> None:
    with Stack(edge=Edge()) as stack:
        for _ in range(200):
            assert ask(stack, b"BROKEN\r\n\r\n")[0] == 400
        page = httpx.get(stack.url + "/metrics").text
        stack.gateway.log.close()
        lines = stack.events("refused")
    assert 'dragoman_refused_connections_total{status="400"} 200.0' in page
    suppressed = sum(line.get("suppressed", 0) for line in lines)
    written = sum("id" in line for line in lines)
    assert written + suppressed == 200
    assert suppressed > 0


# -- answers --------------------------------------------------------------------------------------------------------


def test_a_head_request_gets_no_body(stack: Stack) -> None:
    with Raw(stack) as client:
        client.send(b"HEAD /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" + b"HEAD /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        client.send(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        received = client.rest()
    statuses = re.findall(rb"HTTP/1.1 (\d+)", received)
    assert statuses == [b"405", b"200", b"200"]
    assert received.endswith(b"\r\n\r\nalive\n")
    assert received.count(b"alive") == 1
    assert b"{" not in received


@pytest.mark.parametrize("stream", [False, True])
def test_an_http_1_0_client_gets_what_it_understands(stack: Stack, stream: bool) -> None:
    body = json.dumps(chat(scripted(text="hello"), stream=stream)).encode()
    with Raw(stack) as client:
        client.send(
            b"POST /v1/chat/completions HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        head, _, received = client.rest().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    if stream:
        assert received.startswith(b"data: ")
        assert received.endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(received)["choices"][0]["message"]["content"] == "hello"
    assert stack.records()[-1]["outcome"] == "ok"


def test_an_http_1_0_client_can_tell_a_cut_stream() -> None:
    body = json.dumps(chat(scripted(text="one two three", fault="fin@2"), stream=True)).encode()
    with Stack(({"itl_ms": 30},)) as stack:
        with Raw(stack) as client:
            client.send(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            received = client.rest()
        assert b"[DONE]" not in received
        until(lambda: not stack.gateway.state.runtime.running.runs)
        assert stack.records()[-1]["outcome"] == "failed"


@pytest.mark.parametrize(
    "value", [b"a b", b"x" * 129, b"\xff\xfe", b"{}", b"a;b", b"", b"a\tb", b"dgm_ab12_" + b"x" * 43 + b"_abcdef"]
)
def test_a_harmful_request_id_is_replaced(stack: Stack, value: bytes) -> None:
    with Raw(stack) as client:
        _, headers, _ = client.send(LINE + b"host: x\r\nx-request-id: " + value + b"\r\n\r\n").response()
    assert re.fullmatch(rb"[0-9a-f]{32}", headers[b"x-request-id"])


def test_a_harmless_request_id_is_kept(stack: Stack) -> None:
    with Raw(stack) as client:
        _, headers, _ = client.send(LINE + b"host: x\r\nx-request-id: Az-0._:9\r\n\r\n").response()
    assert headers[b"x-request-id"] == b"Az-0._:9"


def test_names_of_dropped_fields_break_no_header() -> None:
    config = {"dialects": {"openai": {"extras": "drop"}}}
    with Stack(config=config) as stack, Raw(stack) as client:
        names: list[str] = ["a\r\nset-cookie: x=y", "b, c", "\u00e9", "z" * 5000, "ok"]
        status, headers, _ = client.send(post(chat() | dict.fromkeys(names, 1))).response()
        assert status == 200
        assert b"set-cookie" not in headers
        dropped = headers[b"x-dragoman-dropped"].split(b", ")
        assert sorted(dropped) == sorted([b"a??set-cookie??x?y", b"b??c", b"?", b"z" * 64, b"ok"])
        record = stack.records()[-1]
        assert all(len(name) <= 64 for name in record["dropped"])


def test_blocks_of_one_turn_go_out_together_and_before_an_ending() -> None:
    sent: list[bytes] = []
    soon: list[Callable[[], None]] = []
    protocol = SimpleNamespace(
        transport=SimpleNamespace(write=sent.append),
        loop=SimpleNamespace(call_soon=lambda call, *rest: soon.append(partial(call, *rest))),
        outbox=[],
        cut=lambda: sent.append(b"cut"),
    )
    one, two, left = (Downstream(cast(Any, protocol), cast(Any, SimpleNamespace())) for _ in range(3))
    one.write(b"a")
    two.write(b"b")
    left.write(b"nobody reads it")
    one.write(b"c")
    left.gone = True
    assert (sent, len(soon)) == ([], 1)
    soon.pop()()
    assert sent == [b"1\r\na\r\n1\r\nc\r\n", b"1\r\nb\r\n"]
    two.write(b"d")
    two.cut()
    assert sent[2:] == [b"1\r\nd\r\n", b"cut"]
    soon.pop()()
    assert len(sent) == 4
    for _ in range(4):
        one.write(b"x" * 40_000)
    # A turn in which much comes does not end before all of it is held: only what is sent can tell that nobody reads.
    assert [len(block) > 65536 for block in sent[4:]] == [True, True]
