"""TLS to workers: verified by default, by one's own CA where an address asks for it."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request
from gateway.core.ports import Deadlines
from tests.support.standins.serving import certificate, server_tls

if TYPE_CHECKING:
    from tests.unit.transport.conftest import MakeClient, Peer, Serve

ASK = Request("POST", "/v1", [], b"x" * 1_000_000)
SOON = Deadlines(connect=30, first_byte=30, idle=30)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def theirs(files: tuple[Path, Path]) -> ssl.SSLContext:
    return server_tls(files)


async def polite(peer: Peer) -> None:
    while True:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")


async def test_own_ca_per_address(
    files: tuple[Path, Path], theirs: ssl.SSLContext, serve: Serve, pooled: MakeClient
) -> None:
    asked: list[str] = []

    def ssl_for(address: str) -> ssl.SSLContext:
        asked.append(address)
        return ssl.create_default_context(cafile=files[0])

    worker, client = await serve(polite, tls=theirs), pooled(ssl_for=ssl_for)
    for _ in range(3):
        exchange = await client.send(ASK, worker.address, SOON)
        assert await exchange.body(10) == b"hi"
    assert (len(worker.peers), client.idle) == (1, 1)
    assert asked == [worker.address]


@pytest.mark.parametrize("known", [False, True])
async def test_a_certificate_of_nobody_we_trust(
    known: bool, theirs: ssl.SSLContext, serve: Serve, pooled: MakeClient
) -> None:
    worker = await serve(polite, tls=theirs)
    client = pooled(ssl_for=lambda address: None) if known else pooled()
    with pytest.raises(GatewayError, match=r"^the worker's certificate could not be verified$") as caught:
        await client.send(ASK, worker.address, SOON)
    assert caught.value.kind is Kind.UPSTREAM
    assert client.open == 0


async def test_a_certificate_for_another_name(
    files: tuple[Path, Path], theirs: ssl.SSLContext, serve: Serve, pooled: MakeClient
) -> None:
    context = ssl.create_default_context(cafile=files[0])
    worker = await serve(polite, tls=theirs)
    with pytest.raises(GatewayError, match="certificate"):
        await pooled(ssl_for=lambda address: context).send(ASK, f"https://localhost:{worker.port}", SOON)


async def test_a_worker_without_tls(serve: Serve, pooled: MakeClient) -> None:
    async def plain(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.gone()

    worker = await serve(plain)
    with pytest.raises(GatewayError, match="could not agree on TLS") as caught:
        await pooled().send(ASK, f"https://127.0.0.1:{worker.port}", SOON)
    assert caught.value.kind is Kind.UPSTREAM


async def test_a_cut_is_a_cut(
    files: tuple[Path, Path], theirs: ssl.SSLContext, serve: Serve, pooled: MakeClient
) -> None:
    async def cut(peer: Peer) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi")

    context = ssl.create_default_context(cafile=files[0])
    worker = await serve(cut, tls=theirs)
    exchange = await pooled(ssl_for=lambda address: context).send(ASK, worker.address, SOON)
    assert await exchange.read() == b"hi"
    with pytest.raises(GatewayError) as caught:
        await exchange.read()
    assert caught.value.kind is Kind.TRUNCATED
