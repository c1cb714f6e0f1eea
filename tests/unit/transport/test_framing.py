"""Where a response ends, and what a worker may not send."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from gateway.core.errors import Blame, GatewayError, Kind
from gateway.core.http import Request
from gateway.core.ports import Deadlines
from gateway.transport.connection import HEAD_BYTES, HEAD_FIELDS

if TYPE_CHECKING:
    from tests.unit.transport.conftest import MakeClient, Peer, Script, Serve

GET = Request("GET", "/")
HEAD = Request("HEAD", "/")
POST = Request("POST", "/", [], b"{}")
SOON = Deadlines(connect=30, first_byte=30, idle=30)
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


def answers(data: bytes, *, then: str = "wait", pieces: bool = False) -> Script:
    """Answers every request of a connection with `data`, and then waits, or sends FIN or RST."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            for start in range(0, len(data), 1) if pieces else ():
                peer.send(data[start : start + 1])
                await peer.writer.drain()
                await asyncio.sleep(0)
            if not pieces:
                peer.send(data)
            if then == "finish":
                peer.finish()
            elif then == "reset":
                await peer.writer.drain()
                peer.reset()

    return script


WHOLE = {
    "content-length": (GET, OK + b"content-length: 5\r\n\r\nhello", 200, b"hello", True),
    "chunked": (GET, CHUNKED + b"2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", 200, b"hello", True),
    "trailers": (GET, CHUNKED + b"5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n", 200, b"hello", True),
    "empty": (GET, OK + b"content-length: 0\r\n\r\n", 200, b"", True),
    "no content": (POST, b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    "not modified": (GET, b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", 304, b"", True),
    "head": (HEAD, OK + b"content-length: 5\r\n\r\n", 200, b"", False),
    "head, chunked": (HEAD, CHUNKED, 200, b"", False),
    "continue": (
        POST,
        b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\n" + OK + b"content-length: 2\r\n\r\nhi",
        200,
        b"hi",
        True,
    ),
    "two hints": (
        GET,
        b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" * 2 + OK + b"content-length: 2\r\n\r\nhi",
        200,
        b"hi",
        True,
    ),
    "connection: close": (GET, OK + b"connection: close\r\ncontent-length: 2\r\n\r\nhi", 200, b"hi", False),
    "HTTP/1.0": (GET, b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", 200, b"hi", False),
    "HTTP/1.0 that stays": (
        GET,
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nhi",
        200,
        b"hi",
        True,
    ),
    "identity": (GET, OK + b"content-encoding: identity\r\ncontent-length: 2\r\n\r\nhi", 200, b"hi", True),
    "error status": (GET, b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\nhi", 503, b"hi", True),
    "stray bytes": (GET, OK + b"content-length: 2\r\n\r\nhiHTT", 200, b"hi", False),
    "stray garbage": (GET, OK + b"content-length: 2\r\n\r\nhi\0\0", 200, b"hi", False),
    "a second response": (GET, (OK + b"content-length: 2\r\n\r\nhi") * 2, 200, b"hi", False),
    "a second response after chunks": (GET, CHUNKED + b"2\r\nhi\r\n0\r\n\r\n" + CHUNKED, 200, b"hi", False),
    "most fields": (GET, OK + b"a: b\r\n" * (HEAD_FIELDS - 1) + b"content-length: 2\r\n\r\nhi", 200, b"hi", True),
}


@pytest.mark.parametrize("case", WHOLE)
async def test_whole(case: str, serve: Serve, pooled: MakeClient) -> None:
    request, data, status, body, kept = WHOLE[case]
    worker, client = await serve(answers(data)), pooled()
    for turn in (1, 2):
        exchange = await client.send(request, worker.address, SOON)
        assert exchange.status == status
        assert await exchange.body(100) == body
        assert await exchange.read() == b""
        assert client.idle == kept
        assert len(worker.peers) == (1 if kept else turn)


@pytest.mark.parametrize("case", ["content-length", "chunked", "trailers", "continue", "two hints", "no content"])
async def test_whole_one_byte_at_a_time(case: str, serve: Serve, pooled: MakeClient) -> None:
    request, data, status, body, _ = WHOLE[case]
    worker, client = await serve(answers(data, pieces=True)), pooled()
    for _ in range(2):
        exchange = await client.send(request, worker.address, SOON)
        assert (exchange.status, await exchange.body(100)) == (status, body)
    assert len(worker.peers) == 1


async def test_headers_arrive_in_order_and_lower_case(serve: Serve, pooled: MakeClient) -> None:
    worker = await serve(answers(OK + b"X-B: 1\r\nX-A:  two words \r\nx-b:\r\nContent-Length: 0\r\n\r\n"))
    exchange = await pooled().send(GET, worker.address, SOON)
    assert exchange.headers == [(b"x-b", b"1"), (b"x-a", b"two words"), (b"x-b", b""), (b"content-length", b"0")]


async def test_interim_headers_are_not_the_responses(serve: Serve, pooled: MakeClient) -> None:
    worker = await serve(answers(b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" + OK + b"content-length: 0\r\n\r\n"))
    assert (await pooled().send(GET, worker.address, SOON)).headers == [(b"content-length", b"0")]


async def test_close_delimited_body_ends_well_at_eof(serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(answers(OK + b"\r\nhello", then="finish")), pooled()
    exchange = await client.send(GET, worker.address, SOON)
    assert await exchange.body(100) == b"hello"
    assert client.idle == 0


async def test_close_delimited_body_ends_badly_at_a_reset(serve: Serve, pooled: MakeClient) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(OK + b"\r\nhello")
        await read.wait()
        peer.reset()

    read = asyncio.Event()
    worker = await serve(script)
    exchange = await pooled().send(GET, worker.address, SOON)
    assert await exchange.read() == b"hello"
    read.set()
    with pytest.raises(GatewayError) as caught:
        await exchange.read()
    assert caught.value.kind is Kind.TRUNCATED


REFUSED = {
    "garbage": b"SSH-2.0-OpenSSH_9.2\r\n",
    "html without a head": b"<html>oops</html>",
    "two lengths": OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\nhi!",
    "the same length twice": OK + b"content-length: 2\r\ncontent-length: 2\r\n\r\nhi",
    "a list of lengths": OK + b"content-length: 2, 2\r\n\r\nhi",
    "negative length": OK + b"content-length: -2\r\n\r\nhi",
    "overflowing length": OK + b"content-length: 99999999999999999999999\r\n\r\nhi",
    "length and chunks": OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": OK + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n0\r\n\r\n",
    "chunked twice": OK + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "compressed transfer": OK + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "transfer without chunks": OK + b"transfer-encoding: gzip\r\n\r\n0\r\n\r\n",
    "compressed content": OK + b"content-encoding: gzip\r\ncontent-length: 4\r\n\r\n\x1f\x8b\x08\x00",
    "switching": b"HTTP/1.1 101 Switching\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\nPRI",
    "switching without a word": b"HTTP/1.1 101 Switching\r\n\r\n",
    "status 099": b"HTTP/1.1 099 What\r\n\r\n",
    "status 600": b"HTTP/1.1 600 What\r\n\r\n",
    "status of four digits": b"HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n",
    "status of 1000 digits": b"HTTP/1.1 " + b"2" * 1000 + b" OK\r\n\r\n",
    "signed status": b"HTTP/1.1 +20 OK\r\n\r\n",
    "length of 300 digits": OK + b"content-length: " + b"9" * 300 + b"\r\n\r\n",
    "length that is no number": OK + b"content-length: 0x10\r\n\r\n",
    "length beyond 64 bits": OK + b"content-length: 18446744073709551616\r\n\r\n",
    "folded header": OK + b"a: b\r\n c\r\ncontent-length: 0\r\n\r\n",
    "bare line feeds": b"HTTP/1.1 200 OK\ncontent-length: 0\n\n",
    "control character in a header": OK + b"a: \x01\r\ncontent-length: 0\r\n\r\n",
    "NUL in a header": OK + b"a: \0\r\ncontent-length: 0\r\n\r\n",
    "space before the colon": OK + b"content-length : 0\r\n\r\n",
    "too many fields": OK + b"a: b\r\n" * HEAD_FIELDS + b"content-length: 2\r\n\r\nhi",
    "100k fields": OK + b"a: b\r\n" * 100_000,
    "head too large": OK + b"a: " + b"b" * HEAD_BYTES + b"\r\ncontent-length: 2\r\n\r\nhi",
    "endless header line": OK + b"a: " + b"b" * (HEAD_BYTES + 1),
    "endless header name": OK + b"a" * (HEAD_BYTES + 1),
    "endless reason": b"HTTP/1.1 200 " + b"b" * (HEAD_BYTES + 1),
    "endless hints": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2000,
}


@pytest.mark.parametrize("case", REFUSED)
async def test_refused_before_the_head(case: str, serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(answers(REFUSED[case])), pooled()
    with pytest.raises(GatewayError) as caught:
        await client.send(GET, worker.address, SOON)
    assert (caught.value.kind, caught.value.blame) == (Kind.UPSTREAM, Blame.WORKER)
    assert str(worker.port) not in caught.value.message
    await worker.left(0)
    assert len(worker.peers) == 1
    assert client.idle == 0


async def test_exactly_the_largest_head_is_accepted(serve: Serve, pooled: MakeClient) -> None:
    end = b"\r\ncontent-length: 2\r\n\r\n"
    filler = b"a: " + b"b" * (HEAD_BYTES - len(OK) - len(end) - 3)
    worker = await serve(answers(OK + filler + end + b"hi"))
    exchange = await pooled().send(GET, worker.address, SOON)
    assert await exchange.body(2) == b"hi"


BROKEN = {
    "short of its length": (OK + b"content-length: 9\r\n\r\nhello", "finish", Kind.TRUNCATED),
    "reset short of its length": (OK + b"content-length: 9\r\n\r\nhello", "reset", Kind.TRUNCATED),
    "between chunks": (CHUNKED + b"5\r\nhello\r\n", "finish", Kind.TRUNCATED),
    "in a chunk": (CHUNKED + b"5\r\nhello\r\n5\r\nwo", "finish", Kind.TRUNCATED),
    "in the last chunk": (CHUNKED + b"5\r\nhello\r\n0\r\n", "finish", Kind.TRUNCATED),
    "no chunk size": (CHUNKED + b"5\r\nhello\r\nzz\r\n", "wait", Kind.UPSTREAM),
    "wrong chunk size": (CHUNKED + b"5\r\nhello world\r\n", "wait", Kind.UPSTREAM),
    "overflowing chunk size": (CHUNKED + b"5\r\nhello\r\nfffffffffffffffff1\r\n", "wait", Kind.UPSTREAM),
    "chunk size beyond 64 bits": (CHUNKED + b"5\r\nhello\r\n10000000000000000\r\n", "wait", Kind.UPSTREAM),
    "chunk size of 300 digits": (CHUNKED + b"5\r\nhello\r\n" + b"f" * 300 + b"\r\n", "wait", Kind.UPSTREAM),
    "signed chunk size": (CHUNKED + b"5\r\nhello\r\n+5\r\n", "wait", Kind.UPSTREAM),
    "endless chunk size": (CHUNKED + b"5\r\nhello\r\n" + b"0" * 200_000, "wait", Kind.UPSTREAM),
    "endless chunk extension": (CHUNKED + b"5\r\nhello\r\n1;" + b"x" * 200_000, "wait", Kind.UPSTREAM),
    "endless trailers": (CHUNKED + b"5\r\nhello\r\n0\r\n" + b"a: b\r\n" * 50_000, "wait", Kind.UPSTREAM),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_broken_body(case: str, serve: Serve, pooled: MakeClient) -> None:
    data, then, kind = BROKEN[case]
    worker, client = await serve(answers(data, then=then)), pooled()
    seen = b""
    with pytest.raises(GatewayError) as caught:  # noqa: PT012
        exchange = await client.send(GET, worker.address, SOON)
        while block := await exchange.read():
            seen += block
    assert (caught.value.kind, caught.value.blame) == (kind, Blame.WORKER)
    if then != "reset":  # a reset may overtake what was sent before it
        assert seen.startswith(b"hello")
    with pytest.raises(GatewayError):
        await exchange.read()
    assert client.idle == 0


@pytest.mark.parametrize("data", [b"H", OK, OK + b"content-length: 5\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_cut_in_the_head(data: bytes, serve: Serve, pooled: MakeClient) -> None:
    worker = await serve(answers(data, then="finish"))
    with pytest.raises(GatewayError, match="in the middle of a response head") as caught:
        await pooled().send(GET, worker.address, SOON)
    assert caught.value.kind is Kind.UPSTREAM


async def test_body_over_the_limit(serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(answers(OK + b"content-length: 99\r\n\r\n" + b"x" * 11)), pooled()
    exchange = await client.send(GET, worker.address, SOON)
    with pytest.raises(GatewayError) as caught:
        await exchange.body(10)
    assert (caught.value.kind, caught.value.retryable) == (Kind.UPSTREAM, False)
    await worker.left(0)
