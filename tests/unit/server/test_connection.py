"""What a client may send, how slowly, how much, and what it is told when it does more."""

from __future__ import annotations

import json
import re
import resource
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.config import Listen
from tests.support.harness import Stack, until
from tests.unit.server.raw import (
    BODY,
    CHUNKED,
    GONE,
    LIMITED,
    LINE,
    MODELS,
    QUICK,
    Raw,
    ask,
    chat,
    code_of,
    only_connection,
    post,
    scripted,
)

# -- slow clients ---------------------------------------------------------------------------------------------------


def test_a_header_that_drips_is_ended_by_its_deadline(quick: Stack) -> None:
    with Raw(quick) as client:
        client.send(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n")
        client.socket.settimeout(0.02)
        received = b""
        for _ in range(90):  # fields, beyond which the head would be refused for their number
            try:
                client.send(b"a: b\r\n")
                received = client.socket.recv(65536)
                break
            except TimeoutError:
                continue
        assert received.startswith(b"HTTP/1.1 408 ")
        assert code_of(received.partition(b"\r\n\r\n")[2]) == "request_timeout"


def test_a_connection_that_says_nothing_is_closed_in_silence(quick: Stack) -> None:
    with Raw(quick) as client:
        assert client.rest() == b""


def test_a_second_header_that_drips_is_ended_too(quick: Stack) -> None:
    with Raw(quick) as client:
        assert client.send(MODELS).response()[0] == 200
        assert client.send(b"GET /v1/mo").rest().startswith(b"HTTP/1.1 408 ")


def test_blank_lines_keep_no_connection_for_ever() -> None:
    with Stack(listen=QUICK) as stack, Raw(stack) as client:
        client.send(b"\r\n")
        until(lambda: bool(stack.server.server_state.connections))
        only_connection(stack).keep_alive_s = 0.2
        assert client.send(MODELS + b"\r\n").response()[0] == 200
        assert client.send(b"\r\n").rest() == b""


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_body_that_stalls_is_ended_by_its_deadline(quick: Stack, version: bytes) -> None:
    head = b"POST /v1/chat/completions HTTP/%b\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
    with Raw(quick) as client:
        received = client.send(head % version).rest()
    assert received.startswith(b"HTTP/1.1 408 ")
    assert code_of(received.partition(b"\r\n\r\n")[2]) == "request_timeout"
    until(lambda: not quick.gateway.deployment.runtime.active.requests)
    record = quick.records()[-1]
    assert (record["status"], record["outcome"], record["code"]) == (408, "refused", "request_timeout")


def test_a_body_may_take_longer_than_one_pause() -> None:
    body = json.dumps(chat("x" * 1000)).encode()
    head = BODY + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)

    def served(stack: Stack) -> bool:
        """1.8 s in all, unless a machine that stands still makes one pause longer than 1.2 s."""
        with Raw(stack) as client:
            client.send(head)
            try:
                for at in range(0, len(body), 200):
                    time.sleep(0.3)  # the pause is what is tested
                    client.send(body[at : at + 200])
            except (ConnectionResetError, BrokenPipeError):
                return False
            return client.rest().startswith(b"HTTP/1.1 200 ")

    with Stack(listen=Listen(body_timeout_s=1.2)) as stack:
        assert any(served(stack) for _ in range(5))


def drip(stack: Stack, content: bytes, enough: Callable[[int], bool]) -> tuple[int, bytes]:
    """A request whose body comes byte by byte, without a pause, until the gateway ends it or it is enough: how many
    bytes were sent, and what was received meanwhile."""
    with Raw(stack) as client:
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(content))
        client.socket.settimeout(0.01)
        for sent in range(len(content)):
            try:
                client.send(content[sent : sent + 1])
                received = client.socket.recv(65536)
            except TimeoutError:
                if enough(sent + 1):
                    return sent + 1, b""
                continue
            except (ConnectionResetError, BrokenPipeError):
                received = b""
            return sent + 1, received
    raise AssertionError("it read all of it")


def test_a_body_that_drips_without_a_pause_is_ended_by_its_rate() -> None:
    listen = Listen(body_timeout_s=0.3, min_body_rate_bytes=1000)
    with Stack(listen=listen) as stack:
        sent, received = drip(stack, b"{" * 10_000, lambda sent: False)
        assert received.startswith(b"HTTP/1.1 408 ")
        assert code_of(received.partition(b"\r\n\r\n")[2]) == "request_timeout"
        assert sent < 1000  # at 100 bytes a second and less; at the rate that is asked it might go on for ever


def test_without_a_rate_a_body_may_drip_for_ever() -> None:
    listen = Listen(body_timeout_s=0.3, min_body_rate_bytes=0)
    with Stack(listen=listen) as stack:
        # Each byte is followed by 10 ms of silence.
        _, received = drip(stack, b"{" * 10_000, lambda sent: sent > 100)
        assert received == b""


def test_we_who_do_not_read_do_not_blame_the_client() -> None:
    """Reading is paused while an application lets a body lie; its client is not late."""

    async def lazy(scope: Any, receive: Any, send: Any) -> None:
        import asyncio

        if scope["type"] == "http" and scope["path"] == "/lazy":
            await asyncio.sleep(0.5)  # longer than the body's deadline
            size = 0
            while True:
                message = await receive()
                size += len(message["body"])
                if not message["more_body"]:
                    break
            body = str(size).encode()
            headers = [(b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        await gateway[0](scope, receive, send)

    gateway: list[Gateway] = []

    def wrap(app: Any) -> Any:
        gateway.append(app)
        return lazy

    with Stack((), listen=QUICK, wrap=wrap, config={"models": {"x": GONE}}) as stack, Raw(stack) as client:
        client.send(post(b"x" * 8_000_000, path=b"/lazy"))
        assert client.response()[2] == b"8000000"


def test_a_reader_that_stalls_is_dropped_when_its_time_is_over() -> None:
    with Stack(({"max_model_len": 400_000},), listen=QUICK) as stack, Raw(stack) as client:
        client.send(post(chat("long", stream=True, max_tokens=300_000, ignore_eos=True)))
        until(lambda: bool(stack.server.server_state.connections))
        until(lambda: only_connection(stack).write_paused)
        kept = only_connection(stack).transport.get_extra_info("socket")
        assert kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 131072
        stack.run(stack.sim.ledger.wait(aborted=1))
        with pytest.raises(ConnectionResetError):  # else the kernel would keep what it has to send
            list(iter(partial(client.socket.recv, 1 << 20), b""))
        until(lambda: not stack.server.server_state.connections)
        assert stack.records()[-1]["outcome"] == "cancelled"


# -- too much -------------------------------------------------------------------------------------------------------


def test_an_endless_header_is_refused_and_not_kept(stack: Stack) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Raw(stack) as client:
        client.send(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx: ")
        sent = 0
        block = b"a" * (1 << 16)
        try:
            while sent < 32 << 20:
                client.send(block)
                sent += len(block)
        except (ConnectionResetError, BrokenPipeError):
            pass
        received = client.rest()
    assert received.startswith(b"HTTP/1.1 431 ")
    assert code_of(received.partition(b"\r\n\r\n")[2]) == "headers_too_large"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 << 10  # KiB


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + b"".join(b"a%d: b\r\n" % n for n in range(20_000)),
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 101,
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\na: " + b"b" * 40_000 + b"\r\n",
        b"GET /v1/models?" + b"a" * 40_000 + b" HTTP/1.1\r\nhost: x\r\n",
    ],
    ids=["20k-fields", "101-fields", "long-field", "long-target"],
)
def test_a_head_beyond_the_limits_is_431(stack: Stack, head: bytes) -> None:
    status, body = ask(stack, head + b"\r\n")
    assert (status, code_of(body)) == (431, "headers_too_large")


def test_a_head_beyond_the_limits_right_behind_another_request_ends_the_connection(stack: Stack) -> None:
    line = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"
    with Raw(stack) as client:
        client.send(line + b"\r\n" + line + b"a: " + b"b" * 40_000 + b"\r\n\r\n")
        received = client.rest()
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"200", b"431"]


def test_a_head_that_begins_behind_a_body_is_measured_whole(stack: Stack) -> None:
    body = json.dumps(chat()).encode()
    first = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    with Raw(stack) as client:
        client.send(first + b"GET /v1/models HTTP/1.1\r\nhost: x\r\na: " + b"b" * 20_000)
        assert client.response()[0] == 200
        client.send(b"\r\nc: " + b"d" * 20_000 + b"\r\n\r\n")
        assert client.rest().startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("tail", [b"0\r\nx: ", b"1;"], ids=["trailer", "chunk-extension"])
def test_what_surrounds_a_body_is_limited_too(stack: Stack, tail: bytes) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    with Raw(stack) as client:
        client.send(head + tail)
        try:
            for _ in range(512):
                client.send(b"a" * (1 << 16))
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert client.rest().startswith(b"HTTP/1.1 431 ")


def test_a_trailer_is_no_header(stack: Stack) -> None:
    content = json.dumps(chat()).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    with Raw(stack) as client:
        client.send(head + b"%x\r\n%b\r\n0\r\ncontent-encoding: gzip\r\nhost: y\r\n\r\n" % (len(content), content))
        assert client.response()[0] == 200


def test_a_body_beyond_the_limit_is_refused_by_its_length_alone(stack: Stack) -> None:
    with Raw(stack) as client:
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 200001\r\n\r\n")
        status, _, body = client.response()
        assert (status, code_of(body)) == (413, "request_too_large")
        # The connection serves on, once the body that was promised has passed by.
        assert client.send(b"x" * 200_001 + MODELS).response()[0] == 200


def test_a_chunked_body_beyond_the_limit_is_refused_and_thrown_away(stack: Stack) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with Raw(stack) as client:
        client.send(head + chunk * 4)
        status, headers, body = client.response()
        assert (status, code_of(body)) == (413, "request_too_large")
        # Where it ends only a parser could tell, and what was refused is not parsed.
        assert headers[b"connection"] == b"close"
        assert client.send(chunk + b"0\r\n\r\n" + MODELS).rest() == b""
    with Raw(stack) as client:
        client.send(head + chunk * 4)
        assert client.response()[0] == 413
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            client.send(chunk * 500)  # what is thrown away has a limit as well


def test_after_a_refused_body_the_connection_expires_like_any_other() -> None:
    with Stack(listen=QUICK, config=LIMITED) as stack, Raw(stack) as client:
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 200001\r\n\r\n")
        assert client.response()[0] == 413
        only_connection(stack).keep_alive_s = 0.2
        assert client.send(b"x" * 200_001).rest() == b""


def test_a_client_that_closes_after_its_answer_still_gets_it(stack: Stack) -> None:
    """Its body is refused while it is still sending, and no connection reset takes the refusal away."""
    with Raw(stack) as client:
        client.send(post(b"x" * 250_000, b"connection: close"))
        status, headers, body = client.response()
        assert (status, code_of(body)) == (413, "request_too_large")
        assert headers[b"connection"] == b"close"


def test_a_client_that_closes_its_sending_side_alone_counts_as_gone() -> None:
    with Stack(({"fault": "stall@before"},)) as stack, Raw(stack) as client:
        client.send(post(chat()))
        stack.run(stack.sim.ledger.wait(received=1), 60)
        client.socket.shutdown(socket.SHUT_WR)
        stack.run(stack.sim.ledger.wait(aborted=1), 60)
        assert client.rest() == b""
        until(lambda: bool(stack.records()))
        assert stack.record()["outcome"] == "cancelled"


def test_expect_100_continue(stack: Stack) -> None:
    content = json.dumps(chat()).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n"
    with Raw(stack) as client:
        client.send(head % len(content))
        while b"\r\n\r\n" not in client.left:
            assert client.more()
        assert client.left == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.left = b""
        assert client.send(content).response()[0] == 200
    with Raw(stack) as client:
        assert client.send(head % 200_001).response()[0] == 413  # without a 100 before it


def test_connections_beyond_the_limit_are_503(stack: Stack) -> None:
    clients = [Raw(stack).send(b"GET ") for _ in range(20)]
    try:
        with Raw(stack) as one_more:
            received = one_more.rest()
            assert received.startswith(b"HTTP/1.1 503 ")
            assert code_of(received.partition(b"\r\n\r\n")[2]) == "overloaded"
    finally:
        for client in clients:
            client.socket.close()
    until(lambda: not stack.server.server_state.connections)
    with Raw(stack) as client:
        assert client.send(MODELS).response()[0] == 200


# -- what is told of refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "status", "code", "name"),
    [
        (LINE + b"\r\n", 400, "invalid_request", None),
        (b"\xff\xff", 400, "invalid_request", None),
        (LINE + b"x-request-id: mine-1\r\nhost: x\r\nhost: y\r\n\r\n", 400, "invalid_request", "mine-1"),
        (LINE + b"x-request-id: a b\r\nhost: x\r\nhost: y\r\n\r\n", 400, "invalid_request", None),
        (LINE + b"x-request-id: mine-2\r\n" + b"a: b\r\n" * 101, 431, "headers_too_large", "mine-2"),
        (LINE + b"x-request-id: mine-3\r\na: b\r\n", 408, "request_timeout", "mine-3"),
    ],
    ids=["no-host", "not-http", "named", "harmful-name", "too-large", "slow"],
)
def test_a_refusal_has_a_line_a_count_and_a_name(data: bytes, status: int, code: str, name: str | None) -> None:
    with Stack((), listen=QUICK, config={"models": {"x": GONE}}) as stack:
        with Raw(stack) as client:
            head = client.send(data).rest().rpartition(b"HTTP/1.1 ")[2]
        assert head.startswith(b"%d " % status)
        (given,) = re.findall(rb"\r\nx-request-id: (\S+)\r\n", head)
        assert given.decode() == name if name else re.fullmatch(rb"[0-9a-f]{32}", given)
        (line,) = stack.events("refused")
        line.pop("time")
        assert line == {
            "level": "info",
            "event": "refused",
            "id": given.decode(),
            "status": status,
            "code": code,
            "client": "127.0.0.1",
        }
        assert f'dragoman_refused_connections_total{{status="{status}"}} 1.0' in httpx.get(stack.url + "/metrics").text


def test_a_refused_body_has_the_name_of_its_record(stack: Stack) -> None:
    """Its request is known to the application, which gave it an id."""
    with Raw(stack) as client:
        received = client.send(BODY + CHUNKED + b"\r\nzz\r\n").rest()
    (given,) = re.findall(rb"\r\nx-request-id: (\S+)\r\n", received)
    until(lambda: any(record["id"] == given.decode() for record in stack.records()))
    (record,) = [record for record in stack.records() if record["id"] == given.decode()]
    assert (record["status"], record["outcome"], record["code"]) == (400, "refused", "invalid_request")


def test_a_refusal_does_not_take_the_name_of_the_request_before(stack: Stack) -> None:
    with Raw(stack) as client:
        assert client.send(LINE + b"x-request-id: before\r\nhost: x\r\n\r\n").response()[0] == 200
        status, headers, _ = client.send(b"BROKEN\r\n\r\n").response()
    assert status == 400
    assert re.fullmatch(rb"[0-9a-f]{32}", headers[b"x-request-id"])


def test_a_refusal_of_what_waits_behind_another_request_does_not_take_its_name(stack: Stack) -> None:
    broken = BODY + b"x-request-id: second\r\n" + CHUNKED + b"\r\nzz\r\n"
    with Raw(stack) as client:
        client.send(post(chat(scripted(text="slow", fault="stall:0.2@before")), b"x-request-id: first") + broken)
        assert client.response()[1][b"x-request-id"] == b"first"
        assert client.response()[1][b"x-request-id"] == b"second"


def test_what_was_answered_already_is_not_refused_as_well() -> None:
    with Stack(listen=QUICK, config=LIMITED) as stack:
        with Raw(stack) as client:
            client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 200001\r\n\r\n")
            assert client.response()[0] == 413
            assert client.rest() == b""  # the rest of its body is late
        assert stack.events("refused") == []


def test_too_many_connections_are_a_warning() -> None:
    with Stack(listen=Listen(max_connections=1)) as stack, Raw(stack).send(b"GET ") as held, Raw(stack) as one_more:
        received = one_more.rest()
        (line,) = stack.events("refused")
        assert (line["level"], line["status"], line["code"]) == ("warning", 503, "overloaded")
        assert b"x-request-id: " + line["id"].encode() in received
        assert held.left == b""


def test_a_flood_of_refusals_is_counted_and_not_written() -> None:
    with Stack(listen=Listen()) as stack:
        for _ in range(200):
            assert ask(stack, b"BROKEN\r\n\r\n")[0] == 400
        page = httpx.get(stack.url + "/metrics").text
        stack.gateway.log.close()
        lines = stack.events("refused")
    assert 'dragoman_refused_connections_total{status="400"} 200.0' in page
    suppressed = sum(line.get("suppressed", 0) for line in lines)
    written = sum("id" in line for line in lines)
    assert written + suppressed == 200
    assert suppressed > 0
