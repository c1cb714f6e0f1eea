"""What passes through the gateway: the client's leaving, back-pressure, failures before and after the first byte.

Every test runs on both client paths: the direct one and plain ASGI, which is the reference; and without the native
relay, if there is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from gateway.core.figures import Histogram
from gateway.core.messages import Chat, Message, Op, Text
from gateway.kernel.call import Call
from gateway.kernel.pump import Pump
from gateway.kernel.visit import Visit
from gateway.light_task import LightTask, LoopRound
from gateway.translation.lanes import EventLane
from gateway.wire.openai.streams.passthrough import PassthroughLane
from tests.support.harness import Stack, sse_data, until
from tests.unit.kernel.asking import PATH, chat, post, raw_request, read_whole, scripted


@pytest.fixture
def paced(wrap: Callable[[Any], Any]) -> Iterator[Stack]:
    """A worker that makes its second token when it is told to hurry."""
    with Stack(({"itl_ms": 3_600_000},), wrap=wrap) as running:
        yield running


def leaves(client: socket.socket, stack: Stack) -> None:
    """The client hangs up, and its worker's connection is closed at once."""
    left = time.monotonic()
    client.close()
    stack.run(stack.sim.ledger.wait(aborted=1))
    assert stack.sim.entries[-1].ended - left < 20  # no deadline of its own is that short
    assert stack.record()["outcome"] == "cancelled"


def test_client_leaving_mid_stream_closes_the_worker_connection(stack: Stack) -> None:
    client = raw_request(stack, chat(scripted(text="a b c", fault="stall@2"), stream=True))
    seen = b""
    while b"content" not in seen or seen.count(b"data:") < 2:
        seen += client.recv(65536)
    leaves(client, stack)


def test_client_leaving_before_a_plain_reply_closes_the_worker_connection(stack: Stack) -> None:
    client = raw_request(stack, chat(scripted(text="a", fault="stall@before")))
    stack.run(stack.sim.ledger.wait(running=1))
    leaves(client, stack)


def test_client_leaving_while_queued_frees_its_place(wrap: Callable[[Any], Any]) -> None:
    with Stack(wrap=wrap, config={"models": {"m": {"max_in_flight": 1}}}) as stack:
        first = raw_request(stack, chat(scripted(text="a", fault="stall@before")))
        stack.run(stack.sim.ledger.wait(running=1))
        second = raw_request(stack, chat("second"))
        pool = stack.gateway.deployment.pools["m"]
        until(lambda: pool.waiting == 1)
        second.close()
        until(lambda: pool.waiting == 0)
        first.close()
        assert post(stack, chat("third")).status_code == 200
        until(lambda: all(worker.in_flight == 0 for worker in pool.workers))
        assert stack.sim.ledger.received == 2  # the one that left while it waited was never sent


@pytest.mark.parametrize(
    "fault",
    [
        "reset@2",
        "fin@2",
        "eof@2",
        "bad-chunk@2",
        "bad-json@2",
        "many-choices@2",
        "many-calls@2",
        "many-values@2",
        "error-frame@2",
    ],
)
def test_failure_mid_stream_is_an_error_and_a_cut(paced: Stack, fault: str) -> None:
    stack = paced
    client = raw_request(stack, chat(scripted(text="one two three four", fault=fault), stream=True))
    received = b""
    while b"one" not in received:
        received += client.recv(65536)
    stack.loop.call_soon_threadsafe(stack.sim.engine.hurry, 0.001)
    received += read_whole(client)
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"[DONE]" not in body
    assert b'"finish_reason":"' not in body
    assert not body.endswith(b"0\r\n\r\n"), "the chunked body must not be completed"
    assert body.count(b'"error"') == 1
    record = stack.record()
    assert (record["outcome"], record["attempts"], record["status"]) == ("failed", 1, 200)


@pytest.mark.parametrize("fault", ["reset", "fin@headers", "status:500", "error-frame:500", "html:502"])
@pytest.mark.parametrize("stream", [True, False])
def test_failure_before_the_first_byte_goes_to_another_worker(
    wrap: Callable[[Any], Any], fault: str, stream: bool
) -> None:
    in_turn = {"models": {"m": {"policy": "round_robin"}}}  # so that the first is asked at all
    with Stack(({"fault": fault}, {}), in_turn, wrap=wrap) as stack:
        replies = [post(stack, chat(stream=stream)) for _ in range(4)]
        assert [reply.status_code for reply in replies] == [200] * 4
        if stream:
            assert all(list(sse_data(reply.content))[-1] == b"[DONE]" for reply in replies)
        assert max(record["attempts"] for record in stack.records()) == 2


@pytest.mark.parametrize("path", [PATH, "/ollama/chat/sse"])
def test_an_error_frame_first_is_an_error_status(stack: Stack, path: str) -> None:
    body = chat(scripted(text="a", fault="error-frame:400"), stream=True)
    reply = httpx.post(stack.url + path, json=body)
    assert reply.status_code == 400
    assert '"type":"invalid_request_error"' in reply.text
    assert reply.text.endswith("data: [END]\n\n") is path.endswith("sse")
    record = stack.record()
    assert (record["usage"], record["time_to_first_token_ms"]) == (None, None)  # nothing was generated, or ever came


def test_worker_4xx_keeps_its_words_and_is_no_failure_of_the_worker(stack: Stack) -> None:
    reply = post(stack, chat(scripted(text="a", fault="status:400")))
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["message"]
    assert error["code"] == "invalid_request"
    assert stack.gateway.deployment.pools["m"].workers[0].breaker.failures == 0


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("status:500", 502, "upstream_error"),
        ("status:503", 503, "overloaded"),
        ("status:429:7", 503, "overloaded"),
        ("status:401", 502, "upstream_error"),
        ("html", 502, "upstream_malformed"),
        ("bad-json", 502, "upstream_malformed"),
        ("many-choices", 502, "upstream_malformed"),
        ("many-calls", 502, "upstream_malformed"),
        ("empty", 502, "upstream_malformed"),
        ("gzip-bomb", 502, "upstream_error"),
        ("header-junk", 502, "upstream_error"),
        ("huge-headers", 502, "upstream_error"),
        ("short-body", 502, "upstream_truncated"),
    ],
)
def test_hostile_answers_are_clear_errors(stack: Stack, fault: str, status: int, code: str) -> None:
    reply = post(stack, chat(scripted(text="a", fault=fault)))
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    if fault == "status:429:7":
        assert reply.headers["retry-after"] == "7"
    assert "<html" not in reply.text


def test_no_worker_is_a_503_at_once(wrap: Callable[[Any], Any]) -> None:
    config = {"models": {"gone": {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}}}
    with Stack((), config=config, wrap=wrap) as stack:
        began = time.monotonic()
        reply = post(stack, {**chat(), "model": "gone"})
        assert time.monotonic() - began < 20  # no deadline of its own is that short
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_worker_available")
        assert reply.headers["retry-after"] == "1"
        assert httpx.get(stack.url + "/readyz?model").status_code == 503


def test_worker_that_dies_is_noticed_and_returns(stack: Stack) -> None:
    stack.run(stack.sim.stop())
    reply = post(stack, chat())
    assert reply.status_code in (502, 503)
    until(lambda: not stack.gateway.deployment.fleets.ready)
    stack.run(stack.sim.start())
    until(lambda: stack.gateway.deployment.fleets.ready)
    assert post(stack, chat()).status_code == 200


def test_drain_ends_what_outlives_the_grace_in_the_clients_own_words(wrap: Callable[[Any], Any]) -> None:
    with Stack(wrap=wrap, config={"relay": {"drain_s": 0.2}}) as stack:
        streamed = raw_request(stack, chat(scripted(text="a b c", fault="stall@2"), stream=True))
        plain = raw_request(stack, chat(scripted(text="a", fault="stall@before")))
        stack.run(stack.sim.ledger.wait(running=2))
        assert b"200 OK" in streamed.recv(100)
        stack.run(stack.gateway.drain())
        assert httpx.get(stack.url + "/readyz").status_code == 503
        assert b'"code":"shutting_down"' in read_whole(streamed)
        plain.settimeout(30)
        assert plain.recv(65536).startswith(b"HTTP/1.1 503")
        plain.close()


def test_reload_serves_new_requests_under_the_new_configuration(stack: Stack) -> None:
    running = raw_request(stack, chat(scripted(text="a b c", fault="stall@2"), stream=True))
    stack.run(stack.sim.ledger.wait(running=1))
    renamed = stack.config({"models": {"m": {"aliases": ["other"]}}})
    stack.run(stack.gateway.reload(renamed))
    assert post(stack, {**chat(), "model": "other"}).status_code == 200
    assert post(stack, {**chat(), "model": "alias"}).status_code == 404
    stack.loop.call_soon_threadsafe(stack.sim.go_on)
    received = b""
    running.settimeout(30)
    while b"[DONE]" not in received:
        received += running.recv(65536)
    running.close()


@pytest.mark.parametrize(
    ("path", "lane"),
    [(PATH, PassthroughLane), ("/friendli/v1/chat/completions", EventLane)],
    ids=["passthrough", "event lane"],
)
@pytest.mark.parametrize("where", ["first block", "later block", "end"])
def test_a_bug_in_a_lane_ends_its_stream_and_is_reported(
    wrap: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, path: str, lane: Any, where: str
) -> None:
    """Counted, and logged with the request's id; the worker is not blamed and the gateway goes on."""
    feed, fed = lane.feed, 0

    def broken(self: Any, block: bytes) -> bytes:
        nonlocal fed
        fed += 1
        if where != "end" and fed > (where == "later block"):
            raise ZeroDivisionError
        return cast(bytes, feed(self, block))

    def ended(self: Any) -> bytes:
        raise ZeroDivisionError

    script = scripted(text="one two three", **({"fault": "eof@2"} if where == "end" else {}))
    with Stack(({"itl_ms": 3_600_000},), wrap=wrap) as stack:
        with monkeypatch.context() as patched:
            patched.setattr(lane, "eof" if where == "end" else "feed", ended if where == "end" else broken)
            headers = {"x-request-id": "unlucky"}
            with (
                contextlib.suppress(httpx.RemoteProtocolError),  # cut, where something was sent
                httpx.stream("POST", stack.url + path, json=chat(script, stream=True), headers=headers) as reply,
            ):
                assert (reply.status_code == 500) == (where == "first block")
                for _ in reply.iter_raw():
                    stack.loop.call_soon_threadsafe(stack.sim.engine.hurry, 0.001)
        record = stack.record()
        assert (record["outcome"], record["code"], record["attempts"]) == ("failed", "internal_error", 1)
        (bug,) = stack.events("bug")
        assert (bug["id"], bug["error"]) == ("unlucky", "ZeroDivisionError")
        assert "dragoman_bugs_total 1.0" in httpx.get(stack.url + "/metrics").text
        assert stack.events("worker ejected") == []
        assert post(stack, chat()).status_code == 200


def held(text: str) -> int:
    """How many chats with `text` in their prompt are in memory, whoever holds them."""
    chats = [one for one in gc.get_objects() if type(one) is Chat]
    return sum(text in str(chat.messages) for chat in chats)


def begun(stack: Stack, prompt: str, path: str = PATH) -> socket.socket:
    """A stream that has said its first token and says no more. A body that is announced counts in the budget."""
    client = raw_request(stack, chat(prompt, stream=True, max_tokens=3), path, b"expect: 100-continue\r\n")
    received = b""
    while not re.search(rb'"(content|text)":"[^"]', received):
        block = client.recv(65536)
        assert block, received
        received += block
    return client


@pytest.mark.parametrize(("words", "fallback"), [(16_000, False), (16_000, True), (80_000, False)])
def test_a_stream_holds_its_prompt_until_its_first_token(
    wrap: Callable[[Any], Any], words: int, fallback: bool
) -> None:
    """A prompt may be long, and a stream lasts. Where another model may be asked, there is one for it, too."""
    prompt = "nobody else says this " * (words // 4)
    heavy = len(prompt) > 1 << 18
    other = {"m": {"fallback": ["other"]}, "other": {"backend": "vllm", "workers": ["http://127.0.0.1:9"]}}
    config = {"models": other} if fallback else {}
    mine = Chat(model="m", messages=(Message("user", (Text(prompt),)),))
    assert held("nobody else") == 1, "one that is held is found"
    del mine
    with Stack(({"itl_ms": 3_600_000, "max_model_len": 1_000_000},), config, wrap=wrap) as stack:
        runtime, threads = stack.gateway.deployment.runtime, []
        estimate = runtime.estimate

        def estimated(op: Op) -> int:
            threads.append(threading.current_thread().name)
            return estimate(op)

        runtime.estimate = estimated
        client = begun(stack, prompt)
        until(lambda: not held("nobody else"))
        until(lambda: runtime.body_budget.reserved == 0)
        client.close()
        record = stack.record()
        assert record["outcome"] == "cancelled"
        assert record["usage"]["input"] > words, "the estimate was made while the prompt was there"
        assert len(threads) == 1
        assert (threads[0] == "stack") is not heavy, "a heavy prompt is not estimated on the event loop"


def test_a_translated_stream_still_counts_its_body(wrap: Callable[[Any], Any]) -> None:
    """Its reader and its writer refer to the operation until the end: nobody may take its bytes meanwhile."""
    prompt = "this is translated " * 4000
    with Stack(({"itl_ms": 3_600_000, "max_model_len": 1_000_000},), wrap=wrap) as stack:
        client = begun(stack, prompt, "/v1/messages")
        assert stack.gateway.deployment.runtime.body_budget.reserved > len(prompt)
        client.close()
        assert stack.record()["outcome"] == "cancelled"
        until(lambda: stack.gateway.deployment.runtime.body_budget.reserved == 0)


class Scripted:
    """A worker's exchange, its lane, the client's reply, and what is flushed last in a round, as far as `Pump` asks."""

    headers: list[tuple[bytes, bytes]] = []
    error, done, committed, produced = None, False, False, 1
    sink: Any = None
    in_time = False

    def __init__(self) -> None:
        self.piped = asyncio.Event()
        self.flushed = asyncio.Event()

    def pipe(self, sink: Any) -> None:
        self.sink = sink
        self.piped.set()

    def take_in(self) -> None:
        self.sink.block(b"a first token")

    def feed(self, block: bytes) -> bytes:
        return block

    def attach(self, stream: Any) -> None: ...

    async def commit(self, lane: Any, pause: Any, resume: Any) -> Callable[[bytes], None]:
        self.committed = True
        return self.write

    async def carry(self, until: asyncio.Future[None]) -> None:
        await until

    def flush(self) -> None:
        self.in_time = self.committed
        self.flushed.set()

    def write(self, data: bytes) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def detach(self) -> None: ...
    def close(self) -> None: ...


async def test_a_first_token_leaves_in_the_round_that_brought_it() -> None:
    """The head of a stream mostly comes before its first token, so the request waits for that. Beside many streams each
    turn of the loop more is milliseconds."""
    work, ends, all_of_it = LoopRound.for_loop(asyncio.get_running_loop()), asyncio.Event(), Scripted()
    call = SimpleNamespace(reply=all_of_it, served=SimpleNamespace(gaps=Histogram((1.0,))), drop_prompt=lambda: None)
    visit = SimpleNamespace(worker=SimpleNamespace(half_open=False))
    pump = Pump(cast(Any, all_of_it), cast(Any, all_of_it), cast(Call, call), cast(Visit, visit))
    drive = LightTask(pump.run(), work, lambda drive: ends.set())
    await asyncio.wait_for(all_of_it.piped.wait(), 30)
    work.arrived(all_of_it)
    work.send(all_of_it)
    await asyncio.wait_for(all_of_it.flushed.wait(), 30)
    assert all_of_it.in_time, "it was committed to after what came in was taken in, and before anything was flushed"
    drive.cancel()
    await asyncio.wait_for(ends.wait(), 30)
