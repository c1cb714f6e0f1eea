"""Which connections are used again, and the one retry that a stale connection earns."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request
from gateway.core.ports import Deadlines
from gateway.transport.connection import WorkerConnection
from gateway.transport.incoming import Incoming
from gateway.transport.pooled import Pooled
from tests.support.harness import in_one_of, soon
from tests.unit.transport.conftest import REPLY, once, polite

if TYPE_CHECKING:
    from tests.unit.transport.conftest import MakeClient, Peer, Script, Serve


ASK = Request("POST", "/v1", [], b"{}")
SOON = Deadlines(connect=30, first_byte=30, idle=30)


async def ask(client: Pooled, address: str) -> bytes:
    return await (await client.send(ASK, address, SOON)).body(100)


def once_then(ending: str) -> Script:
    """Answers the first request; has read the second one whole when it ends the connection."""

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(REPLY)
        await peer.request()
        if ending == "reset":
            peer.reset()
        elif ending == "byte":
            peer.send(b"H")

    return script


async def test_one_connection_for_many_requests(serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(polite), pooled()
    for _ in range(5):
        assert await ask(client, worker.address) == b"hi"
        assert (client.open, client.idle) == (1, 1)
    assert len(worker.peers) == 1


async def test_nothing_is_kept_of_a_worker_that_has_left_once_its_requests_have_ended(
    serve: Serve, pooled: MakeClient
) -> None:
    asked, may_end = asyncio.Event(), asyncio.Event()

    async def slow(peer: Peer) -> None:
        await peer.request()
        asked.set()
        await may_end.wait()
        peer.send(REPLY)
        await peer.gone()

    first, second, client = await serve(polite), await serve(slow), pooled(max_idle=0)
    assert await ask(client, first.address) == b"hi"
    asking = asyncio.create_task(ask(client, second.address))
    await asked.wait()
    client.forget(second.address)
    assert list(client.origins) == [first.address, second.address]
    may_end.set()
    assert await asking == b"hi", "it ends where it runs"
    client.forget(first.address)
    client.forget("http://unknown:1")
    assert client.origins == {}


async def test_a_worker_that_has_left_may_come_back(serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(polite), pooled()
    for _ in range(2):
        assert await ask(client, worker.address) == b"hi"
        assert (list(client.origins), client.idle) == ([worker.address], 1)
        client.forget(worker.address)
        assert (client.origins, client.open) == ({}, 0)
    assert len(worker.peers) == 2


async def test_a_worker_that_leaves_while_a_request_connects_serves_it(serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(polite), pooled()
    asking = asyncio.create_task(ask(client, worker.address))
    await asyncio.sleep(0)
    client.forget(worker.address)
    assert await asking == b"hi"
    assert client.open == 1, "it closes with the client"


async def test_given_back_when_whole_though_unread(serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(polite), pooled()
    first = await client.send(ASK, worker.address, SOON)
    second = await client.send(ASK, worker.address, SOON)
    first.close()  # too late to hurt anybody
    assert await second.body(10) == b"hi"
    assert len(worker.peers) == 1


async def test_the_connection_used_last_is_taken_first(serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(polite), pooled()
    await asyncio.gather(*(ask(client, worker.address) for _ in range(3)))
    idle = list(client.origins[worker.address].idle)
    assert len(idle) == 3
    await ask(client, worker.address)
    assert list(client.origins[worker.address].idle) == idle
    taken = client.origins[worker.address].take()
    assert taken is idle[-1]
    taken.drop()


async def test_no_more_idle_connections_than_allowed(serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(polite), pooled(max_idle=2)
    await asyncio.gather(*(ask(client, worker.address) for _ in range(5)))
    assert client.idle == 2
    await soon(lambda: client.open == 2)


async def test_addresses_do_not_share(serve: Serve, pooled: MakeClient) -> None:
    one, two, client = await serve(polite), await serve(polite), pooled()
    await ask(client, one.address)
    await ask(client, two.address)
    assert (len(one.peers), len(two.peers), client.idle) == (1, 1, 2)


async def test_idle_connection_expires(serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(polite), pooled(idle_expiry=0.05)
    await ask(client, worker.address)
    await worker.left(0)
    assert client.idle == 0
    await ask(client, worker.address)
    assert len(worker.peers) == 2


async def test_use_prolongs_the_life_of_a_connection(serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(polite), pooled(idle_expiry=0.3)

    async def one_connection() -> bool:
        await ask(client, worker.address)
        before = len(worker.peers)
        for _ in range(5):
            await asyncio.sleep(0.1)
            await ask(client, worker.address)
        return len(worker.peers) == before

    assert await in_one_of(5, one_connection)


async def test_closed_by_the_worker_while_idle(serve: Serve, pooled: MakeClient) -> None:
    async def brief(peer: Peer) -> None:
        await peer.request()
        peer.send(REPLY)

    worker, client = await serve(brief), pooled()
    for turn in (1, 2, 3):
        await ask(client, worker.address)
        await soon(lambda: client.open == 0)
        assert len(worker.peers) == turn


async def test_stray_bytes_while_idle(serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(polite), pooled()
    await ask(client, worker.address)
    worker.peers[0].send(b"\r\n")
    await soon(lambda: client.open == 0)
    assert await ask(client, worker.address) == b"hi"
    assert len(worker.peers) == 2


async def test_stray_bytes_that_the_loop_has_not_seen_yet(serve: Serve, pooled: MakeClient) -> None:
    """A worker's 408 on an idle connection must not become the answer to the next request."""
    worker, client = await serve(polite), pooled()
    await ask(client, worker.address)
    os.write(worker.peers[0].socket.fileno(), b"HTTP/1.1 408 Timeout\r\ncontent-length: 0\r\n\r\n")
    assert (await client.send(ASK, worker.address, SOON)).status == 200
    assert len(worker.peers) == 2


async def test_stray_bytes_that_were_read_and_not_taken_in(serve: Serve, pooled: MakeClient) -> None:
    """What comes is taken in when all sockets were read; in between its connection must not be used again."""
    worker, client = await serve(polite), pooled()
    await ask(client, worker.address)
    (idle,) = client.origins[worker.address].idle
    stray = b"HTTP/1.1 408 Timeout\r\ncontent-length: 0\r\n\r\n"
    assert isinstance(idle, WorkerConnection)
    idle.get_buffer(0)[: len(stray)] = stray
    idle.buffer_updated(len(stray))
    assert (await client.send(ASK, worker.address, SOON)).status == 200
    assert len(worker.peers) == 2


@pytest.mark.parametrize("ending", ["finish", "reset"])
async def test_stale_connection_is_retried_on_a_fresh_one(ending: str, serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(once_then(ending), polite), pooled()
    assert await ask(client, worker.address) == b"hi"
    assert await ask(client, worker.address) == b"hi"
    assert len(worker.peers) == 2


async def test_retry_does_not_take_another_idle_connection(serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(once_then("finish"), once_then("finish"), polite), pooled()
    await asyncio.gather(ask(client, worker.address), ask(client, worker.address))
    assert client.idle == 2
    assert await ask(client, worker.address) == b"hi"
    assert len(worker.peers) == 3
    assert client.idle == 2  # the other one, which may be stale too, was not put to the test


async def test_stale_connection_is_retried_once(serve: Serve, pooled: MakeClient) -> None:
    async def refuses(peer: Peer) -> None:
        await peer.request()
        peer.reset()

    worker, client = await serve(once_then("reset"), refuses), pooled()
    await ask(client, worker.address)
    with pytest.raises(GatewayError, match="before answering") as caught:
        await ask(client, worker.address)
    assert (caught.value.kind, caught.value.retryable) == (Kind.UPSTREAM, True)
    assert len(worker.peers) == 2


@pytest.mark.parametrize("ending", ["finish", "reset"])
async def test_fresh_connection_is_not_retried(ending: str, serve: Serve, pooled: MakeClient) -> None:
    async def refuses(peer: Peer) -> None:
        await peer.request()
        if ending == "reset":
            peer.reset()

    worker, client = await serve(refuses), pooled()
    with pytest.raises(GatewayError, match="before answering") as caught:
        await ask(client, worker.address)
    assert (caught.value.kind, caught.value.retryable) == (Kind.UPSTREAM, True)
    assert len(worker.peers) == 1


async def test_no_retry_after_the_first_byte(serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(once_then("byte"), polite), pooled()
    await ask(client, worker.address)
    with pytest.raises(GatewayError, match="in the middle of a response head"):
        await ask(client, worker.address)
    assert len(worker.peers) == 1


async def test_no_retry_after_a_timeout(serve: Serve, pooled: MakeClient) -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        peer.send(REPLY)
        await peer.request()
        await peer.gone()

    worker, client = await serve(silent, polite), pooled()
    await ask(client, worker.address)
    with pytest.raises(GatewayError) as caught:
        await client.send(ASK, worker.address, Deadlines(first_byte=0.05))
    assert caught.value.kind is Kind.TIMEOUT
    assert len(worker.peers) == 1


async def test_answer_while_the_request_is_being_written(serve: Serve, pooled: MakeClient) -> None:
    async def early(peer: Peer) -> None:
        await peer.head()
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await told.wait()
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await peer.gone()

    told = asyncio.Event()
    worker, client = await serve(early, polite), pooled()
    exchange = await client.send(Request("POST", "/", [], bytes(20_000_000)), worker.address, SOON)
    assert (exchange.status, await exchange.body(10)) == (413, b"no")
    assert client.idle == 0
    told.set()
    assert await ask(client, worker.address) == b"hi"
    assert len(worker.peers) == 2


async def test_close_ends_idle_and_running_exchanges(serve: Serve, pooled: MakeClient) -> None:
    asked = asyncio.Event()
    worker, client = (
        await serve(polite, once(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi"), once(b"", asked)),
        pooled(),
    )
    kept = await client.send(ASK, worker.address, SOON)
    taken = client.origins[worker.address].take()  # so that the next ones are fresh
    assert taken is not None
    running: Incoming = await client.send(ASK, worker.address, SOON)
    waiting = asyncio.ensure_future(client.send(ASK, worker.address, SOON))
    await asked.wait()
    client.origins[worker.address].keep(taken)
    assert client.open == 3
    await client.close()
    assert client.open == client.idle == 0
    assert await kept.read() == b"hi"
    assert await running.read() == b"hi"
    for attempt in (running.read(), waiting, client.send(ASK, worker.address, SOON)):
        with pytest.raises(GatewayError) as caught:
            await attempt
        assert caught.value.kind is Kind.DRAINING
