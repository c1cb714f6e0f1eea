"""G1 to G4: late first tokens; workers killed in mid-stream, two in one stream, or stopped; in every dialect."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from typing import Any

from msgspec import Struct

from tests.chaos.broken import AWS_EXCEPTION, WAYS, Way, head, opened, scripted
from tests.chaos.house import House, Process, house
from tests.chaos.link import connected
from tests.chaos.paced import events, known, tell, until
from tests.chaos.row import FULL, Findings, row
from tests.laws.conformance.clients import CLIENTS

GENERATING = tuple(way for way in WAYS if way.client.operation in ("chat", "complete"))
STREAMS = 1000 if FULL else 2 * len(GENERATING)
AT_ONCE = 100
KILL_S = 10.0 if FULL else 1.5
WORDS = 100 if FULL else 40
ITL_MS = 100 if FULL else 40
"""So a stream takes 10 s, or 1.6 s."""
LATE_S = 0.5
CONFIG: dict[str, Any] = {
    "models": {"m": {"policy": "round_robin"}},
    "health": {"interval_s": 0.5, "timeout_s": 0.5},
    "breaker": {"eject_s": 1, "slowstart_s": 0},
    "retry": {"min_per_second": 1000},  # those of which the client has seen nothing are another row's
}


class Read(Struct):
    """One stream: as it was asked, and what came."""

    way: Way
    id: str
    text: str
    data: bytes = b""

    @property
    def body(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[2]

    @property
    def chunked(self) -> bool:
        return b"\r\ntransfer-encoding: chunked" in self.data.partition(b"\r\n\r\n")[0].lower()

    def wrong(self) -> str:
        """What is wrong with it as a whole reply with that text, or ""."""
        body = unchunked(self.body) if self.chunked else self.body
        for client in CLIENTS:
            if (client.dialect, client.operation) == (self.way.client.dialect, self.way.client.operation):
                with contextlib.suppress(Exception):  # another client's form
                    said = client.hear(body)
                    if said.complete and said.of(0).text == self.text:
                        return ""
        return f"{self.id}: {body[-200:]!r}"

    @property
    def errors(self) -> int:
        found = self.body.count(b'"error"') + self.body.count(b"event: error") + self.body.count(AWS_EXCEPTION)
        return found + self.data.lower().count(b"\r\nx-amzn-errortype:")


def unchunked(body: bytes) -> bytes:
    """The body without the framing of its chunks, as far as it came."""
    found = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        found, body = found + rest[:length], rest[length + 2 :]
    return found


async def read(at: House, way: Way, number: int, words: int = WORDS, begun: set[int] | None = None) -> Read:
    """Asks for a text that no other request has. begun: gets the number when text has come."""
    one = Read(way, f"{way.name}-{number}", " ".join(f"é{number}x{word}" for word in range(words)))
    asked = scripted(way.body(stream=True, max_tokens=20 * words), text=one.text)
    await collect(one, *await opened(at, way.path, one.id, asked), number, begun)
    return one


async def collect(
    one: Read, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int, begun: set[int] | None
) -> None:
    """Reads to the end. begun: gets the number when text has come."""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(1 << 16):
            one.data += piece
            if begun is not None and "é".encode() in one.data:
                begun.add(number)
    writer.close()


async def recorded(at: House, ids: set[str]) -> list[dict[str, Any]]:
    """The records of these requests, once all are there."""
    await until(lambda: ids <= at.records().keys(), 10)
    records = at.records()
    return [records[id_] for id_ in ids if id_ in records]


@row("G1", "first tokens that are late, streamed and not, in every dialect")
async def late(findings: Findings) -> None:
    """One of three workers is silent to all requests; `deadlines.first_token_s` and `unstreamed_s` of 0.5 s. Three
    streams of each route of each dialect that generates, then three plain replies.

    Passes if every reply is whole, none of that worker's, and requests have moved until its breaker opened.
    """
    deadlines = {"first_token_s": LATE_S, "unstreamed_s": LATE_S}
    config = {**CONFIG, "models": {"m": {"policy": "round_robin", "deadlines": deadlines}}}
    async with house({}, config, 1, [("--itl-ms", "2")] * 3) as at:
        await known(at)
        await tell(at.workers[0], "/sim/faults", fault="stall@before", path="/v1/")
        asked = [(way, number) for way in GENERATING for number in range(3)]  # one of three comes to that worker
        streams = await asyncio.gather(*(read(at, way, number, 5) for way, number in asked))
        wrong = [text for text in (one.wrong() for one in streams) if text]
        findings.none("streams that are not whole", wrong, len(streams))
        whole = [(way, number) for way, number in asked if way.plain]
        replies = await asyncio.gather(*(plain(at, way, number) for way, number in whole))
        findings.none("plain replies that are no 200", [one for one in replies if one != 200], len(replies))
        records = await recorded(at, {one.id for one in streams} | {f"plain-{way.name}-{n}" for way, n in whole})
        moved = [record for record in records if record["moved"] == ["late"]]
        slow = [record for record in records if record["worker"] == f"http://{at.workers[0].address}"]
        # Then its breaker has opened.
        findings.at_least("requests that moved, five at least", len(moved), 5, len(records), "d")
        findings.none("requests that the late worker answered", slow, len(records))


async def plain(at: House, way: Way, number: int) -> int:
    """The status of a reply that is not streamed."""
    body = scripted(way.body(stream=False, max_tokens=100), text="a b c")
    reader, writer = await connected(at.gateways[0].address)
    writer.write(head(at, way.path, f"plain-{way.name}-{number}", body))
    data = await reader.read(-1)
    writer.close()
    return int(data.split(b" ", 2)[1])


@row("G2", "workers are killed in mid-stream, one after the other, in every dialect")
async def killed(findings: Findings) -> None:
    """Streams of each route of each dialect, a hundred at once; one worker of four after the other is killed (SIGKILL)
    and started again. 40 tokens in 1.6 s, a death every 1.5 s; `FULL=1`: 1,000 streams of 10 s, a death every 10 s.

    Passes if all streams end as whole ones, each with its text as one worker alone sends it; with `FULL=1` some of
    each dialect were continued.
    """
    async with house({}, CONFIG, 1, [("--itl-ms", str(ITL_MS))] * 4) as at:
        await known(at)
        over = asyncio.Event()
        killing = asyncio.create_task(kill(at, over))
        room = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> Read:
            async with room:
                return await read(at, GENERATING[number % len(GENERATING)], number)

        streams = await asyncio.gather(*(one(number) for number in range(STREAMS)))
        over.set()
        deaths = await killing
        wrong = [text for text in (stream.wrong() for stream in streams) if text]
        findings.none("streams that are not what one worker alone sends", wrong, len(streams))
        records = await recorded(at, {stream.id for stream in streams})
        bad = Counter(record["code"] for record in records if record["outcome"] != "ok")
        findings.none("records that do not say ok", bad, len(records))
        continued = [record for record in records if record["continued"]]
        findings.at_least("workers killed, one at least", deaths, 1, deaths, "d")
        findings.at_least(
            "streams that another worker went on with, one at least", len(continued), 1, len(records), "d"
        )
        dialects = {record["dialect"] for record in continued}
        least = len({way.client.dialect for way in GENERATING}) if FULL else 1
        findings.at_least(f"their dialects, {least} at least", len(dialects), least, len(dialects), "d")


async def kill(at: House, over: asyncio.Event, every_s: float = KILL_S) -> int:
    """Kills one worker after the other, each back before the next; how many, until `over`."""
    deaths = 0
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), every_s)
        if over.is_set():
            return deaths
        place = deaths % len(at.workers)
        at.workers[place] = await killed_and_back(at.workers[place])
        deaths += 1


async def killed_and_back(worker: Process) -> Process:
    worker.process.send_signal(signal.SIGKILL)
    await worker.process.wait()
    again = await worker.again()
    await again.ready("/health")
    return again


async def begin(at: House, first: int) -> list[asyncio.Task[Read]]:
    """A stream for each way, numbered from `first`, once all have begun."""
    numbers = range(first, first + len(GENERATING))
    begun: set[int] = set()
    streams = [
        asyncio.create_task(read(at, way, number, 60, begun)) for way, number in zip(GENERATING, numbers, strict=True)
    ]
    await until(lambda: begun == set(numbers), 20)
    return streams


@row("G3", "two workers die in one stream, then all, and one returns, in every dialect")
async def two_deaths(findings: Findings) -> None:
    """Two of three workers are killed 0.8 s apart while a stream of each route of each dialect runs; then the third
    under new streams.

    Passes if the first streams are whole, with the output of all workers in their usage, and some saw two deaths;
    the others end with an error in their own form and look not whole, and their records name `no_worker`.
    """
    async with house({}, CONFIG, 1, [("--itl-ms", "50")] * 3) as at:
        await known(at)
        streams = await begin(at, 0)
        for worker in at.workers[:2]:
            worker.process.send_signal(signal.SIGKILL)
            await asyncio.sleep(0.8)
        done = await asyncio.gather(*streams)
        wrong = [text for text in (one.wrong() for one in done) if text]
        findings.none("streams that are not what one worker alone sends", wrong, len(done))
        records = await recorded(at, {one.id for one in done})
        twice = [record for record in records if len(record["continued"]) == 2]
        findings.at_least("streams that saw two deaths, one at least", len(twice), 1, len(records), "d")
        odd = [record["usage"] for record in records if record["usage"]["output"] < 60]
        findings.none("usages without the output of each worker", odd, len(records))

        streams = await begin(at, 1000)
        at.workers[2].process.send_signal(signal.SIGKILL)
        await asyncio.sleep(2)
        at.workers[2] = await at.workers[2].again()
        done = await asyncio.gather(*streams)
        wrong = [text for text in (one.wrong() for one in done) if text]
        findings.none("streams that are not whole though the last worker was away for 2 s", wrong, len(done))

        streams = await begin(at, 2000)
        at.workers[2].process.send_signal(signal.SIGKILL)
        done = await asyncio.gather(*streams)
        findings.none(
            "streams of the last worker that look whole", [one.id for one in done if not one.wrong()], len(done)
        )
        findings.none("of those, that end with no error", [one.id for one in done if not one.errors], len(done))
        records = await recorded(at, {one.id for one in done})
        why = Counter(record["not_continued"] for record in records)
        findings.check("why they were not continued", dict(why), len(records), set(why) == {"no_worker"})


@row("G4", "a worker's web server hangs with its engine in mid-stream, and goes on, in every dialect")
async def stopped(findings: Findings) -> None:
    """One of three workers is stopped whole (SIGSTOP), its web server with its engine, while a stream of each route of
    each dialect runs, and later continued (SIGCONT). `health.stalled_s` 1 s, `FULL=1`: absent, so that its bound is
    20 s.

    Passes if all streams end as whole ones before it goes on, those that it had by `stalled`; and of new streams,
    which are whole, it serves some once it moves again.
    """
    # At full length with the bound that a worker has by itself, which is 20 s once its probes fail.
    health = CONFIG["health"] if FULL else {**CONFIG["health"], "stalled_s": 1}
    async with house({}, {**CONFIG, "health": health}, 1, [("--itl-ms", "50")] * 3) as at:
        await known(at)
        worker = at.workers[0]
        address = f"http://{worker.address}"
        streams = await begin(at, 0)
        worker.process.send_signal(signal.SIGSTOP)
        done = await asyncio.gather(*streams)
        wrong = [text for text in (one.wrong() for one in done) if text]
        findings.none("streams that are not what one worker alone sends", wrong, len(done))
        records = await recorded(at, {one.id for one in done})
        left = [record for record in records if address in record.get("workers", ())]
        findings.at_least("streams that left the worker, one at least", len(left), 1, len(records), "d")
        odd = [record["continued"] for record in left if record["continued"] != ["stalled"]]
        findings.none("of those, that did not leave it because it stalls", odd, len(left))
        began = time.monotonic()
        worker.process.send_signal(signal.SIGCONT)
        back = await until(lambda: bool(events(at, "worker moves again", worker, began)), 30)
        done = await asyncio.gather(*await begin(at, 1000))
        records = await recorded(at, {one.id for one in done})
        served = [record for record in records if record["worker"] == address]
        findings.check("streams that it serves once it goes on", len(served), len(records), back and bool(served))
        wrong = [text for text in (one.wrong() for one in done) if text]
        findings.none("streams that are not whole then", wrong, len(done))
