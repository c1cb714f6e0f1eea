"""A client that has its whole reply and leaves at once: the reply was complete, in every dialect, streamed and not."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, cast

import pytest

from gateway.server import EXTENSION, RequestCycle
from gateway.server.connection import ClientConnection
from tests.laws.conformance.clients import CLIENTS, Client
from tests.support.clients import MEDIA, WAYS, Way
from tests.support.harness import Stack, until
from tests.support.sampled import sampled
from tests.unit.kernel.asking import plain_asgi
from tests.unit.server.raw import GONE, Raw

SAID = 'sim:{"text": "one two three"}'
RESET = struct.pack("ii", 1, 0)
STREAMED = [way for way in WAYS if way.operation in ("chat", "complete") and way.answers(stream=True)]
WHOLE = [way for way in WAYS if way.answers(stream=False) and way.operation not in MEDIA]


def begun(stack: Stack, way: Way, version: str, *, stream: bool) -> socket.socket:
    data = json.dumps(way.body(SAID, model="m", stream=stream)).encode()
    client = socket.create_connection(("127.0.0.1", int(stack.url.rsplit(":", 1)[1])))
    client.settimeout(30)
    head = f"POST {way.path('m')} HTTP/{version}\r\nhost: x\r\ncontent-type: application/json\r\n"
    client.sendall(head.encode() + b"content-length: %d\r\n\r\n%b" % (len(data), data))
    return client


def body_of(received: bytes) -> bytes | None:
    """The body that has come until now; None before its head has."""
    head, ended, body = received.partition(b"\r\n\r\n")
    if not ended:
        return None
    if b"transfer-encoding: chunked" not in head.lower():
        return body
    found = b""
    while (size := re.match(rb"([0-9a-f]+)\r\n", body)) and len(body) >= size.end() + int(size[1], 16):
        end = size.end() + int(size[1], 16)
        found, body = found + body[size.end() : end], body[end + 2 :]
    return found


def is_complete(clients: list[Client], stream: bytes) -> bool:
    for client in clients:
        with contextlib.suppress(Exception):  # half an event, or another client's form
            if client.hear(stream).complete:
                return True
    return False


class Watched:
    """A transport of the gateway. Once all of a reply was written to it, the event loop stands still until the client
    has left: the gateway learns of that before it does anything else."""

    def __init__(self, transport: Any, has_all: Callable[[bytes], bool], left: threading.Event) -> None:
        self._transport = transport
        self._has_all = has_all
        self._left = left
        self._written = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._transport.write(data)
        self._written += data
        if not self._left.is_set() and self._has_all(self._written):
            assert self._left.wait(30)

    def writelines(self, blocks: Sequence[bytes]) -> None:
        self.write(b"".join(blocks))


def leave_at_once(stack: Stack, way: Way, version: str, how: str, *, stream: bool) -> None:
    clients = [one for one in CLIENTS if (one.dialect, one.operation) == (way.dialect, way.operation)]

    def has_all(received: bytes) -> bool:
        body = body_of(received)
        if body is None:
            return False
        length = re.search(rb"content-length: (\d+)", received.lower())
        return len(body) == int(length[1]) if length else is_complete(clients, body)

    left = threading.Event()
    made = ClientConnection.connection_made

    def connected(self: ClientConnection, transport: Any) -> None:
        made(self, cast(Any, Watched(transport, has_all, left)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientConnection, "connection_made", connected)
        client, received = begun(stack, way, version, stream=stream), b""
        while not has_all(received):
            block = client.recv(65536)
            assert block, received
            received += block
        assert b" 200 " in received[:20], received
        if how == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        left.set()
        stack.records()


@pytest.mark.parametrize(("version", "how"), sampled(product(("1.1", "1.0"), ("close", "reset")), 4))
@pytest.mark.parametrize("wrap", [lambda app: app, plain_asgi], ids=["direct", "asgi"])
def test_who_has_the_whole_reply_did_not_cancel_it(wrap: Callable[[Any], Any], version: str, how: str) -> None:
    with Stack(({"itl_ms": 2},), wrap=wrap) as stack:  # so that the last words come alone
        lost = []
        for way, stream in [*((way, True) for way in STREAMED), *((way, False) for way in WHOLE)]:
            leave_at_once(stack, way, version, how, stream=stream)
            if stack.record()["outcome"] != "ok":
                lost.append((str(way), stream))
        assert lost == []
        assert len(stack.records()) == len(STREAMED) + len(WHOLE)


@pytest.mark.parametrize("reads", [True, False])
def test_a_slow_reader_has_its_reply_once_it_was_handed_over(reads: bool) -> None:
    cycles: list[tuple[RequestCycle, list[str]]] = []

    def streaming(app: Any) -> Any:
        async def run(scope: Any, receive: Any, send: Any) -> None:
            if scope.get("path") != "/slow":
                await app(scope, receive, send)
                return
            cycle = scope["extensions"][EXTENSION]
            told: list[str] = []
            cycle.on_gone = lambda: told.append("gone")
            await send({"type": "http.response.start", "status": 200, "headers": []})
            cycle.write(b"x" * 20_000_000)
            cycle.end()
            cycles.append((cycle, told))
            await cycle.finish(b"")
            told.append("taken")

        return run

    with Stack((), {"models": {"x": GONE}}, wrap=streaming) as stack, Raw(stack) as client:
        client.send(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        until(lambda: bool(cycles))
        cycle, told = cycles[0]
        assert not cycle.complete, "megabytes of it are still here"
        if reads:
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += client.socket.recv(1 << 20)
            assert received.count(b"x") >= 20_000_000
            until(lambda: told == ["taken"])
        else:
            client.socket.close()
            until(lambda: told == ["gone", "taken"])
        assert cycle.complete is reads
