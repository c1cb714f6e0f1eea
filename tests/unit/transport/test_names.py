"""Workers by name: a name server that is away takes no worker away."""

from __future__ import annotations

import asyncio
import socket
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request
from gateway.core.ports import Deadlines
from gateway.transport import names
from gateway.transport.names import KNOWN_S, Name
from tests.unit.transport.conftest import MakeClient, Peer, Serve

SOON = Deadlines(connect=30.0, first_byte=30.0, idle=30.0)
AGAIN = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
NONE = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
Told = list[str] | socket.gaierror | Literal["silence"]


class NameServer:
    """Answers as it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: Told = ["127.0.0.1"]
        monkeypatch.setattr(names, "look_up", self.look_up)

    async def look_up(self, host: str, port: int) -> list[str]:
        if isinstance(self.told, socket.gaierror):
            raise self.told
        if self.told == "silence":
            await asyncio.Event().wait()
        assert isinstance(self.told, list)
        return self.told


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> NameServer:
    return NameServer(monkeypatch)


async def answer(peer: Peer) -> None:
    """One request a connection."""
    await peer.request()
    peer.send(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")


_TOLD = st.sampled_from([["192.0.2.1"], ["192.0.2.2", "192.0.2.3"], AGAIN, NONE, "silence"])


@given(st.lists(_TOLD, max_size=8))
def test_the_last_addresses_hold_while_no_name_server_answers(answers: list[Told]) -> None:
    async def ask() -> None:
        with pytest.MonkeyPatch.context() as patched:
            server, name, known = NameServer(patched), Name("worker.test", 80), list[str]()
            for server.told in answers:
                if isinstance(server.told, list):
                    known = server.told
                elif server.told is NONE or not known:
                    with pytest.raises(OSError):
                        async with asyncio.timeout(0.01):
                            await name.addresses(1e-3)
                    continue
                assert await name.addresses(1e-3) == known

    asyncio.run(ask())


async def test_requests_go_on_while_no_name_server_answers(
    serve: Serve, pooled: MakeClient, server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, client = await serve(answer), pooled()
    address = f"http://worker.test:{worker.port}"

    async def ask() -> int:
        exchange = await client.send(Request("GET", "/"), address, SOON)
        assert await exchange.read() == b""
        return exchange.status

    server.told = AGAIN
    with pytest.raises(GatewayError, match=r"^the worker's name could not be resolved$"):
        await ask()
    server.told = ["127.0.0.1"]
    assert await ask() == 200
    server.told = AGAIN
    assert await ask() == 200
    server.told = "silence"
    monkeypatch.setattr(names, "_PATIENCE", 1e-3)
    assert await ask() == 200
    server.told = NONE
    with pytest.raises(GatewayError, match=r"^the worker's name could not be resolved$") as caught:
        await ask()
    assert caught.value.kind is Kind.UPSTREAM
    server.told = AGAIN
    monkeypatch.setattr(names, "KNOWN_S", 0.0)
    with pytest.raises(GatewayError, match=r"^the worker's name could not be resolved$"):
        await ask()
    assert KNOWN_S > 60


async def test_the_next_address_is_tried_where_one_refuses(
    serve: Serve, pooled: MakeClient, server: NameServer
) -> None:
    worker = await serve(answer)
    server.told = ["127.0.0.2", "127.0.0.1"]
    exchange = await pooled().send(Request("GET", "/"), f"http://worker.test:{worker.port}", SOON)
    assert exchange.status == 200
    exchange.close()
    server.told = ["127.0.0.2"]
    with pytest.raises(GatewayError, match=r"^the worker refused the connection$"):
        await pooled().send(Request("GET", "/"), f"http://worker.test:{worker.port}", SOON)
