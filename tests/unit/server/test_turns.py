"""One connection takes little of the memory and of the turns of the loop, whatever it sends."""

from __future__ import annotations

import contextlib
import json
import socket
import weakref
from typing import Any

import pytest

from gateway.config import Listen
from gateway.server import HttpProtocol
from tests.support.harness import Stack, until
from tests.unit.server.raw import (
    CHUNKED,
    GONE,
    LIMITED,
    MODELS,
    QUICK,
    Raw,
    chat,
    chunked,
    connections,
    only_connection,
    post,
    scripted,
)

FLOODS = {
    "unknown path": b"GET /none HTTP/1.1\r\nhost: x\r\n\r\n",
    "livez": b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n",
    "large replies": b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n",
    "streams": b"GET /streamed HTTP/1.1\r\nhost: x\r\n\r\n",
    "chat": post(chat(scripted(text="x" * 10_000))),
    "refused body": post(chat(), path=b"/none"),
    "one-byte chunks": chunked(json.dumps(chat()).encode(), 1),
}
LARGE_REPLY = b"x" * 1_000_000


def large_replies(app: Any) -> Any:
    """The application, and two paths that answer a megabyte: by the seam, and by plain ASGI in blocks."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] not in ("/large", "/streamed"):
            await app(scope, receive, send)
        elif scope["path"] == "/large":
            scope["extensions"]["dragoman"].respond(200, [], LARGE_REPLY)
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for at in range(0, len(LARGE_REPLY), 10_000):
                await send({"type": "http.response.body", "body": LARGE_REPLY[at : at + 10_000], "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    return serve


def press(stack: Stack, client: Raw, block: bytes) -> None:
    """Sends until the gateway reads no more, and half a second longer."""
    client.socket.settimeout(0.5)
    for _ in range(60):
        with contextlib.suppress(TimeoutError):
            while True:
                client.socket.send(block)
        if not only_connection(stack)._reading:  # the client cannot know that it does not read
            return
    raise AssertionError("it reads for ever")


@pytest.mark.parametrize("flood", FLOODS)
def test_what_is_held_for_a_connection_is_bounded_whatever_the_path(flood: str) -> None:
    """A client that sends requests without end and reads nothing: it is stopped, little is held for it, and one request
    at most is under way. All is given back when it leaves."""
    block = FLOODS[flood] * (1 + 100_000 // len(FLOODS[flood]))
    with Stack(listen=Listen(), wrap=large_replies) as stack, Raw(stack) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        press(stack, client, block)
        connection = only_connection(stack)
        # One reply is written whole, whatever its size, and each read holds up to 256,000 bytes.
        assert connection.transport.get_write_buffer_size() < len(LARGE_REPLY) + 200_000
        assert len(connection._unparsed) < 65536 + 256_000 + 1  # its memory is bounded
        assert len(stack.server.server_state.tasks) <= 1
        reference = weakref.ref(connection)
        del connection
        client.socket.close()
        until(lambda: not stack.server.server_state.connections)
        # Without the collector: garbage in a cycle would stay for long.
        until(lambda: reference() is None)


def test_a_reader_of_pipelined_replies_gets_all_of_them() -> None:
    """Stopping and going on loses nothing."""
    count = 40
    with Stack((), listen=Listen(), wrap=large_replies, config={"models": {"x": GONE}}) as stack, Raw(stack) as client:
        client.send(FLOODS["large replies"] * count)
        until(lambda: any(c.write_paused for c in connections(stack)))
        for _ in range(count):
            status, _, body = client.response()
            assert (status, len(body)) == (200, len(LARGE_REPLY))


def test_a_turn_parses_a_bounded_part_of_what_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one byte: others have their turns in between, and none is lost."""
    turns: list[int] = []
    blocks = 0
    parse, on_body = HttpProtocol._parse, HttpProtocol.on_body  # counts what one turn parses

    def counted(self: HttpProtocol, data: bytes | bytearray) -> int:
        nonlocal blocks
        blocks = 0
        taken = parse(self, data)
        turns.append(blocks)
        return taken

    def count(self: HttpProtocol, body: bytes) -> None:
        nonlocal blocks
        blocks += 1
        on_body(self, body)

    monkeypatch.setattr(HttpProtocol, "_parse", counted)
    monkeypatch.setattr(HttpProtocol, "on_body", count)
    content = json.dumps(chat(metadata={"k": "x" * 60_000})).encode()
    with Stack() as stack, Raw(stack) as client:
        assert client.send(chunked(content, 1)).response()[0] == 200
    assert sum(turns) == len(content)
    assert max(turns) < 1000
    assert len(turns) > 60


def test_the_body_of_a_refused_request_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = 0
    parse = HttpProtocol._parse_piece  # counts what is parsed

    def counted(self: HttpProtocol, data: bytes | bytearray, at: int) -> int:
        nonlocal fed
        taken = parse(self, data, at)
        fed += taken
        return taken

    monkeypatch.setattr(HttpProtocol, "_parse_piece", counted)
    with Stack(listen=QUICK, config=LIMITED) as stack:
        with Raw(stack) as client:
            client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 200001\r\n\r\n")
            assert client.response()[0] == 413
            assert client.send(b"x" * 200_001 + MODELS).response()[0] == 200
        assert fed < 1000  # two heads, of which a busy machine may read one in parts
        with Raw(stack) as client:
            client.send(b"POST /v1/none HTTP/1.1\r\nhost: x\r\n" + CHUNKED + b"\r\n")
            assert client.response()[0] == 404
            assert client.send(b"1\r\nx\r\n" * 30_000).rest() == b""
        assert fed < 400


def test_an_answer_to_a_client_that_waits_for_a_100_is_the_last_of_its_connection(stack: Stack) -> None:
    """It may send the body or not: what comes next could be either."""
    with Raw(stack) as client:
        client.send(b"POST /v1/none HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 10\r\n\r\n")
        status, headers, _ = client.response()
        assert (status, headers[b"connection"]) == (404, b"close")
        assert client.rest() == b""
