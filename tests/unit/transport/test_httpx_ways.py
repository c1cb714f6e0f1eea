"""The ways to workers that httpx brings: through a proxy, and by HTTP/2."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.failures import Cause
from gateway.core.http import Request
from gateway.core.ports import Deadlines
from gateway.core.upload import Body, InMemory
from gateway.transport.by_httpx import ByHttpx
from gateway.transport.incoming import Incoming
from tests.support.harness import soon
from tests.support.standins.forward import ForwardProxy
from tests.support.standins.http2 import Http2Server, serving_http2
from tests.support.standins.serving import certificate, server_tls
from tests.unit.transport.conftest import REPLY, Peer, once, polite

if TYPE_CHECKING:
    from tests.unit.transport.conftest import Serve

ASK = Request("POST", "/v1/a b%2F", [(b"x-y", b"z")], b"{}", query=b"a=%20b")
SOON = Deadlines(connect=30, first_byte=30, idle=30)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


def trusting(files: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files[0])


# -- through a proxy ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["http", "https"])
def tls(request: pytest.FixtureRequest, files: tuple[Path, Path]) -> ssl.SSLContext | None:
    """The worker's: without it a plain request goes to the proxy, with it a tunnel."""
    return server_tls(files) if request.param == "https" else None


async def through(proxy: ForwardProxy, files: tuple[Path, Path], credentials: str = "") -> AsyncIterator[ByHttpx]:
    url = proxy.url.replace("://", f"://{credentials}@") if credentials else proxy.url
    client = ByHttpx(trusting(files), lambda address: url)
    yield client
    await client.close()
    assert client.open == client.idle == 0
    await soon(lambda: not proxy.open)


async def test_a_request_goes_through_the_proxy_as_it_would_go_without(
    serve: Serve, files: tuple[Path, Path], tls: ssl.SSLContext | None
) -> None:
    got: list[bytes] = []

    async def note(peer: Peer) -> None:
        while True:
            got.append(await peer.request())
            peer.send(REPLY)

    worker = await serve(note, tls=tls)
    async with ForwardProxy("me:a secret").serving() as proxy:
        async for client in through(proxy, files, "me:a%20secret"):
            for _ in range(2):
                assert await (await client.send(ASK, worker.address, SOON)).body(9) == b"hi"
            assert (client.idle, len(worker.peers), client.counts.opened, client.counts.reused) == (1, 1, 1, 1)
    target = b"/v1/a%20b%252F?a=%20b"
    assert got[0] == got[1] == (
        b"POST " + target + b" HTTP/1.1\r\nhost: " + worker.address.partition("//")[2].encode()
        + b"\r\naccept-encoding: identity\r\nx-y: z\r\ncontent-length: 2\r\n\r\n{}"
    )  # fmt: skip
    connect = f"CONNECT 127.0.0.1:{worker.port} HTTP/1.1"
    assert proxy.asked[0] == (connect if tls else f"POST {worker.address}{target.decode()} HTTP/1.1")


async def test_who_leaves_takes_the_way_through_the_proxy_along(
    serve: Serve, files: tuple[Path, Path], tls: ssl.SSLContext | None
) -> None:
    asked = asyncio.Event()
    worker = await serve(once(b"", asked), tls=tls)
    async with ForwardProxy().serving() as proxy:
        async for client in through(proxy, files):
            task = asyncio.ensure_future(client.send(ASK, worker.address, SOON))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await worker.left(0)


@pytest.mark.parametrize(
    ("proxy", "address", "cause", "says"),
    [
        (
            ForwardProxy("me:other"),
            "https://127.0.0.1:9",
            Cause.PROXY_KEY_REFUSED,
            "refused the gateway's user or password",
        ),
        (
            ForwardProxy("me:other"),
            "http://127.0.0.1:9",
            Cause.PROXY_KEY_REFUSED,
            "refused the gateway's user or password",
        ),
        (ForwardProxy(tunnels=403), "https://127.0.0.1:9", Cause.PROXY_REFUSED, "refused to connect to the worker"),
        (ForwardProxy(tunnels=502), "https://127.0.0.1:9", Cause.UNREACHABLE, "could not connect to the worker"),
        (ForwardProxy(), "https://127.0.0.1:9", Cause.UNREACHABLE, "could not connect to the worker"),
        (ForwardProxy(), "http://127.0.0.1:9", Cause.UNREACHABLE, "could not connect to the worker"),
    ],
)
async def test_a_proxy_that_refuses_or_reaches_no_worker(
    proxy: ForwardProxy, address: str, cause: Cause, says: str, files: tuple[Path, Path]
) -> None:
    async with proxy.serving():
        async for client in through(proxy, files, "me:word"):
            with pytest.raises(GatewayError) as caught:
                await client.send(ASK, address, SOON)
            error = caught.value
            assert (error.kind, error.why, error.message) == (Kind.UPSTREAM, cause, f"the proxy {says}")


@pytest.mark.parametrize(
    ("head", "cause"),
    [
        (b"403 No\r\nx-squid-error: ERR_ACCESS_DENIED 0", Cause.PROXY_REFUSED),
        (b"503 No\r\nx-squid-error: ERR_CONNECT_FAIL 111", Cause.UNREACHABLE),
        (b"503 No\r\nproxy-status: p; error=connection_refused", Cause.UNREACHABLE),
        (b"503 No\r\nproxy-status: p; received-status=503", None),
        (b"503 No", None),
        (b"403 No", None),
        (b"200 Yes\r\nx-squid-error: none", None),
    ],
)
async def test_an_answer_to_plain_http_is_the_proxys_own_where_its_head_says_so(
    head: bytes, cause: Cause | None, serve: Serve, files: tuple[Path, Path]
) -> None:
    proxy = await serve(once(b"HTTP/1.1 " + head + b"\r\ncontent-length: 0\r\n\r\n"))
    client = ByHttpx(trusting(files), lambda address: proxy.address)
    found = None
    try:
        status = (await client.send(ASK, "http://worker.example", SOON)).status
        assert status == int(head[:3])
    except GatewayError as error:
        found = error.why
    assert found is cause
    await client.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("kind", ["nothing listens", "unknown name", "certificate"])
async def test_a_proxy_that_cannot_be_reached(
    kind: str, scheme: str, serve: Serve, files: tuple[Path, Path], unused_tcp_port: int
) -> None:
    """The fault is the proxy's, not the worker's."""
    place = f"http://me:word@127.0.0.1:{unused_tcp_port}"
    if kind == "unknown name":
        place = f"http://me:word@{'a' * 64}.invalid:3128"
    elif kind == "certificate":
        untrusted = await serve(polite, tls=server_tls(files))
        place = untrusted.address.replace("://", "://me:word@")
    client = ByHttpx(trusting(files), lambda address: place)
    with pytest.raises(GatewayError) as caught:
        await client.send(ASK, f"{scheme}://worker.example", SOON)
    assert caught.value.why is Cause.PROXY_UNREACHABLE
    assert caught.value.message == "the proxy could not be reached"
    assert "word" not in str(caught.value)
    await client.close()


async def test_a_proxy_that_says_nothing_is_a_connection_that_takes_too_long(
    serve: Serve, files: tuple[Path, Path]
) -> None:
    async def mute(peer: Peer) -> None:
        await peer.gone()

    silent = await serve(mute)
    client = ByHttpx(trusting(files), lambda address: silent.address)
    with pytest.raises(GatewayError) as caught:
        await client.send(ASK, "https://worker.example", Deadlines(connect=0.1))
    assert (caught.value.kind, caught.value.why) == (Kind.TIMEOUT, Cause.CONNECT_TIMEOUT)
    await client.close()
    await silent.left(0)


# -- TLS to the worker ----------------------------------------------------------------------------------------------


async def test_a_certificate_of_nobody_we_trust(serve: Serve, files: tuple[Path, Path]) -> None:
    worker = await serve(polite, tls=server_tls(files))
    client = ByHttpx(ssl.create_default_context())
    with pytest.raises(GatewayError, match=r"^the worker's certificate could not be verified$") as caught:
        await client.send(ASK, worker.address, SOON)
    assert caught.value.why is Cause.CA_UNKNOWN
    await client.close()


async def test_a_worker_without_tls(serve: Serve, files: tuple[Path, Path]) -> None:
    async def plain(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.gone()

    worker = await serve(plain)
    client = ByHttpx(trusting(files))
    with pytest.raises(GatewayError, match="could not agree on TLS") as caught:
        await client.send(ASK, worker.address.replace("http", "https"), SOON)
    assert caught.value.why is Cause.NOT_TLS
    await client.close()


# -- HTTP/2 ---------------------------------------------------------------------------------------------------------


def echo(connection: Http2Server, stream: int, head: dict[str, str], body: bytes) -> None:
    connection.head(stream, "200", ("x-path", head[":path"]), ("x-length", str(len(body))))
    connection.send(stream, body[:9], end=True)


def nothing(connection: Http2Server, stream: int, head: dict[str, str], body: bytes) -> None: ...


async def test_http2_is_agreed_on(files: tuple[Path, Path], tls: ssl.SSLContext | None) -> None:
    body = Body((b"12", (0, 300_000), b"34"), InMemory(bytes(300_000)))
    async with serving_http2(echo, tls) as (address, connections):
        client = ByHttpx(trusting(files), http2=True)
        for _ in range(2):
            exchange = await client.send(ASK, address + "/base", SOON)
            assert exchange.headers == [(b"x-path", b"/base/v1/a%20b%252F?a=%20b"), (b"x-length", b"2")]
            assert (exchange.status, await exchange.body(9)) == (200, b"{}")
        large = await client.send(Request("POST", "/", upload=body), address + "/base", SOON)
        assert dict(large.headers)[b"x-length"] == b"300004"
        await large.body(9)
        assert (len(connections), client.idle) == (1, 1)
        await client.close()


async def test_a_worker_without_http2_is_spoken_to_as_ever(serve: Serve, files: tuple[Path, Path]) -> None:
    worker = await serve(polite, tls=server_tls(files))
    client = ByHttpx(trusting(files), http2=True)
    assert await (await client.send(ASK, worker.address, SOON)).body(9) == b"hi"
    await client.close()


@pytest.mark.parametrize("when", ["before the head", "in the body"])
async def test_http2_ends_at_the_worker_with_its_client(when: str) -> None:
    asked = asyncio.Event()

    def begin(connection: Http2Server, stream: int, head: dict[str, str], body: bytes) -> None:
        asked.set()
        if when == "in the body":
            connection.head(stream)
            connection.send(stream, b"one")

    async with serving_http2(begin) as (address, connections):
        client = ByHttpx(ssl.create_default_context(), http2=True)
        sending = asyncio.ensure_future(client.send(ASK, address, SOON))
        await asked.wait()
        if when == "in the body":
            exchange = await sending
            assert await exchange.read() == b"one"
            exchange.close()
        else:
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
        await asyncio.wait_for(connections[0].lost.wait(), 30)
        await client.close()


async def test_a_slow_reader_of_http2_holds_up_nobody_and_little() -> None:
    def flood(connection: Http2Server, stream: int, head: dict[str, str], body: bytes) -> None:
        connection.head(stream)
        for _ in range(1000):
            if connection.h2.local_flow_control_window(stream) < 16384:
                break
            connection.send(stream, bytes(16384))

    async with serving_http2(flood) as (address, connections):
        client = ByHttpx(ssl.create_default_context(), http2=True)
        slow = await client.send(ASK, address, SOON)
        quick = await client.send(ASK, address, SOON)
        got = 0
        while got < 1_000_000:
            got += len(await quick.read())
        assert slow._size <= 128 * 1024  # its memory is bounded
        assert len(connections) == 2
        slow.close()
        quick.close()
        await client.close()


def resets(connection: Http2Server, stream: int, head: dict[str, str], body: bytes) -> None:
    connection.h2.reset_stream(stream)


def goes_away(connection: Http2Server, stream: int, head: dict[str, str], body: bytes) -> None:
    connection.h2.close_connection()
    connection.flush()
    connection.transport.close()


def breaks(connection: Http2Server, stream: int, head: dict[str, str], body: bytes) -> None:
    connection.transport.write(b"\0\0\5\1\4\0\0\0\1\xff\xff\xff\xff\xff")


def stops(connection: Http2Server, stream: int, head: dict[str, str], body: bytes) -> None:
    connection.head(stream)
    connection.send(stream, b"one")
    connection.h2.reset_stream(stream)


def many_headers(connection: Http2Server, stream: int, head: dict[str, str], body: bytes) -> None:
    connection.head(stream, "200", *[(f"x-{number}", "y") for number in range(101)])


@pytest.mark.parametrize(
    ("answer", "kind", "cause"),
    [
        (resets, Kind.UPSTREAM, Cause.BROKE_OFF),
        (goes_away, Kind.UPSTREAM, Cause.BROKE_OFF),
        (breaks, Kind.UPSTREAM, Cause.MALFORMED),
        (stops, Kind.TRUNCATED, Cause.BROKE_OFF),
        (many_headers, Kind.UPSTREAM, Cause.MALFORMED),
        (nothing, Kind.TIMEOUT, Cause.SILENT),
    ],
)
async def test_failures_of_http2(answer: object, kind: Kind, cause: Cause) -> None:
    assert callable(answer)
    async with serving_http2(answer) as (address, _):
        client = ByHttpx(ssl.create_default_context(), http2=True)
        with pytest.raises(GatewayError) as caught:  # noqa: PT012
            exchange = await client.send(ASK, address, Deadlines(30, 0.3 if answer is nothing else 30, 30))
            await exchange.body(9)
        assert (caught.value.kind, caught.value.why) == (kind, cause)
        await client.close()
        assert client.open == 0


async def test_tiny_chunks_of_one_read_leave_the_loop_to_others(
    serve: Serve, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """httpcore returns the ten thousand chunks of a read without a wait."""
    arrived = before = most = 0
    arrive = Incoming.arrive

    def counted(exchange: Incoming, block: bytes) -> None:
        nonlocal arrived
        arrived += 1
        arrive(exchange, block)

    def turn() -> None:
        nonlocal before, most
        before, most = arrived, max(most, arrived - before)
        turns.append(asyncio.get_running_loop().call_soon(turn))

    async def tiny(peer: Peer) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 30_000 + b"0\r\n\r\n")

    monkeypatch.setattr(Incoming, "arrive", counted)
    worker = await serve(tiny)
    client = ByHttpx(trusting(files))
    turns = [asyncio.get_running_loop().call_soon(turn)]
    exchange = await client.send(ASK, worker.address, SOON)
    assert len(await exchange.body(1 << 20)) == 30_000
    turns[-1].cancel()
    await client.close()
    assert arrived >= 30_000
    assert most < 5_000
