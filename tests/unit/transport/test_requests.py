"""The bytes a worker is sent, and what is never sent."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import Headers, Request
from gateway.core.ports import Deadlines
from gateway.transport.pooled import Origin, Pooled

if TYPE_CHECKING:
    from tests.unit.transport.conftest import MakeClient, Peer, Serve

SOON = Deadlines(connect=30, first_byte=30, idle=30)


def head(request: Request, address: str = "http://worker:8000") -> bytes:
    return Origin(Pooled(), address).head(request)


def test_a_post() -> None:
    request = Request("POST", "/v1/chat", [(b"content-type", b"application/json")], b"{}", query=b"a=%20b&c")
    assert head(request, "http://worker:8000/base/") == (
        b"POST /base/v1/chat?a=%20b&c HTTP/1.1\r\n"
        b"host: worker:8000\r\n"
        b"accept-encoding: identity\r\n"
        b"content-type: application/json\r\n"
        b"content-length: 2\r\n\r\n"
    )


@pytest.mark.parametrize(("method", "length"), [("GET", False), ("HEAD", False), ("POST", True), ("DELETE", True)])
def test_an_empty_body(method: str, length: bool) -> None:
    assert (b"content-length: 0\r\n" in head(Request(method, "/"))) == length


def test_framing_and_encoding_are_not_the_callers() -> None:
    names = [b"host", b"content-length", b"transfer-encoding", b"accept-encoding", b"connection", b"te", b"expect"]
    sent = head(Request("POST", "/", [(name, b"evil") for name in names] + [(b"x-fine", b"yes")], b"{}"))
    assert b"evil" not in sent
    assert sent.endswith(b"identity\r\nx-fine: yes\r\ncontent-length: 2\r\n\r\n")


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/v1/models/a b", b"/v1/models/a%20b"),
        ("/v1/models/50%?#x", b"/v1/models/50%25%3F%23x"),
        ("/v1/models/é", b"/v1/models/%C3%A9"),
        ("/v1/models/org/name:tag@1", b"/v1/models/org/name:tag@1"),
    ],
)
def test_paths_are_encoded(path: str, target: bytes) -> None:
    assert head(Request("GET", path)).split(b" ")[1] == target


EVIL: dict[str, Request] = {
    "CRLF in a value": Request("GET", "/", [(b"a", b"b\r\nx: y")]),
    "LF in a value": Request("GET", "/", [(b"a", b"b\nx: y")]),
    "CR in a value": Request("GET", "/", [(b"a", b"b\rx: y")]),
    "NUL in a value": Request("GET", "/", [(b"a", b"b\0")]),
    "CRLF in a name": Request("GET", "/", [(b"a: b\r\nx", b"y")]),
    "colon in a name": Request("GET", "/", [(b"a: b", b"y")]),
    "space in a name": Request("GET", "/", [(b"a ", b"y")]),
    "upper case": Request("GET", "/", [(b"Transfer-Encoding", b"chunked")]),
    "no name": Request("GET", "/", [(b"", b"y")]),
    "CRLF in the path": Request("GET", "/\r\nx: y"),
    "NUL in the path": Request("GET", "/\0"),
    "DEL in the path": Request("GET", "/\x7f"),
    "surrogate in the path": Request("GET", "/\ud800"),
    "relative path": Request("GET", "v1"),
    "empty path": Request("GET", ""),
    "dot segments": Request("GET", "/v1/models/../../admin"),
    "CRLF in the query": Request("GET", "/", query=b"a\r\nx: y"),
    "space in the query": Request("GET", "/", query=b"a HTTP/1.1"),
    "NUL in the query": Request("GET", "/", query=b"a\0"),
    "CRLF in the method": Request("GET / HTTP/1.1\r\nx: y\r\n\r\nGET", "/"),
    "lower-case method": Request("get", "/"),
    "no method": Request("", "/"),
}


@pytest.mark.parametrize("case", EVIL)
async def test_nothing_is_sent_of_what_could_forge_a_line(case: str, serve: Serve, pooled: MakeClient) -> None:
    async def unmet(peer: Peer) -> None:
        raise AssertionError("the client connected")

    worker, client = await serve(unmet), pooled()
    with pytest.raises(GatewayError) as caught:
        await client.send(EVIL[case], worker.address, SOON)
    assert (caught.value.kind, caught.value.blame) == (Kind.INTERNAL, Blame.US)
    assert client.open == 0


FIELDS = st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=12)), max_size=4)


@given(path=st.text(max_size=12), query=st.binary(max_size=12), fields=FIELDS)
def test_a_head_has_as_many_lines_as_it_should(path: str, query: bytes, fields: Headers) -> None:
    try:
        sent = head(Request("GET", "/" + path, fields, query=query))
    except GatewayError:
        return
    lines = sent.split(b"\r\n")
    assert lines[-2:] == [b"", b""]
    assert lines[0].count(b" ") == 2
    assert all(b"\n" not in line and b"\r" not in line and b"\0" not in line for line in lines)
    assert len(lines) - 5 <= len(fields)


@pytest.mark.parametrize(
    "address",
    [
        "worker:8000",
        "ftp://worker",
        "http://",
        "http://:80",
        "http://me:secret@worker",
        "http://worker:port",
        "http://worker:99999",
        "http://worker/?a=b",
        "http://worker/#a",
        "http://worker/\r\nx: y",
        "http://wor ker",
        "http://[::1",
    ],
)
async def test_addresses_that_are_none(address: str, pooled: MakeClient) -> None:
    with pytest.raises(GatewayError, match="address") as caught:
        await pooled().send(Request("GET", "/"), address, SOON)
    assert caught.value.kind is Kind.INTERNAL
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("address", "host"),
    [("http://a", b"a"), ("http://a:80/x", b"a:80"), ("http://[::1]:8000", b"[::1]:8000"), ("http://A.b", b"A.b")],
)
def test_host(address: str, host: bytes) -> None:
    assert head(Request("GET", "/"), address).split(b"\r\n")[1] == b"host: " + host


async def test_a_worker_that_refuses(pooled: MakeClient, unused_tcp_port: int) -> None:
    with pytest.raises(GatewayError, match=r"^the worker refused the connection$") as caught:
        await pooled().send(Request("GET", "/"), f"http://127.0.0.1:{unused_tcp_port}", SOON)
    assert (caught.value.kind, caught.value.retryable) == (Kind.UPSTREAM, True)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_no_worker_is_blamed_when_no_descriptor_is_left(
    number: int, pooled: MakeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def exhausted(*args: Any, **options: Any) -> None:
        raise OSError(number, "too many open files")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", exhausted, raising=False)
    client = pooled()
    for _ in range(3):
        with pytest.raises(GatewayError, match=r"^the gateway has no file descriptor left$") as caught:
            await client.send(Request("GET", "/"), "http://127.0.0.1:80", SOON)
        assert (caught.value.kind, caught.value.blame) == (Kind.OVERLOADED, Blame.US)
    assert len(caplog.records) == 1, "the log says so, and not each time"


@pytest.mark.parametrize("host", ["no-such-worker.invalid", "a" * 64 + ".invalid"])
async def test_a_worker_without_an_address(host: str, pooled: MakeClient) -> None:
    with pytest.raises(GatewayError, match=r"^the worker's name could not be resolved$") as caught:
        await pooled().send(Request("GET", "/"), f"http://{host}:80", SOON)
    assert caught.value.kind is Kind.UPSTREAM
