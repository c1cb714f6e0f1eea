"""Answers: their heads, their ends, and what clients of HTTP/1.0 get."""

from __future__ import annotations

import asyncio
import json
import re
import time
from email.utils import parsedate_to_datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.light_task import LightTask, LoopRound
from gateway.server import RequestCycle
from tests.support.harness import Stack, until
from tests.unit.server.raw import LINE, MODELS, Raw, chat, post, scripted

# -- answers --------------------------------------------------------------------------------------------------------


def test_a_head_request_gets_no_body(stack: Stack) -> None:
    with Raw(stack) as client:
        client.send(b"HEAD /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" + b"HEAD /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        client.send(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        received = client.rest()
    statuses = re.findall(rb"HTTP/1.1 (\d+)", received)
    assert statuses == [b"200", b"200", b"200"]
    assert received.endswith(b"\r\n\r\nalive\n")
    assert received.count(b"alive") == 1
    assert b"{" not in received


@pytest.mark.parametrize("path", [b"/ollama/chat/completions", b"/ollama/chat/sse"])
@pytest.mark.parametrize("ends", ["", "1.0", "1.0 keep-alive", "close", "draining"])
def test_a_stream_says_whether_its_connection_is_kept(stack: Stack, path: bytes, ends: str) -> None:
    said = {"close": [b"connection: close"], "1.0 keep-alive": [b"connection: keep-alive"]}.get(ends, [])
    request = post(chat(stream=True), *said, path=path)
    if ends.startswith("1.0"):
        request = request.replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    protocol = stack.server.protocol
    with Raw(stack) as client:
        protocol.draining = ends == "draining"
        try:
            client.send(request)
            received = client.rest() if ends else client.head()
        finally:
            protocol.draining = False
    assert re.findall(rb"\r\nconnection: (.*?)\r\n", received) == [b"close" if ends else b"keep-alive"]


@pytest.mark.parametrize(
    ("said", "kept", "found"),
    [
        ([], True, []),
        ([], False, [b"close"]),
        ([b"keep-alive"], True, [b"keep-alive"]),
        ([b"keep-alive"], False, [b"close"]),
        ([b"Close"], True, [b"close"]),
        ([b"upgrade", b"keep-alive"], True, [b"keep-alive"]),
    ],
)
def test_only_the_server_says_what_becomes_of_the_connection(said: list[bytes], kept: bool, found: list[bytes]) -> None:
    heads: list[bytes] = []
    transport = SimpleNamespace(write=heads.append)
    wire = SimpleNamespace(reusable=True, transport=transport, answered=lambda _: None, loop_round=LoopRound())
    cycle = RequestCycle(cast(Any, wire), {"method": "GET"}, kept, False)
    cycle.respond(200, [(b"connection", value) for value in said], b"")
    assert re.findall(rb"\r\nconnection: (.*?)\r\n", heads.pop()) == found
    assert cycle.keep_alive is (found != [b"close"])


@pytest.mark.parametrize("kept", [True, False])
async def test_a_reply_goes_out_at_the_end_of_the_round_but_before_its_connection_ends(kept: bool) -> None:
    happened: list[object] = []
    transport = SimpleNamespace(write=lambda data: happened.append(data[-2:]), is_closing=lambda: False)
    answered = lambda cycle: happened.append("kept" if cycle.keep_alive else "closed")  # noqa: E731
    wire = SimpleNamespace(reusable=True, transport=transport, answered=answered, loop_round=LoopRound())

    async def answer() -> None:
        RequestCycle(cast(Any, wire), {"method": "GET"}, kept, False).respond(200, [], b"hi")

    for _ in range(2):
        LightTask(answer(), wire.loop_round, lambda _: None)
    await asyncio.sleep(0)
    assert happened == (["kept", "kept", b"hi", b"hi"] if kept else [b"hi", "closed", b"hi", "closed"])


@pytest.mark.parametrize("stream", [False, True])
def test_an_http_1_0_client_gets_what_it_understands(stack: Stack, stream: bool) -> None:
    body = json.dumps(chat(scripted(text="hello"), stream=stream)).encode()
    with Raw(stack) as client:
        client.send(
            b"POST /v1/chat/completions HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        head, _, received = client.rest().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    if stream:
        assert received.startswith(b"data: ")
        assert received.endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(received)["choices"][0]["message"]["content"] == "hello"
    assert stack.records()[-1]["outcome"] == "ok"


def test_an_http_1_0_client_can_tell_a_cut_stream() -> None:
    body = json.dumps(chat(scripted(text="one two three", fault="fin@2"), stream=True)).encode()
    with Stack(({"itl_ms": 30},)) as stack:
        with Raw(stack) as client:
            client.send(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            received = client.rest()
        assert b"[DONE]" not in received
        until(lambda: not stack.gateway.deployment.runtime.active.requests)
        assert stack.records()[-1]["outcome"] == "failed"


@pytest.mark.parametrize(
    "value", [b"a b", b"x" * 129, b"\xff\xfe", b"{}", b"a;b", b"", b"a\tb", b"dgm_ab12_" + b"x" * 43 + b"_abcdef"]
)
def test_a_harmful_request_id_is_replaced(stack: Stack, value: bytes) -> None:
    with Raw(stack) as client:
        _, headers, _ = client.send(LINE + b"host: x\r\nx-request-id: " + value + b"\r\n\r\n").response()
    assert re.fullmatch(rb"[0-9a-f]{32}", headers[b"x-request-id"])


def test_a_harmless_request_id_is_kept(stack: Stack) -> None:
    with Raw(stack) as client:
        _, headers, _ = client.send(LINE + b"host: x\r\nx-request-id: Az-0._:9\r\n\r\n").response()
    assert headers[b"x-request-id"] == b"Az-0._:9"


def test_every_reply_has_a_date(stack: Stack) -> None:
    """RFC 9110, section 6.6.1: a 200, an error of a dialect, a stream, a 405, a refusal of the server's own."""
    requests = [
        MODELS,
        post({}),
        post(chat()),
        b"DELETE /livez HTTP/1.1\r\nhost: x\r\n\r\n",
        LINE + b"\r\n",
    ]
    began = int(time.time())
    with Raw(stack) as client:
        received = client.send(b"".join(requests)).rest()
    with Raw(stack) as client:
        received += client.send(post(chat(stream=True), b"connection: close")).rest()
    heads = re.findall(rb"HTTP/1.1 \d+ .*?\r\n\r\n", received, re.DOTALL)
    assert len(heads) == len(requests) + 1
    for head in heads:
        (date,) = re.findall(rb"\r\ndate: (.*?)\r\n", head)
        assert date.endswith(b" GMT")
        assert began <= parsedate_to_datetime(date.decode()).timestamp() <= time.time()


def test_names_of_dropped_fields_break_no_header() -> None:
    config = {"dialects": {"openai": {"extras": "drop"}}}
    with Stack(config=config) as stack, Raw(stack) as client:
        names: list[str] = ["a\r\nset-cookie: x=y", "b, c", "\u00e9", "z" * 5000, "ok"]
        status, headers, _ = client.send(post(chat() | dict.fromkeys(names, 1))).response()
        assert status == 200
        assert b"set-cookie" not in headers
        dropped = headers[b"x-dragoman-dropped"].split(b", ")
        assert sorted(dropped) == sorted([b"a??set-cookie??x?y", b"b??c", b"?", b"z" * 64, b"ok"])
        record = stack.records()[-1]
        assert all(len(name) <= 64 for name in record["dropped"])


async def test_blocks_of_one_turn_go_out_together_and_before_an_ending() -> None:
    sent: list[bytes] = []
    protocol = SimpleNamespace(
        transport=SimpleNamespace(write=sent.append, is_closing=lambda: False),
        loop_round=LoopRound(),
        cut=lambda: sent.append(b"cut"),
    )
    one, two, left = (RequestCycle(cast(Any, protocol), {}, True, False) for _ in range(3))
    one.write(b"a")
    two.write(b"b")
    left.write(b"nobody reads it")
    one.write(b"c")
    left.gone = True
    assert sent == []
    await asyncio.sleep(0)
    assert sent == [b"1\r\na\r\n1\r\nc\r\n", b"1\r\nb\r\n"]
    two.write(b"d")
    two.cut_off()
    assert sent[2:] == [b"1\r\nd\r\n", b"cut"]
    await asyncio.sleep(0)
    assert len(sent) == 4
    for _ in range(4):
        one.write(b"x" * 40_000)
    # A turn in which much comes does not end before all of it is held: only what is sent can tell that nobody reads.
    assert [len(block) > 65536 for block in sent[4:]] == [True, True]


async def test_a_head_goes_out_with_the_first_block_of_its_turn_and_else_alone() -> None:
    sent: list[bytes] = []
    wire = SimpleNamespace(
        transport=SimpleNamespace(write=sent.append, is_closing=lambda: False),
        loop_round=LoopRound(),
        reusable=True,
        write_paused=False,
        rest=lambda: None,
        cut=lambda: sent.append(b"cut"),
    )
    scope = {"method": "POST", "http_version": "1.1"}
    one, two, cut = (RequestCycle(cast(Any, wire), dict(scope), True, False) for _ in range(3))
    for cycle in (one, two, cut):
        await cycle.start(200, [])
    one.write(b"a")
    cut.cut_off()
    await asyncio.sleep(0)
    assert [block.startswith(b"HTTP/1.1 200 OK\r\n") for block in sent] == [True, False, True, True]
    assert (sent[0][-4:], sent[1], sent[2][-10:], sent[3][-4:]) == (
        b"\r\n\r\n",
        b"cut",
        b"\r\n\r\n1\r\na\r\n",
        b"\r\n\r\n",
    )
    two.write(b"b")
    await asyncio.sleep(0)
    assert sent[4:] == [b"1\r\nb\r\n"]
