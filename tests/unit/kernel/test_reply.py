"""What the client has seen: who may send what, when, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any, cast

import pytest

from gateway.auth import KnownKeys
from gateway.backends.vllm import Vllm
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request, Response
from gateway.core.messages import Chat
from gateway.core.ports import Lane, RequestRecord
from gateway.dialects.openai import OpenAI
from gateway.kernel.client import AsgiClient
from gateway.kernel.pump import Pump
from gateway.kernel.reply import ClientReply
from gateway.translation.lanes import lane_for

DIALECT = OpenAI()
OP = Chat(model="m", messages=(), stream=True)


def new_lane() -> Lane:
    return lane_for(DIALECT, Vllm(), OP)


class Sent:
    """An ASGI server's `send`: what it was given, one by one. While `blocked` it does not return."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.blocked = asyncio.Event()
        self.free = asyncio.Event()
        self.free.set()

    async def __call__(self, message: Any) -> None:
        self.blocked.set()
        await self.free.wait()
        self.messages.put_nowait(message)

    async def next(self) -> Any:
        return await asyncio.wait_for(self.messages.get(), 30)

    async def body(self) -> bytes:
        """What the next message adds to the body."""
        message = await self.next()
        assert message["type"] == "http.response.body"
        data: bytes = message["body"]
        return data


class Observer:
    def __init__(self) -> None:
        self.bugs: list[BaseException] = []

    def begun(self, dialect: str) -> None: ...
    def finished(self, record: RequestRecord) -> None: ...
    def retried(self, model: str, worker: str, error: GatewayError) -> None: ...
    def answered_with(self, record: RequestRecord, worker: str, error: GatewayError) -> None: ...
    def moved(self, model: str, reason: str) -> None: ...
    def continued(self, model: str, worker: str, reason: str) -> None: ...
    def not_continued(self, model: str, reason: str) -> None: ...
    def hedged(self, model: str, won: bool) -> None: ...
    def tool_called(self, kind: str, error: str | None) -> None: ...
    def guarded(self, guard: str, stage: str, result: str, seconds: float) -> None: ...
    def misses(self, record: RequestRecord, flags: tuple[str, ...]) -> None:
        self.flags = flags

    def prefilled(self, model: str, worker: str | None, error: GatewayError | None) -> None: ...
    def bug(self, record: RequestRecord, error: BaseException) -> None:
        self.bugs.append(error)


class Stream:
    """A worker's stream as the reply sees it."""

    over = False
    written_at = 0.0

    def __init__(self) -> None:
        self.lane = new_lane()
        self.opened = asyncio.Event()
        self.interrupted: GatewayError | None = None

    def open(self) -> None:
        self.opened.set()

    def interrupt(self, error: GatewayError) -> None:
        self.interrupted = error


class Case:
    def __init__(self, keepalive_s: float = 0.0) -> None:
        self.sent = Sent()
        self.record = RequestRecord(id="id", dialect="openai")
        self.observer = Observer()
        request = Request("POST", "/v1/chat/completions", id="id")
        client = AsgiClient(asyncio.Event().wait, self.sent)
        self.reply = ClientReply(
            client, DIALECT, request, self.record, self.observer, keepalive_s, KnownKeys(), [(b"x-request-id", b"id")]
        )


def nothing() -> None:
    """Nobody is paused here."""


async def test_flags_of_an_engine_are_reported_to_its_operator() -> None:
    case = Case()
    error = GatewayError(Kind.UNSUPPORTED, "not started for this")
    error.flags = ("--embeddings",)
    await case.reply.refuse(error, None)
    assert case.observer.flags == ("--embeddings",)


async def test_what_a_stream_writes_waits_for_the_commit() -> None:
    case = Case()
    first, second = Stream(), Stream()
    case.reply.attach(cast(Pump, first))
    case.reply.write(b"of the first")
    assert case.reply.unseen
    case.reply.detach()
    case.reply.attach(cast(Pump, second))
    case.reply.write(b"of the second")
    await case.reply.commit(new_lane(), nothing, nothing)
    await case.reply.finish()
    assert (await case.sent.next())["status"] == 200
    assert await case.sent.body() == b"of the second"
    assert not case.reply.unseen


async def test_nothing_overtakes_the_head() -> None:
    case = Case()
    case.reply.attach(cast(Pump, Stream()))
    case.reply.write(b"a")
    case.sent.free.clear()
    committing = asyncio.create_task(case.reply.commit(new_lane(), nothing, nothing))
    await case.sent.blocked.wait()
    case.reply.write(b"b")
    case.sent.free.set()
    await committing
    case.reply.write(b"c")
    await case.reply.finish()
    assert (await case.sent.next())["type"] == "http.response.start"
    assert await case.sent.body() == b"abc"


async def test_a_stream_can_be_interrupted_while_its_head_is_being_sent() -> None:
    case, stream = Case(), Stream()
    case.reply.attach(cast(Pump, stream))
    case.sent.free.clear()
    committing = asyncio.create_task(case.reply.commit(new_lane(), nothing, nothing))
    await case.sent.blocked.wait()
    late = GatewayError(Kind.TIMEOUT, "late")
    assert case.reply.committed
    case.reply.interrupt(late)
    assert stream.interrupted is late
    case.sent.free.set()
    await committing


async def test_keepalives_go_on_while_another_worker_is_tried() -> None:
    case = Case(keepalive_s=0.01)
    case.reply.keep_alive(new_lane)
    assert (await case.sent.next())["type"] == "http.response.start"
    assert await case.sent.body() == b"\n"
    case.reply.attach(cast(Pump, Stream()))
    case.reply.detach()  # it failed before its first output
    assert case.reply.unseen
    while case.sent.messages.qsize():
        case.sent.messages.get_nowait()
    assert await case.sent.body() == b"\n", "and no second head"
    await case.reply.refuse(GatewayError(Kind.NO_WORKER, "none is left"), OP)
    said = b""
    while b"none is left" not in said:
        said += await case.sent.body()
    assert (case.record.status, case.record.outcome, case.record.code) == (200, "failed", "no_worker_available")
    case.reply.close()


@pytest.mark.parametrize("early", [False, True], ids=["whole", "inside a stream"])
async def test_a_workers_words_that_repeat_a_key_are_masked(early: bool) -> None:
    case = Case(keepalive_s=0.01 if early else 0)
    case.reply._known.add(b"the-workers-own-key")  # as a model with this key would
    if early:
        case.reply.keep_alive(new_lane)
        assert (await case.sent.next())["type"] == "http.response.start"
    words = "wrong key the-workers-own-key"
    await case.reply.refuse(
        GatewayError(Kind.UPSTREAM, words, param="the-workers-own-key", code="the-workers-own-key"), OP
    )
    case.reply.close()
    said = b""
    while b"wrong key" not in said:
        said += (await case.sent.next()).get("body", b"")
    assert b"wrong key ***" in said
    assert b"own-key" not in said
    assert case.record.code == "***"


async def ended(case: Case) -> bytes:
    """What was sent until the end and not read before, without keep-alives."""
    await case.reply.finish()
    case.reply.close()
    said = b""
    while not case.sent.messages.empty():
        said += await case.sent.body()
    return said.strip(b"\n")


async def test_a_keepalive_commits_to_no_stream() -> None:
    """While a worker has sent its head alone, another one may still be asked."""
    case, stream = Case(keepalive_s=0.01), Stream()
    case.reply.attach(cast(Pump, stream))
    case.reply.keep_alive(new_lane)
    assert (await case.sent.next())["type"] == "http.response.start"
    assert await case.sent.body() == b"\n"
    assert case.reply.unseen
    assert not stream.opened.is_set()
    case.reply.write(b"x")
    await case.reply.commit(new_lane(), nothing, nothing)
    assert await ended(case) == b"x"


async def test_keepalives_bridge_the_gap_between_two_workers() -> None:
    """By the lane of the stream, after as long as in any silence."""
    case, first, second = Case(keepalive_s=0.01), Stream(), Stream()
    case.reply.keep_alive(new_lane)
    case.reply.attach(cast(Pump, first))
    await case.reply.commit(first.lane, nothing, nothing)
    assert (await case.sent.next())["type"] == "http.response.start"
    case.reply.write(b"x")
    assert (case.reply.between, case.reply.unseen) == (False, False)
    case.reply.detach()
    assert (case.reply.between, case.reply.unseen) == (True, False)
    assert (await case.sent.body()).strip(b"\n") == b"x"
    assert await case.sent.body() == b"\n"
    case.reply.attach(cast(Pump, second))
    case.reply.write(b"y")
    await case.reply.commit(first.lane, nothing, nothing)
    assert await ended(case) == b"y"


async def test_an_error_between_two_workers_is_the_end_of_the_stream() -> None:
    case, stream = Case(), Stream()
    case.reply.attach(cast(Pump, stream))
    await case.reply.commit(stream.lane, nothing, nothing)
    case.reply.detach()
    await case.reply.refuse(GatewayError(Kind.TRUNCATED, "it broke"), OP)
    assert (await case.sent.next())["status"] == 200
    assert b"it broke" in await case.sent.body()
    assert (case.record.outcome, case.record.code) == ("failed", "upstream_truncated")
    assert (case.reply.between, case.reply.unseen) == (False, False)


async def test_a_stream_that_has_output_needs_no_keepalive() -> None:
    case, stream = Case(keepalive_s=60), Stream()
    case.reply.attach(cast(Pump, stream))
    case.reply.keep_alive(new_lane)
    await case.reply.commit(stream.lane, nothing, nothing)
    case.reply._sent_at -= 61  # nothing else was sent for so long
    stream.written_at = monotonic()
    case.reply._look(new_lane)  # as its timer does
    assert not stream.opened.is_set()
    stream.written_at -= 61
    case.reply._look(new_lane)  # as its timer does
    assert stream.opened.is_set()
    case.reply.close()


async def whole(reply: ClientReply) -> None:
    await reply.respond(Response(200, [], b"x"))


async def streamed(reply: ClientReply) -> None:
    reply.attach(cast(Pump, Stream()))
    await reply.commit(new_lane(), nothing, nothing)
    await reply.finish()


@pytest.mark.parametrize("before", [whole, streamed])
async def test_after_a_reply_no_error_is_sent(before: Callable[[ClientReply], Any]) -> None:
    case = Case()
    await before(case.reply)
    while case.sent.messages.qsize():
        case.sent.messages.get_nowait()
    await case.reply.refuse(GatewayError(Kind.INTERNAL, "too late"), OP)
    assert await case.sent.next() == {"type": "http.response.body", "body": b"", "more_body": True}
    assert (case.record.outcome, case.record.code) == ("failed", "internal_error")
