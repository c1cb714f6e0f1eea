"""One caller who takes all room there is, in every way that was found, beside another caller who finds room."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from gateway.auth import new_key
from gateway.config import Listen
from gateway.core.byte_budget import SMALL, ByteBudget
from tests.support.harness import Stack, until
from tests.unit.app.media import TRANSCRIBE, TYPE
from tests.unit.auth.test_sigv4 import ACCESS_KEY, SECRET, signed
from tests.unit.server.raw import Raw, code_of

ROOM, MOST = 2 << 20, 1 << 20
LISTEN: dict[str, Any] = {
    "max_body_bytes": MOST,
    "max_bodies_bytes": ROOM,
    "max_uploads_bytes": ROOM,
    "max_sockets": 4,
    "body_timeout_s": 300,
}
LONG = ({"max_model_len": 10_000_000},)
CHAT = {"model": "m", "messages": [{"role": "user", "content": 'sim:{"text": "ok"}'}], "max_tokens": 1}
PADDED = json.dumps(CHAT).encode().ljust(700_000)


class Two(Stack):
    """A gateway with two keys. limits: of the greedy one."""

    def __init__(self, limits: dict[str, Any] | None = None, listen: Any = None, **more: Any) -> None:
        entries: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, str] = {}
        for name in ("greedy", "honest"):
            self.keys[name], entry = new_key(name)
            entries[name] = {"hash": entry.split("hash: ")[1].split()[0]}
        if limits is not None:
            entries["greedy"] |= {"limits": limits}
        bounds = {**LISTEN, **(listen or {})}
        super().__init__(LONG, {"auth": "keys", "keys": entries, "listen": bounds, **more}, listen=Listen(**bounds))

    @property
    def bodies(self) -> ByteBudget:
        return self.gateway.deployment.runtime.body_budget

    def head(self, key: str, size: int, path: str = "/v1/chat/completions") -> bytes:
        return b"POST %b HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\n\r\n" % (
            path.encode(),
            self.keys[key].encode(),
            size,
        )

    def posts(self, key: str, body: bytes = PADDED) -> int:
        """The status of a whole request."""
        with Raw(self) as client:
            return client.send(self.head(key, len(body)) + body).response()[0]

    def socket(self, key: str) -> ClientConnection:
        url = self.url.replace("http", "ws") + "/v1/responses"
        return connect(url, additional_headers={"authorization": f"Bearer {self.keys[key]}"}, max_size=None)


def ended(line: ClientConnection) -> dict[str, Any]:
    """The last event of the next response."""
    while (event := json.loads(line.recv(timeout=60)))["type"] not in ("response.completed", "error"):
        pass
    assert isinstance(event, dict)
    return event


def create(text: str = "ok", lane: str | None = None, **more: Any) -> str:
    named = {} if lane is None else {"stream_id": lane}
    asked = {"type": "response.create", "model": "m", "input": "sim:" + json.dumps({"text": text}), **named, **more}
    return json.dumps(asked)


@contextlib.contextmanager
def dripping(stack: Two, key: str, sizes: list[int]) -> Iterator[list[Raw]]:
    """Requests that announce so many bytes, and of which a few have come; each has its answer or its room."""
    with contextlib.ExitStack() as stop:
        found = []
        for size in sizes:
            before = stack.bodies.reserved
            found.append(line := stop.enter_context(Raw(stack)))
            line.send(stack.head(key, size) + b"{")
            line.socket.setblocking(False)

            def settled(before: int = before, line: Raw = line) -> bool:
                with contextlib.suppress(BlockingIOError):
                    line.more()
                return stack.bodies.reserved > before or bool(line.left)

            until(settled)
            line.socket.setblocking(True)
        yield found


def test_bodies_that_drip_leave_room_to_others() -> None:
    with Two() as stack, dripping(stack, "greedy", [700_000] * 8) as lines:
        held = [line for line in lines if not line.left]
        assert len(held) == 1
        status, headers, body = lines[-1].response()
        assert (status, code_of(body)) == (503, "no_room_for_body")
        assert headers[b"retry-after"]
        assert stack.posts("honest") == 200
        assert stack.posts("honest", PADDED.ljust(MOST)) == 200


def test_one_caller_may_have_all_room_where_it_is_configured_so() -> None:
    with Two(listen={"caller_share": 1}) as stack, dripping(stack, "greedy", [700_000] * 3) as lines:
        assert [bool(line.left) for line in lines] == [False, False, True]


@pytest.mark.parametrize("kind", ["requests", "concurrency"])
def test_limits_are_passed_before_room_is_taken(kind: str) -> None:
    with Two({kind: 1}) as stack, dripping(stack, "greedy", [100_000, 100_000]) as (one, other):
        assert not one.left
        assert other.response()[0] == 429
        assert stack.bodies.reserved == 100_000
        one.send(PADDED[1:99_999])  # all but a byte: it has its slot
        with Raw(stack) as chunked:  # by its bytes, where no length is announced
            head = stack.head("greedy", 0).replace(b"content-length: 0", b"transfer-encoding: chunked")
            chunked.send(head + b"%x\r\n%b\r\n" % (2 * SMALL, b" " * (2 * SMALL)))
            assert chunked.response()[0] == 429


def test_a_large_request_counts_once() -> None:
    with Two({"requests": 3}) as stack:
        assert [stack.posts("greedy") for _ in range(4)] == [200, 200, 200, 429]


def test_what_waits_on_a_socket_takes_no_room() -> None:
    slow = create("a b c d e f", lane="one", metadata={})
    with Two() as stack, stack.socket("greedy") as line:
        stack.sim.fault("stall@before", count=1)
        line.send(slow)
        until(lambda: bool(stack.sim.ledger.running))
        line.send(create("x" * 700_000, lane="one"))
        refused = ended(line)
        assert refused["error"]["code"] == "too_many_messages", refused
        for _ in range(3):
            line.send(create(lane="one"))
        until(lambda: stack.bodies.reserved == 0)
        assert stack.posts("honest", json.dumps(CHAT).encode()) == 200


@pytest.mark.long
def test_what_idle_sockets_keep_takes_no_room_of_bodies() -> None:
    """The lanes of a socket are named by its client, one after the other; what no worker is sent is kept, too."""
    junk = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x" * 300_000}
    with Two() as stack:
        sessions = stack.gateway.deployment.runtime.budgets.sessions
        with stack.socket("greedy") as line:
            for number in range(12):
                told = {"role": "user", "content": 'sim:{"text": "ok"}'}
                line.send(create(lane=f"lane-{number}", input=[junk, told], store=False))
                assert ended(line)["type"] == "response.completed"
            assert 0 < sessions.reserved <= sessions.limit / 2
            until(lambda: stack.bodies.reserved == 0)
            assert stack.posts("honest", PADDED.ljust(MOST)) == 200
            with stack.socket("honest") as other:
                other.send(create("x" * 100_000))
                first = ended(other)["response"]["id"]
                other.send(create(previous_response_id=first))
                assert ended(other)["type"] == "response.completed", "its last response was kept"
        until(lambda: sessions.reserved == 0)


def test_small_lanes_of_a_socket_are_kept_for_the_last_ones_alone() -> None:
    with Two() as stack, stack.socket("greedy") as line:
        made = []
        for number in range(12):
            line.send(create(lane=f"lane-{number}", store=False))
            made.append(ended(line)["response"]["id"])
        kept = []
        for number in range(11, 3, -1):
            line.send(create(lane=f"lane-{number}", store=False, previous_response_id=made[number]))
            kept.append(ended(line)["type"])
        assert set(kept) == {"response.completed"}
        line.send(create(lane="lane-0", store=False, previous_response_id=made[0]))
        assert ended(line)["type"] == "error"


def test_sockets_of_one_caller_leave_places_to_others() -> None:
    with Two() as stack, contextlib.ExitStack() as stop:
        for _ in range(2):
            stop.enter_context(stack.socket("greedy"))
        until(lambda: len(stack.service("sockets")) == 2)
        with pytest.raises(InvalidStatus) as refused:
            stack.socket("greedy")
        assert refused.value.response.status_code == 426
        with stack.socket("honest") as other:
            other.send(create())
            assert ended(other)["type"] == "response.completed"


def test_uploads_of_one_caller_leave_room_to_others() -> None:
    with Two(models={"m": {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}}) as stack:
        uploads = stack.gateway.deployment.runtime.budgets.uploads

        def begun(key: str) -> Raw:
            line = Raw(stack)
            kind = f"content-type: {TYPE['content-type']}\r\ncontent-length".encode()
            return line.send(stack.head(key, 700_000, TRANSCRIBE).replace(b"content-length", kind))

        with begun("greedy"):
            until(lambda: uploads.reserved == 700_000)
            with begun("greedy") as second:
                status, _, body = second.response()
                assert (status, code_of(body)) == (503, "no_room_for_body")
            with begun("honest"):
                until(lambda: uploads.reserved == 1_400_000)


def test_streams_that_may_go_on_leave_room_to_others() -> None:
    """A stream without room is served, but is not continued if its worker fails."""
    with (
        Two(relay={"continue_bytes": 400_000}, listen={"max_bodies_bytes": 64 << 20}) as stack,
        contextlib.ExitStack() as stop,
    ):
        kept = stack.gateway.deployment.runtime.budgets.continuations
        stack.sim.fault("stall@1")

        def streams(key: str) -> None:
            body = json.dumps({**CHAT, "stream": True, "max_tokens": 10}).encode().ljust(100_000)
            body = body.replace(b'"ok', b'"ok ' + b"x" * 90_000)
            line = stop.enter_context(Raw(stack))
            line.send(stack.head(key, len(body)) + body)
            while b"data: " not in line.left:
                assert line.more()

        def held(key: str) -> int:
            return sum(size for owner, size in kept.held.items() if owner.startswith(f"key {key}\n"))

        for _ in range(4):
            streams("greedy")
        until(lambda: held("greedy") > 0)
        assert held("greedy") <= 200_000
        streams("honest")
        until(lambda: held("honest") > 90_000)


def test_connections_of_one_caller_leave_places_to_others() -> None:
    listen = {"max_connections": 20, "header_timeout_s": 300}
    with Two(listen=listen) as stack, contextlib.ExitStack() as stop:
        port = int(stack.url.rsplit(":", 1)[1])

        def connected(source: str) -> socket.socket:
            return stop.enter_context(socket.create_connection(("127.0.0.1", port), source_address=(source, 0)))

        many = [connected("127.0.0.2") for _ in range(40)]
        assert many[-1].recv(100).startswith(b"HTTP/1.1 503 ")
        other = connected("127.0.0.3")
        other.sendall(stack.head("honest", len(body := json.dumps(CHAT).encode())) + body)
        assert other.recv(100).startswith(b"HTTP/1.1 200 ")


def test_connections_of_one_key_leave_places_to_others() -> None:
    with Two(listen={"max_connections": 20}) as stack, contextlib.ExitStack() as stop:
        port = int(stack.url.rsplit(":", 1)[1])
        body = json.dumps(CHAT).encode()

        def asked(key: str, source: int) -> bytes:
            line = socket.create_connection(("127.0.0.1", port), source_address=(f"127.0.0.{source}", 0))
            stop.enter_context(line).sendall(stack.head(key, len(body)) + body)
            return line.recv(13)

        answers = [asked("greedy", 2 + number % 3) for number in range(19)]
        assert answers == [b"HTTP/1.1 200 "] * 18 + [b"HTTP/1.1 429 "]
        assert asked("honest", 5) == b"HTTP/1.1 200 "


def test_a_trusted_proxy_may_have_all_connections() -> None:
    listen = {"max_connections": 20, "trusted_proxies": ["127.0.0.2/32"], "header_timeout_s": 300}
    with Two(listen=listen) as stack, contextlib.ExitStack() as stop:
        port = int(stack.url.rsplit(":", 1)[1])
        for _ in range(20):
            stop.enter_context(socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0)))
        until(lambda: len(stack.server.server_state.connections) == 20)
        assert stack.events("refused") == []


def test_who_has_proven_nothing_is_an_address() -> None:
    """A name of a key is no secret: who only names one takes neither its room nor its limits."""
    keys = {"app": {"aws_access_key_id": ACCESS_KEY, "aws_secret_env": "SECRET", "limits": {"requests": 1}}}
    path = "/sagemaker/endpoints/m/invocations"
    config = {"auth": "keys", "keys": keys, "listen": LISTEN}
    with Stack(LONG, config, environ={"SECRET": SECRET}, listen=Listen(**LISTEN)) as stack:
        budget = stack.gateway.deployment.runtime.body_budget
        port = int(stack.url.rsplit(":", 1)[1])

        def head(body: bytes) -> bytes:
            kind = {"content-type": "application/json"}
            headers = signed(f"http://127.0.0.1:{port}{path}", body, kind)
            lines = [b"%b: %b" % field for field in headers if field[0] != b"content-length"]
            return b"\r\n".join((b"POST %b HTTP/1.1" % path.encode(), *lines, b"content-length: 700000", b"", b""))

        with Raw(stack) as stranger:
            stranger.send(head(b"another body"))
            until(lambda: budget.reserved == 700_000)
            assert list(budget.held) == ["address 127.0.0.1"]
            stranger.send(PADDED)
            assert stranger.response()[0] == 403
        until(lambda: budget.reserved == 0)
        for status in (200, 429):
            with Raw(stack) as owner:
                assert owner.send(head(PADDED) + PADDED).response()[0] == status, "nobody else has used the limit"


def test_callers_without_a_key_have_a_share_by_address() -> None:
    with Stack(LONG, {"listen": LISTEN}, listen=Listen(**LISTEN)) as stack, contextlib.ExitStack() as stop:
        budget = stack.gateway.deployment.runtime.body_budget
        port = int(stack.url.rsplit(":", 1)[1])

        def begun(source: str) -> socket.socket:
            line = socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
            stop.enter_context(line).sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 700000\r\n\r\n"
            )
            return line

        begun("127.0.0.2")
        until(lambda: budget.reserved == 700_000)
        assert begun("127.0.0.2").recv(13) == b"HTTP/1.1 503 "
        begun("127.0.0.3")
        until(lambda: budget.reserved == 1_400_000)
