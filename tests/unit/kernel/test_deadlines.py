"""How long one request may take: by the length of its prompt, and by what its client says."""

from __future__ import annotations

import math
from collections.abc import Iterator

import httpx
import pytest

from gateway.core.ports import Deadlines
from gateway.kernel import call, deadlines
from gateway.kernel.deadlines import MARGIN_S, Waits, client_waits, for_request
from tests.support.clients import REQUESTS
from tests.support.harness import Stack
from tests.unit.kernel.asking import chat, scripted

CONFIGURED = Deadlines(first_byte=100.0)


def test_a_longer_prompt_may_take_longer() -> None:
    config = {"deadlines": {"first_byte_s": 0.1, "first_byte_per_1000_s": 10}}
    with Stack(({"fault": "stall:1@before"},), config=config) as stack:
        for words, status in ((1, 504), (2000, 200)):
            reply = httpx.post(stack.url + "/v1/chat/completions", json=chat("word " * words, max_tokens=2), timeout=30)
            assert reply.status_code == status


@pytest.mark.parametrize("header", ["x-request-timeout", "x-stainless-read-timeout", "x-stainless-timeout"])
@pytest.mark.parametrize("dialect", REQUESTS)
def test_no_request_takes_much_longer_than_its_client_waits(
    silent: Stack, monkeypatch: pytest.MonkeyPatch, dialect: str, header: str
) -> None:
    """A proxy in front may hold the connection of a client that has left."""
    for module in (deadlines, call):
        monkeypatch.setattr(module, "MARGIN_S", 0.1)
    path, body = REQUESTS[dialect]
    reply = httpx.post(silent.url + path, json={"model": "m", **body}, headers={header: "0.1"}, timeout=30)
    assert reply.status_code == 424 or reply.status_code >= 500, (
        "not a fault of the request (424: SageMaker's model error)"
    )
    assert b"timeout_microseconds" not in reply.content, "nobody sent that field"
    record = silent.record()
    assert (record["outcome"], record["attempts"]) == ("failed", 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("header", ["x-request-timeout", "x-stainless-read-timeout", "x-stainless-timeout"])
@pytest.mark.parametrize("dialect", REQUESTS)
def test_the_clients_own_timer_comes_first(silent: Stack, dialect: str, header: str, stream: bool) -> None:
    """Its library raises what its users catch; the worker is free as soon as it has left."""
    path, body = REQUESTS[dialect]
    asked = {"model": "m", **body, **({"stream": True} if stream and "stream" in body else {})}
    ledger = silent.sim.ledger
    received, aborted = ledger.received, ledger.aborted
    while ledger.received == received:  # a busy machine may need longer than the client waits
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(silent.url + path, json=asked, headers={header: "0.1"}, timeout=httpx.Timeout(30, read=0.1))
    silent.run(ledger.wait(aborted=aborted + 1))
    assert (silent.record()["outcome"], silent.record()["phase"]) == ("cancelled", "first_output")


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
def test_a_stream_that_is_kept_alive_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, keepalive_s: float, status: int
) -> None:
    monkeypatch.setattr(deadlines, "MARGIN_S", 0.1)
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
    ("stream", "waits", "limit"),
    [
        (False, Waits(None, 7.0), 7.0),
        (False, Waits(None, 100.0 - MARGIN_S), None),  # the worker may not take longer anyway
        (True, Waits(None, 7.0), None),  # a stream's first byte is not its end
        (True, Waits(9.0, 7.0), 9.0),
        (False, Waits(9.0, 7.0), 7.0),
        (False, Waits(9.0, 70.0), 9.0),
    ],
)
def test_the_shorter_patience_holds(stream: bool, waits: Waits, limit: float | None) -> None:
    assert waits.whole(stream, CONFIGURED) == limit


def test_some_clients_wait_longer_than_a_worker_may_take() -> None:
    assert Waits(None, 101.0).outlasts(CONFIGURED)
    assert not Waits(None, 100.0).outlasts(CONFIGURED)
    assert not Waits(101.0, 101.0).outlasts(CONFIGURED)
    assert not Waits(5.0, None).outlasts(CONFIGURED)


@pytest.mark.parametrize(
    ("extra", "waits", "stream", "keepalive_s", "first_byte"),
    [
        (0.0, None, True, 15.0, 100.0),
        (20.0, None, True, 15.0, 120.0),
        (20.0, Waits(None, 110.0), True, 0.0, 110.0 + MARGIN_S),
        (0.0, Waits(None, 100.0), False, 0.0, 100.0 + MARGIN_S),  # as OpenAI's libraries by default
        (0.0, Waits(None, 100.0), True, 0.0, 100.0 + MARGIN_S),
        (0.0, Waits(None, 100.0), True, 15.0, 100.0),
        (0.0, Waits(None, 110.0), True, 0.0, 100.0),
        (0.0, Waits(None, 10.0), True, 15.0, 10.0 + MARGIN_S),  # it leaves before the first keep-alive
        (0.0, Waits(None, 20.0), True, 15.0, 100.0),
        (0.0, Waits(None, 10.0), False, 0.0, 10.0 + MARGIN_S),
        (0.0, Waits(10.0, None), False, 0.0, 100.0),  # limited as a whole
    ],
)
def test_the_first_byte(extra: float, waits: Waits | None, stream: bool, keepalive_s: float, first_byte: float) -> None:
    found = for_request(CONFIGURED, extra, waits, stream, keepalive_s)
    assert math.isclose(found.first_byte, first_byte)
    assert (found.connect, found.idle) == (CONFIGURED.connect, CONFIGURED.idle)
