"""Web sockets frame by frame: what a client may send, how slowly, how much, and what becomes of one that does more."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.frames import Close, Opcode

from gateway.config import Listen
from gateway.core.byte_budget import SMALL
from gateway.server import socket as sockets
from gateway.server.socket import SocketConnection
from tests.support.harness import Stack, until
from tests.support.sampled import examples
from tests.unit.server.raw import MODELS, QUICK, Raw

KEY = b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
OFFER = b"host: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n" + KEY + b"sec-websocket-version: 13\r\n"
HELLO = b"GET /v1/responses HTTP/1.1\r\n" + OFFER + b"\r\n"
# RFC 6455, section 1.3.
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
CREATE = {"type": "response.create", "model": "m", "input": 'sim:{"text": "ok"}'}


def frame(payload: bytes | dict[str, Any] = b"", opcode: Opcode = Opcode.TEXT, fin: bool = True) -> bytes:
    """One frame of a client, right or not, with a mask that changes nothing."""
    data = json.dumps(payload).encode() if isinstance(payload, dict) else payload
    size = len(data)
    if size < 126:
        told = bytes((size | 0x80,))
    else:
        told = b"\xfe" + size.to_bytes(2, "big") if size <= 0xFFFF else b"\xff" + size.to_bytes(8, "big")
    return bytes((opcode | (0x80 if fin else 0),)) + told + bytes(4) + data


class Client(Raw):
    """A client of a web socket that says what it likes."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self.send(HELLO)
        head, _, self.left = self.head().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"sec-websocket-accept: " + ACCEPT.lower() in head.lower()

    def _take(self, size: int) -> bytes:
        while len(self.left) < size:
            assert self.more(), "the connection ended"
        taken, self.left = self.left[:size], self.left[size:]
        return taken

    def hear(self) -> tuple[Opcode, bytes]:
        """The next frame. A server does not mask."""
        first, size = self._take(2)
        assert first & 0xF0 == 0x80
        if size > 125:
            size = int.from_bytes(self._take(2 if size == 126 else 8), "big")
        return Opcode(first & 15), self._take(size)

    def event(self) -> dict[str, Any]:
        """The next message."""
        opcode, data = self.hear()
        while opcode is not Opcode.TEXT:
            opcode, data = self.hear()
        found = json.loads(data)
        assert isinstance(found, dict)
        return found

    def end(self) -> str:
        """The end of the next response."""
        while (kind := str(self.event()["type"])) not in ("response.completed", "error"):
            pass
        return kind

    def closed(self) -> int:
        opcode, data = self.hear()
        while opcode is not Opcode.CLOSE:
            opcode, data = self.hear()
        return Close.parse(data).code


def only_socket(stack: Stack) -> SocketConnection:
    until(lambda: any(isinstance(one, SocketConnection) for one in stack.server.server_state.connections))
    (found,) = [one for one in stack.server.server_state.connections if isinstance(one, SocketConnection)]
    return found


@pytest.mark.parametrize(
    "head",
    [
        OFFER.replace(KEY, b""),
        OFFER.replace(KEY, KEY + KEY),
        OFFER.replace(KEY, b"sec-websocket-key: short\r\n"),
        OFFER.replace(b"13", b"12"),
        OFFER.replace(b"upgrade: websocket", b"upgrade: h2c"),
        OFFER + b"content-length: 2\r\n",
    ],
)
def test_what_is_no_handshake_is_http(stack: Stack, head: bytes) -> None:
    with Raw(stack) as client:
        client.send(b"GET /v1/responses HTTP/1.1\r\n" + head + b"\r\n" + b"{}" * (b"content-length" in head) + MODELS)
        assert [client.response()[0] for _ in range(2)] == [426, 200]


def test_an_upgrade_by_post_or_in_http_1_0_is_http(stack: Stack) -> None:
    with Raw(stack) as client:
        client.send(HELLO.replace(b"GET", b"POST"))
        assert client.response()[0] == 400
    with Raw(stack) as client:
        assert client.send(HELLO.replace(b"HTTP/1.1", b"HTTP/1.0")).response()[0] == 426


def test_a_web_socket_follows_a_request_on_its_connection(stack: Stack) -> None:
    with Raw(stack) as client:
        assert client.send(MODELS + HELLO + frame(CREATE)).response()[0] == 200
        assert client.head().startswith(b"HTTP/1.1 101 ")
        while b'"response.completed"' not in client.left:
            assert client.more()


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_frames_may_come_in_pieces(stack: Stack, size: int) -> None:
    whole = json.dumps(CREATE).encode()
    third = len(whole) // 3
    data = (
        frame(whole[:third], fin=False)
        + frame(b"hm", Opcode.PING)
        + frame(whole[third : 2 * third], Opcode.CONT, fin=False)
        + frame(b"", Opcode.CONT, fin=False)
        + frame(whole[2 * third :], Opcode.CONT)
        + frame(CREATE, Opcode.BINARY)
    )
    with Client(stack) as client:
        for at in range(0, len(data), size):
            client.send(data[at : at + size])
        assert client.hear() == (Opcode.PONG, b"hm")
        assert [client.end(), client.end()] == ["response.completed"] * 2


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(CREATE)[:1] + b"\x05hello", 1002),  # not masked
        (b"\xf1\x80\x00\x00\x00\x00", 1002),  # reserved bits
        (b"\x83\x80\x00\x00\x00\x00", 1002),  # no such opcode
        (frame(b"x", Opcode.CONT), 1002),
        (frame(b"a", fin=False) + frame(b"b"), 1002),
        (frame(b"x" * 200, Opcode.BINARY, fin=False)[:1] + b"\xff" + (200_001).to_bytes(8, "big"), 1009),
        (b"\x81\xff" + b"\xff" * 8, 1009),
        (frame(b"x" * 150_000, fin=False) + frame(b"y" * 60_000, Opcode.CONT), 1009),
        (frame(b"\x03\xe8", Opcode.CLOSE), 1000),
        (frame(b"", Opcode.CLOSE), 1005),
        (frame(b"\x00\x01", Opcode.CLOSE), 1002),
    ],
)
def test_a_broken_frame_closes_its_connection_alone(stack: Stack, data: bytes, code: int) -> None:
    """A message that is too large is refused by its length, before it has come."""
    with Client(stack) as client, Client(stack) as other:
        client.send(data)
        assert client.closed() == code
        assert client.rest() == b""
        assert other.send(frame(CREATE)).end() == "response.completed"


def test_a_message_that_stays_away_is_not_waited_for(quick: Stack) -> None:
    with Client(quick) as client:
        time.sleep(2 * QUICK.body_timeout_s)
        client.send(frame(CREATE)[:20])
        assert client.closed() == 1008
    with Client(quick) as client:  # empty frames bring a message no nearer
        client.send(frame(b"{", fin=False))
        began = time.monotonic()
        while time.monotonic() < began + QUICK.body_timeout_s / 2:
            client.send(frame(b"", Opcode.CONT, fin=False))
        assert client.closed() == 1008


def test_a_client_of_which_nothing_is_heard_is_dropped(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_PING_S", 0.1)
    with Client(stack) as client:
        for _ in range(5):
            opcode, data = client.hear()
            assert (opcode, data) == (Opcode.PING, b"")
            client.send(frame(data, Opcode.PONG))
        assert client.hear()[0] is Opcode.PING
        assert client.rest() == b"", "reset"


def test_large_messages_have_a_budget_together(stack: Stack) -> None:
    budget = stack.gateway.host.body_budget
    large = frame(b" " * 150_000 + json.dumps(CREATE).encode())
    half, rest = large[:150_000], large[150_000:]
    before, budget.limit = budget.limit, SMALL + 150_000
    try:
        with Client(stack) as client:
            client.send(half)
            until(lambda: budget.reserved > SMALL)
            with Client(stack) as other:
                assert other.send(half).closed() == 1013
                assert other.rest() == b""
            assert client.send(rest).end() == "response.completed"
        until(lambda: not budget.reserved)
    finally:
        budget.limit = before


def test_what_a_connection_keeps_has_a_budget() -> None:
    told = [{"role": "user", "content": text} for text in ("x" * 100_000, CREATE["input"])]
    with Stack(({"max_model_len": 100_000},)) as stack:
        budget = stack.gateway.host.session_budget
        with Client(stack) as client:
            assert client.send(frame({**CREATE, "store": False, "input": told})).end() == "response.completed"
            until(lambda: 100_000 < budget.reserved < 110_000)
            assert client.send(frame(CREATE)).end() == "response.completed"
            until(lambda: 0 < budget.reserved < 10_000)
            assert client.send(frame({**CREATE, "store": False, "input": told})).end() == "response.completed"
            until(lambda: 100_000 < budget.reserved < 110_000)
        until(lambda: not budget.reserved)


# -- slow readers -----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_slow_reader_holds_up_its_worker_and_is_dropped() -> None:
    long = "sim:" + json.dumps({"text": "a " * 300_000})
    with Stack(({"max_model_len": 1_000_000},), listen=Listen(write_idle_s=1.0)) as stack, Client(stack) as client:
        client.send(frame({**CREATE, "input": long}))
        connection = only_socket(stack)
        until(lambda: connection.write_paused)
        held = connection.transport.get_write_buffer_size()
        assert held < 1 << 20
        until(lambda: not stack.server.server_state.connections)
        assert stack.record()["outcome"] == "cancelled"


@pytest.mark.parametrize("first", [b"", HELLO, MODELS + HELLO])
def test_pongs_of_a_slow_reader_do_not_heap_up(stack: Stack, first: bytes) -> None:
    """Also where the frames come together with the handshake, and behind a request."""
    with Raw(stack) if first else Client(stack) as client:
        client.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.send(first + frame(b"x" * 125, Opcode.PING) * 1_000_000)
        connection = only_socket(stack)
        assert connection.transport.get_write_buffer_size() < 1 << 18
        assert len(connection._unparsed) < 1 << 19  # its memory is bounded


# -- anything ---------------------------------------------------------------------------------------------------------

FRAMES = st.builds(
    frame,
    st.one_of(st.binary(max_size=200), st.just(CREATE), st.just({"type": "response.create"})),
    st.sampled_from(list(Opcode)),
    st.booleans(),
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(FRAMES, st.binary(max_size=40)), max_size=12), st.integers(1, 500), st.booleans())
def test_whatever_comes_the_next_client_is_served(stack: Stack, sent: list[bytes], size: int, waits: bool) -> None:
    data = b"".join(sent)
    with Client(stack) as client:
        client.socket.settimeout(5)
        try:
            for at in range(0, len(data), size):
                client.send(data[at : at + size])
            if waits:
                client.send(frame(b"", Opcode.CLOSE) * 2)
                client.rest()
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            pass
    with Client(stack) as client:
        assert client.send(frame(CREATE)).end() == "response.completed"
    until(lambda: not stack.gateway.deployment.runtime.active.requests)
    assert stack.events("bug") == []


def test_the_cost_of_a_message_grows_with_its_size_alone(stack: Stack) -> None:
    """However many frames it comes in. No turn of the loop is long."""
    whole = b" " * 40_000 + json.dumps(CREATE).encode()
    took = []
    for pieces in (1, 2):
        data = frame(b"", fin=False) + b"".join(
            frame(whole[at : at + 1], Opcode.CONT, fin=False) for at in range(len(whole) // 2 * pieces)
        )
        with Client(stack) as client:
            began = time.perf_counter()
            client.send(data + frame(whole[len(whole) // 2 * pieces :], Opcode.CONT))
            assert client.end() == "response.completed"
            took.append(time.perf_counter() - began)
    assert took[1] < 4 * took[0] + 0.5
