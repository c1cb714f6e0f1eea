"""A reply's head that comes again is not parsed again, and nobody can tell: each case runs on a connection whose origin
knows the head and on one whose origin knows none."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.inside import Pipe
from gateway.core.ports import Deadlines
from gateway.transport import known_head
from gateway.transport.connection import WorkerConnection
from gateway.transport.incoming import Incoming
from gateway.transport.known_head import KnownHead
from gateway.transport.pooled import Origin, Pooled

HEAD = b"HTTP/1.1 200 OK\r\ndate: Sat, 22 Nov 2025 10:00:00 GMT\r\nServer: uvicorn\r\nContent-Length: "
REST = b"\r\nContent-Type: application/json\r\n\r\n"
DEADLINES = Deadlines(30, 30, 30)


def reply(body: bytes, length: bytes | None = None, head: bytes = HEAD, rest: bytes = REST) -> bytes:
    return head + (b"%d" % len(body) if length is None else length) + rest + body


USUAL = reply(b'{"a":1}')


class Worker:
    """One connection to a worker, whose replies are blocks. seen: what the readers of replies saw."""

    def __init__(self) -> None:
        self.origin = Origin(Pooled(), "http://127.0.0.1:1")
        self.seen: list[tuple[Any, ...]] = []
        self.connection = WorkerConnection(self.origin)
        self.pipe = Pipe(self.connection)
        self.connection.connection_made(cast("asyncio.Transport", self.pipe))

    async def answer(self, *blocks: bytes, method: str = "GET") -> Incoming:
        """One request, and the worker's bytes for it."""
        self.origin.idle.pop(self.connection, None)
        exchange = self.connection.begin(b"", b"", method == "HEAD", DEADLINES)
        for block in blocks:
            while block and not self.connection.dropped:
                room = self.connection.get_buffer(len(block))
                read, block = block[: len(room)], block[len(room) :]
                room[: len(read)] = read
                self.connection.buffer_updated(len(read))
                await asyncio.sleep(0)
        code = exchange.error.code if exchange.error is not None else None
        kept = self.connection in self.origin.idle
        ended = exchange.source is None
        body = b"".join(exchange._blocks)  # read by nobody: what a reader would get
        self.seen.append((exchange.status, exchange.headers, body, ended, code, kept, self.connection.dropped))
        return exchange

    def close(self) -> None:
        self.connection.drop()


async def compare(*replies: list[bytes], method: str = "GET") -> None:
    """`replies` mean the same after USUAL and on their own."""
    again, new = Worker(), Worker()
    await again.answer(USUAL)
    assert again.origin.known.read(USUAL) is not None
    again.seen.clear()
    for worker in (again, new):
        for blocks in (*replies, *replies):
            if worker is new:
                worker.origin.known = KnownHead()
            if not worker.connection.dropped:
                await worker.answer(*blocks, method=method)
        worker.close()
    assert again.seen == new.seen


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\n0123\r\n0\r\n\r\n"
HINTS = b"HTTP/1.1 103 Hints\r\nContent-Length: %d\r\n\r\n" % len(USUAL)
CASES: dict[str, list[list[bytes]]] = {
    "the same": [[USUAL]],
    "another length": [[reply(b'{"text": "longer"}')]],
    "another time": [[USUAL.replace(b"10:00:00", b"10:00:01")]],
    "a time of another form": [[USUAL.replace(b"Sat, 22 Nov 2025 10:00:00 GMT", b"Saturday")]],
    "no time": [[USUAL.replace(b"date: Sat, 22 Nov 2025 10:00:00 GMT\r\n", b"")]],
    "two times": [[USUAL.replace(b"Server: uvicorn", b"date: Sat, 22 Nov 2025 10:00:00 GMT")]],
    "no body": [[reply(b"")], [USUAL]],
    "a long body": [[reply(b"x" * 100_000)]],
    "more than a reply": [[USUAL + b"x"]],
    "two replies at once": [[USUAL + USUAL]],
    "and the beginning of another": [[USUAL + b"HTTP/1.1 200 OK\r\n"]],
    "in two blocks": [[USUAL[:20], USUAL[20:]], [USUAL]],
    "head and body apart": [[USUAL[:-7], USUAL[-7:]], [USUAL]],
    "a body that is cut": [[reply(b"0123456789")[:-3], b"789"], [USUAL]],
    "too short a length": [[reply(b"0123456789", b"4")]],
    "zeros before the length": [[reply(b"0123", b"004")]],
    "nine digits": [[reply(b"0123", b"000000004")]],
    "no digits": [[reply(b"", b"")]],
    "a sign": [[reply(b"0123", b"+4")]],
    "a space behind": [[reply(b"0123", b"4 ")], [reply(b"0123", b"4 ")]],
    "two lengths": [[reply(b"0123", b"4\r\nContent-Length: 4")], [reply(b"0123", b"4\r\nContent-Length: 4")]],
    "another length after it": [[reply(b"0123", rest=b"\r\nContent-Length: 3\r\n\r\n")]],
    "length and chunked": [[reply(b"4\r\n0123\r\n0\r\n\r\n", b"4\r\nTransfer-Encoding: chunked")], [USUAL]],
    "chunked": [[CHUNKED], [USUAL], [CHUNKED]],
    "another status": [[USUAL.replace(b"200 OK", b"500 No")], [USUAL]],
    "another field": [[USUAL.replace(b"uvicorn", b"hypercorn")], [USUAL.replace(b"uvicorn", b"hypercorn")], [USUAL]],
    "a field more": [[USUAL.replace(b"Server: uvicorn", b"Server: uvicorn\r\nX: 1")], [USUAL]],
    "a field less": [[USUAL.replace(b"Server: uvicorn\r\n", b"")], [USUAL]],
    "a value that goes on": [[USUAL.replace(b"uvicorn", b"uvicorn\r\n date: x")], [USUAL]],
    "compressed": [[USUAL.replace(b"Server: uvicorn", b"Content-Encoding: gzip")]],
    "closing": [[USUAL.replace(b"Server: uvicorn", b"Connection: close")]],
    "an interim reply before": [[b"HTTP/1.1 100 Continue\r\n\r\n" + USUAL], [USUAL]],
    "an interim reply in a block of its own": [[b"HTTP/1.1 100 Continue\r\n\r\n", USUAL], [USUAL]],
    "an interim reply with a length": [[HINTS + USUAL], [HINTS + USUAL]],
    "an interim reply with a length that the reply lacks": [[HINTS + CHUNKED], [USUAL]],
    "empty lines before": [[b"\r\n\r\n" + USUAL], [USUAL]],
    "bare line ends": [[USUAL.replace(b"\r\n", b"\n")], [USUAL]],
    "not HTTP": [[b"\0" + USUAL]],
}


@pytest.mark.parametrize("case", CASES)
async def test_what_follows_a_known_head_means_what_it_means_alone(case: str) -> None:
    await compare(*CASES[case])


@pytest.mark.parametrize("blocks", [[USUAL[:-7]], [USUAL]])
async def test_the_head_of_a_reply_to_a_head_request_has_no_body(blocks: list[bytes]) -> None:
    await compare(blocks, method="HEAD")


@given(st.binary(max_size=40), st.lists(st.integers(0, 200), max_size=4))
def test_so_does_anything_cut_anywhere(body: bytes, cuts: list[int]) -> None:
    message = reply(body)
    places = sorted({0, len(message), *(cut for cut in cuts if cut < len(message))})
    blocks = [message[start:end] for start, end in pairwise(places)]
    asyncio.run(compare(blocks, [USUAL]))


async def test_a_known_head_is_not_parsed_again() -> None:
    worker = Worker()
    await worker.answer(USUAL)
    worker.connection.parser = cast("Any", None)  # whoever parses fails
    await worker.answer(reply(b"another body"))
    assert worker.seen[1][:3] == (
        200,
        [(b"content-length", b"12") if n == b"content-length" else (n, v) for n, v in worker.seen[0][1]],
        b"another body",
    )
    assert worker.seen[1][3:] == worker.seen[0][3:]
    worker.close()


async def test_readers_of_replies_share_no_headers() -> None:
    worker = Worker()
    for _ in range(3):
        (await worker.answer(USUAL)).headers.clear()
    assert len((await worker.answer(USUAL)).headers) == 4
    worker.close()


async def test_a_head_that_differs_each_time_is_not_learnt_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(known_head, "monotonic", lambda: now)
    worker = Worker()
    heads = [USUAL.replace(b"uvicorn", b"%d" % number) for number in range(20)]
    for head in heads:
        await worker.answer(head)
    assert worker.origin.known.learnt
    known = [worker.origin.known.read(head) is not None for head in heads]
    assert known.index(True) == 7
    assert known.count(True) == 1
    now += 10
    for head in (heads[18], heads[19]):
        await worker.answer(head)
    assert worker.origin.known.read(heads[18]) is not None
    worker.close()


async def test_heads_that_take_turns_are_not_learnt_for_ever() -> None:
    """Though each comes again."""
    worker, learnt = Worker(), 0
    for number in range(80):
        head = USUAL.replace(b"uvicorn", b"%d" % (number // 2 % 2))
        before = worker.origin.known.read(head)
        await worker.answer(head)
        learnt += before is None and worker.origin.known.read(head) is not None
    assert learnt == 8
    worker.close()


@pytest.mark.parametrize(("size", "learnt"), [(1_500, True), (15_000, False)])
async def test_a_long_head_is_not_learnt(size: int, learnt: bool) -> None:
    worker = Worker()
    await worker.answer(USUAL.replace(b"uvicorn", b"-" * size))
    assert worker.seen[0][0] == 200
    assert worker.origin.known.learnt == learnt
    worker.close()
