"""What the transport knows of the silence of the replies that a worker owes."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING

import pytest

from gateway.core.figures import Silence, merged_silence
from gateway.core.http import Request
from gateway.core.ports import BodySink, Deadlines
from tests.unit.transport.conftest import once

if TYPE_CHECKING:
    from tests.unit.transport.conftest import MakeClient, Peer, Serve

ASK = Request("GET", "/")


def head(status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\ncontent-length: 3\r\n\r\n"


class Sink(BodySink):
    """Waits for blocks."""

    def __init__(self) -> None:
        self.came = asyncio.Event()

    def block(self, data: bytes) -> None:
        self.came.set()

    def finished(self, error: Exception | None) -> None:
        self.came.set()


async def test_a_head_is_not_progress_and_a_piece_of_the_body_is(serve: Serve, pooled: MakeClient) -> None:
    go = asyncio.Event()

    async def answer(peer: Peer) -> None:
        await peer.request()
        peer.send(head())
        await go.wait()
        peer.send(b"x")
        await peer.gone()

    worker, client = await serve(answer), pooled()
    assert client.silence(worker.address, inf) is None
    began = asyncio.get_running_loop().time()
    exchange = await client.send(ASK, worker.address, Deadlines())
    silent = client.silence(worker.address, inf)
    assert silent is not None
    assert silent.body_at is None
    assert began <= silent.since
    sink = Sink()
    exchange.pipe(sink)
    await asyncio.sleep(0.002)  # the event loop's clock has milliseconds
    go.set()
    await sink.came.wait()
    heard = client.silence(worker.address, inf)
    assert heard is not None
    assert heard.body_at == heard.since > silent.since
    assert client.silence(worker.address, silent.since) == heard
    exchange.close()
    assert client.silence(worker.address, inf) is None


@pytest.mark.parametrize("why", ["a client that does not read", "an error's body"])
async def test_what_a_worker_does_not_owe(why: str, serve: Serve, pooled: MakeClient) -> None:
    worker, client = await serve(once(head(b"500 no" if why == "an error's body" else b"200 OK"))), pooled()
    exchange = await client.send(ASK, worker.address, Deadlines())
    if why == "a client that does not read":
        exchange.pause()
        assert client.silence(worker.address, inf) is None
        exchange.resume()
        assert client.silence(worker.address, inf) is not None
    else:
        assert client.silence(worker.address, inf) is None
    exchange.close()


def test_of_several_replies_the_newest_piece_and_the_longest_silence_count() -> None:
    assert merged_silence([]) is merged_silence([None]) is None
    assert merged_silence([None, Silence(None, 3.0), Silence(7.0, 7.0), Silence(5.0, 5.0)]) == Silence(7.0, 3.0)
