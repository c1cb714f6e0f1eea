"""How long one request may take: by the length of its prompt, and by what its client says."""

from __future__ import annotations

import math
from collections.abc import Iterator

import httpx
import pytest

from gateway.core.messages import Chat
from gateway.core.ports import Deadlines
from gateway.pipeline.deadlines import Waits, client_waits, for_request, shorten
from tests.clients import REQUESTS
from tests.harness import Stack
from tests.pipeline.test_pump import chat, scripted

CONFIGURED = Deadlines(first_byte=100.0)


def test_a_longer_prompt_may_take_longer() -> None:
    config = {"deadlines": {"first_byte_s": 0.1, "first_byte_per_1000_s": 10}}
    with Stack(({"fault": "stall:1@before"},), config=config) as stack:
        for words, status in ((1, 504), (2000, 200)):
            reply = httpx.post(stack.url + "/v1/chat/completions", json=chat("word " * words, max_tokens=2), timeout=30)
            assert reply.status_code == status


@pytest.mark.parametrize("header", ["x-request-timeout", "x-stainless-read-timeout", "x-stainless-timeout"])
@pytest.mark.parametrize("dialect", REQUESTS)
def test_no_request_takes_longer_than_its_client_waits(silent: Stack, dialect: str, header: str) -> None:
    path, body = REQUESTS[dialect]
    reply = httpx.post(silent.url + path, json={"model": "m", **body}, headers={header: "0.1"}, timeout=30)
    assert reply.status_code >= 400
    record = silent.record()
    assert (record["outcome"], record["attempts"]) == ("failed", 1)


@pytest.fixture(scope="module")
def silent() -> Iterator[Stack]:
    with Stack(({"fault": "stall@before"},), config={"breaker": {"failures": 10000}}) as stack:
        yield stack


def test_a_client_waits_no_longer_than_is_configured() -> None:
    config = {"deadlines": {"first_byte_s": 0.2}, "breaker": {"failures": 100}}
    with Stack(({"fault": "stall@before"},), config=config) as stack:
        for header in ("x-request-timeout", "x-stainless-read-timeout"):
            reply = httpx.post(stack.url + "/v1/chat/completions", json=chat(), headers={header: "25"}, timeout=20)
            assert reply.status_code == 504


@pytest.mark.parametrize(("keepalive_s", "status"), [(0, 504), (0.05, 200)])
def test_a_stream_that_is_kept_alive_is_waited_for(keepalive_s: float, status: int) -> None:
    with Stack(config={"relay": {"keepalive_s": keepalive_s}}) as stack:
        body = chat(scripted(text="a", fault="stall:0.8@before"), stream=True)
        waits = {"x-stainless-read-timeout": "0.2"}
        reply = httpx.post(stack.url + "/v1/chat/completions", json=body, headers=waits, timeout=20)
        assert reply.status_code == status
        assert (b"[DONE]" in reply.content) == (status == 200)


@pytest.mark.parametrize("value", ["", "0", "-1", "nan", "inf", "1e3", "none", "5 ", "1" * 400, "0x10", "\u0661"])
def test_what_is_no_number_says_nothing(value: str) -> None:
    assert client_waits([(b"x-request-timeout", value.encode())]) is None


def test_the_shortest_of_several_counts() -> None:
    headers = [(b"x-stainless-timeout", b"9"), (b"x-stainless-read-timeout", b"7.5"), (b"x-request-timeout", b"30")]
    assert client_waits(headers) == Waits(30.0, 7.5)
    assert client_waits([(b"x-other", b"1")]) is None


@pytest.mark.parametrize(
    ("own", "stream", "waits", "limit"),
    [
        (None, False, Waits(None, 7.0), 7.0),
        (None, False, Waits(None, 100.0), None),  # the worker may not take longer anyway
        (None, True, Waits(None, 7.0), None),  # a stream's first byte is no end
        (None, True, Waits(9.0, 7.0), 9.0),
        (5.0, False, Waits(9.0, 7.0), 5.0),
        (50.0, False, Waits(9.0, 70.0), 9.0),
    ],
)
def test_the_least_limit_holds(own: float | None, stream: bool, waits: Waits, limit: float | None) -> None:
    op = Chat(model="m", messages=(), stream=stream, timeout=own)
    shorten(op, waits, CONFIGURED)
    assert op.timeout == limit


def test_most_clients_wait_longer_than_a_worker_may_take() -> None:
    assert Waits(None, 100.0).outlasts(CONFIGURED)
    assert not Waits(None, 99.0).outlasts(CONFIGURED)
    assert not Waits(100.0, 100.0).outlasts(CONFIGURED)
    assert not Waits(5.0, None).outlasts(CONFIGURED)


@pytest.mark.parametrize(
    ("extra", "waits", "stream", "keepalive_s", "first_byte"),
    [
        (0.0, None, True, 15.0, 100.0),
        (20.0, None, True, 15.0, 120.0),
        (20.0, Waits(None, 110.0), True, 0.0, 110.0),
        (0.0, Waits(None, 110.0), True, 0.0, 100.0),
        (0.0, Waits(None, 10.0), True, 15.0, 10.0),  # it would leave before the first keep-alive
        (0.0, Waits(None, 20.0), True, 15.0, 100.0),
        (0.0, Waits(None, 10.0), False, 0.0, 100.0),  # limited as a whole
    ],
)
def test_the_first_byte(extra: float, waits: Waits | None, stream: bool, keepalive_s: float, first_byte: float) -> None:
    found = for_request(CONFIGURED, extra, waits, stream, keepalive_s)
    assert math.isclose(found.first_byte, first_byte)
    assert (found.connect, found.idle) == (CONFIGURED.connect, CONFIGURED.idle)
