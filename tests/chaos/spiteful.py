"""B6: workers whose answers are broken, endless, or made to harm, in every dialect, streamed and plain."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
from collections.abc import Iterator
from functools import partial

from msgspec import Struct

from tests.chaos.house import House, Process, house
from tests.chaos.link import request, to_the_end
from tests.chaos.odd import CHUNKED, DONE, END, chunked, counted, frame, head, plain, word
from tests.chaos.row import Findings, row
from tests.support.clients import DIALECTS, Way, usual

DEADLINE_S = 1.0
LATE_S = 1.0
"""What this machine may add to a deadline."""
CANARY = "canary-Qx7Lm2"
"""Stands in each answer where a client has no business."""
MEMORY_MB = 16.0
LONGEST = 2_000_000
"""`relay.max_reply_bytes` here."""

_NUMBER = re.compile(rb"answer-([0-9]+)-")
_ERROR = re.compile(rb'"error": ?[^n ]|event: error')
_LENGTH = re.compile(rb"content-length: ([0-9]+)")


def fine() -> bytes:
    """A plain reply that is good for whoever asks: a chat's, or the rank of the one document."""
    return plain(results=[{"index": 0, "relevance_score": 0.5}])


def tokens(count: bytes) -> bytes:
    """A plain reply that was made of so many."""
    return plain().replace(b'"completion_tokens": 7', b'"completion_tokens": ' + count)


def streamed(*frames: bytes) -> bytes:
    """Frames, one chunk each; the body has no end."""
    return CHUNKED + b"".join(map(chunked, frames))


class Spite(Struct):
    """One kind of answer.

    block  follows `said` again and again
    keep   the connection stays open after it, in silence; else it is closed
    modes  to which requests it is given: streamed (True), plain
    served clients are given a reply all the same
    """

    name: str
    said: bytes
    block: bytes = b""
    keep: bool = False
    modes: tuple[bool, ...] = (True, False)
    served: bool = False


PAGE = f"<html><body>{CANARY}</body></html>".encode()
_WORDS = CANARY.encode()


def of_http() -> Iterator[Spite]:
    yield Spite("nothing", b"")
    yield Spite("silence", b"", keep=True)
    yield Spite("not HTTP", _WORDS + b"\r\n\r\n")
    yield Spite("another protocol", b"SSH-2.0-" + _WORDS + b"\r\n")
    yield Spite("half a head", b"HTTP/1.1 200 OK\r\nx-secret: " + _WORDS)
    yield Spite("fields without end", b"HTTP/1.1 200 OK\r\n", b"x-%b: 1\r\n" % _WORDS * 100)
    yield Spite("a field without end", b"HTTP/1.1 200 OK\r\nx-a: ", _WORDS * 1000)
    yield Spite("100,000 fields", head(*(f"x-{n}: {CANARY}" for n in range(100_000))) + plain())
    yield Spite("interim answers without end", b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 100)
    yield Spite("no status", b"HTTP/1.1 xxx\r\ncontent-length: 2\r\n\r\n{}")
    yield Spite("an unknown status", counted(PAGE, status=f"999 {CANARY}", kind="text/html"))
    yield Spite("a switch of protocols", head("upgrade: h2c", "connection: upgrade", status="101 Go"), keep=True)
    yield Spite("no content", head(status="204 No Content"))
    yield Spite("a redirect", head(f"location: http://127.0.0.1:1/{CANARY}", "content-length: 0", status="307 Moved"))
    yield Spite("both lengths", head("content-length: 5", "transfer-encoding: chunked") + b"0\r\n\r\n" + plain())
    yield Spite("two lengths", head("content-length: 5", "content-length: 50") + plain())
    yield Spite("a length that is none", head("content-length: 5x") + plain())
    yield Spite("a length below zero", head("content-length: -1") + plain())
    yield Spite("too little", head("content-length: 5000") + plain())
    yield Spite("too much", head("content-length: 9") + plain())
    yield Spite("chunks that are none", CHUNKED + b"zz\r\n" + _WORDS + b"\r\n")
    yield Spite("a chunk of 2^65", CHUNKED + b"ffffffffffffffff1\r\n" + _WORDS)
    yield Spite("a chunk that is longer than it says", CHUNKED + b"2\r\n{}" + _WORDS)
    packed = gzip.compress(b"{" + b" " * 100_000_000, 9)
    yield Spite("a bomb, packed", counted(packed, "content-encoding: gzip"))
    yield Spite("packed otherwise than it says", counted(gzip.compress(plain()), "content-encoding: br"))
    evil = f"x-a: b\r\nset-cookie: {CANARY}"
    yield Spite("lines of a head in a value", counted(fine(), evil), modes=(False,), served=True)


def of_bodies() -> Iterator[Spite]:
    def whole(name: str, body: bytes, status: str = "200 OK", kind: str = "application/json") -> Spite:
        return Spite(name, counted(body, status=status, kind=kind))

    yield whole("a page with 200", PAGE, kind="text/html")
    yield whole("a page with 502", PAGE, "502 Bad Gateway", "text/html")
    yield whole("a traceback", f'Traceback: File "{CANARY}.py"'.encode(), "500 Error", "text/plain")
    yield whole("an error with its insides", json.dumps({"detail": CANARY}).encode(), "503 No")
    yield Spite("a plain reply without end", head("content-length: 9000000000"), b" " * 65536)
    for name, body in {
        "a number that is none": tokens(b"NaN"),
        "a number of 5,000 digits": tokens(b"9" * 5000),
        "100,000 arrays": plain()[:-1] + b', "x": ' + b"[" * 100_000,
        "choices that are none": plain(choices=CANARY),
        "no choice": plain(choices=[]),
        "JSON that is cut": plain()[:-20],
        "half of a letter": plain().replace(b'"ok"', b'"\xc3"'),
    }.items():
        yield Spite(name, counted(body), modes=(False,))
    for name, frames in {
        "a frame of another kind": (word("a"), b"data: " + PAGE + b"\n\n", END, DONE),
        "a frame that is cut": (word("a"), word("b")[:-9] + b"\n\n", END, DONE),
        "half of a letter, streamed": (word("a"), word("zzz").replace(b"zzz", b"\xc3"), END, DONE),
        "a number that is none, streamed": (
            word("a"),
            word("b").replace(b'"created": 1', b'"created": NaN'),
            END,
            DONE,
        ),
        "100,000 arrays, streamed": (word("a"), b"data: " + b"[" * 100_000 + b"\n\n", END, DONE),
        "an error amid a stream": (word("a"), frame({"error": {"message": CANARY, "code": 500}}), DONE),
        "the mark before an end": (word("a"), DONE),
        "a stream without its mark": (word("a"),),
    }.items():
        yield Spite(name, streamed(*frames) + b"0\r\n\r\n", modes=(True,))
    yield Spite("chunks without an end", streamed(word("a")), modes=(True,))
    yield Spite("silence amid a stream", streamed(word("a")), keep=True, modes=(True,))
    yield Spite("a line without end", streamed(word("a")) + b"ffffffff\r\ndata: ", b"x" * 65536, modes=(True,))


CONTROLS = [
    Spite("a good reply, as a control", counted(fine()), modes=(False,), served=True),
    Spite("a good stream, as a control", streamed(word("a"), END, DONE) + b"0\r\n\r\n", modes=(True,), served=True),
]
SPITES = [*CONTROLS, *of_http(), *of_bodies()]


async def spiteful(reached: list[int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers a connection: as the number in a request's text says; anything else finds a worker that is well."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            asked = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(asked.lower())
            body = await reader.readexactly(int(length[1]) if length else 0)
            found = _NUMBER.search(body)
            if found is None:
                writer.write(counted(b"{}"))
                continue
            reached.append(int(found[1]))
            spite = SPITES[int(found[1])]
            writer.write(spite.said)
            while spite.block:
                writer.write(spite.block)
                await writer.drain()
            if spite.keep:
                await reader.read()
            break
    writer.close()


@row("B6", "workers whose answers are broken, endless, or made to harm, in every dialect")
async def broken_answers(findings: Findings) -> None:
    """A worker answers in 49 broken or harmful ways (heads, fields, interim answers, chunks, lines without end; wrong
    lengths; pages, redirects, bombs; frames that are cut or of another kind; numbers that are none; silence),
    streamed and plain, in every dialect; deadlines of 1 s.

    Passes if clients get one error in their dialect: a 502 or 504 or its counterpart, or an error inside the
    stream, without its end mark; nothing of the worker's own words; no later than its deadlines. Memory grows by at
    most 16 MB; the log names no bug. Two good answers, as a control, are passed on.
    """
    reached: list[int] = []
    server = await asyncio.start_server(partial(spiteful, reached), "127.0.0.1", 0, limit=1 << 20)

    async def front(at: House) -> list[str]:
        return [f"127.0.0.1:{server.sockets[0].getsockname()[1]}"]

    config = {
        "deadlines": {"first_byte_s": DEADLINE_S, "idle_s": DEADLINE_S, "total_s": 4 * DEADLINE_S},
        "relay": {"max_reply_bytes": LONGEST},
        "retry": {"attempts": 1},
        "breaker": {"failures": 10_000},
    }
    async with house({}, config, 1, (), front=front) as at:
        asked = []
        for number, spite in enumerate(SPITES):
            grown, answers = await given(at, number, spite)
            asked += answers
            wrong = sorted({fault for one in answers if (fault := one.fault(spite))})
            findings.none(f"{spite.name}: wrong answers", wrong, len(answers))
            if spite.block or grown > MEMORY_MB:
                what = f"{spite.name}: MB of memory more at its worst ({MEMORY_MB:g} at most)"
                findings.at_most(what, grown, MEMORY_MB, len(answers))
        lost = len(asked) - len(reached)
        findings.none("requests that did not reach the worker", lost, len(asked))
        last = max(one.seconds for one in asked)
        most = 4 * DEADLINE_S + LATE_S
        findings.at_most(
            f"seconds until the last of them had its answer ({most:g} at most)", last, most, len(asked), ".2f"
        )
        odd = [line for line in at.gateways[0].lines() if line.get("event") in ("bug", "library")]
        findings.none("lines of the log that tell of a bug", odd, len(asked))
    server.close()


class Given(Struct):
    """What one client was given, to the end of its connection."""

    way: Way
    stream: bool
    data: bytes
    seconds: float

    def fault(self, spite: Spite) -> str:
        """What is wrong with it, or ""."""
        top, _, body = self.data.partition(b"\r\n\r\n")
        status = int(top.split()[1]) if top.startswith(b"HTTP/1.1 ") else 0
        where = f"{self.way.dialect}{', streamed' if self.stream else ''}: {status}"
        if CANARY.encode() in self.data:
            return f"{where}, and the worker's own words"
        if spite.served:
            return "" if status == 200 and not _ERROR.search(body) else f"{where}, {body[-80:]!r}"
        if status == 200:
            done = not self.way.example.alike and self.way.example.ends in body
            return f"{where}, {body[-80:]!r}" if done or not _ERROR.search(body) or not self.stream else ""
        with contextlib.suppress(ValueError):
            return "" if status >= 424 and isinstance(json.loads(body), dict) else where
        return f"{where}, {body[:80]!r}"


async def given(at: House, number: int, spite: Spite) -> tuple[float, list[Given]]:
    """MB that memory grew by at its worst, and what clients of every dialect were given. Replies without end come one
    at a time: a bound is one reply's."""
    gateway = at.gateways[0]
    ways = [(usual(name), mode) for name in DIALECTS for mode in spite.modes if usual(name).answers(stream=mode)]
    before = most = gateway.resident()
    room = asyncio.Semaphore(1 if spite.block else len(ways))

    async def one(way: Way, stream: bool) -> Given:
        async with room:
            return await ask(gateway, way, stream, f"answer-{number}-")

    running = asyncio.gather(*(one(way, mode) for way, mode in ways))
    while not running.done():
        await asyncio.wait([running], timeout=0.02)
        most = max(most, gateway.resident())
    return (most - before) / 1e6, await running


async def ask(gateway: Process, way: Way, stream: bool, text: str) -> Given:
    body = json.dumps(way.body(text, stream=stream, model="m")).encode()
    asked = request("POST", way.path("m"), {"connection": "close"}, body)
    return Given(way, stream, *await to_the_end(gateway.address, asked, 10 * DEADLINE_S))
