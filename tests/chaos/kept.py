"""G5: streams of large prompts, of which some find no room to be continued, lose a worker."""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from typing import Any

from tests.chaos.broken import opened, scripted
from tests.chaos.continued import CONFIG, GENERATING, Read, collect, recorded
from tests.chaos.house import House, Process, house
from tests.chaos.link import lag
from tests.chaos.paced import known, until
from tests.chaos.row import FULL, Findings, percentile, row

STREAMS = 500 if FULL else 100
PROMPT = 200_000
"""Bytes, beside those that say what to answer."""
ROOM = int(0.6 * STREAMS * PROMPT)
OPENING = 8
"""Requests that are read at once. Their prompts are in memory several times."""
WORDS, ITL_MS = (25, 1000) if FULL else (15, 500)
FLAGS = ("--itl-ms", str(ITL_MS), "--max-model-len", "200000", "--kv-blocks", "10000000", "--slots", str(STREAMS + 1))
A_STREAM_KIB, A_BYTE = 64.0, 2.0
LAG_MS = 50.0
WAYS = tuple(way for way in GENERATING if way.path in ("/v1/chat/completions", "/v1/messages"))
"""A client in the worker's own wire, and one whose streams are rewritten."""


@row("G5", "streams of large prompts lose a worker, and a part of them has no room to go on")
async def kept(findings: Findings) -> None:
    """100 streams, `FULL=1`: 500, each with a prompt of 200 KB, half of them of a client in the worker's own wire and
    half of one whose streams are rewritten. `relay.continue_bytes` is 0.6 of all prompts. Then one of two workers
    is killed.

    Passes if the gateway keeps at most that and at least 0.8 of it, and its memory grows by at most 2 bytes for
    each byte of a prompt and 64 KiB a stream. Streams of that worker that were kept go on and are whole; its others
    end with an error, and their records name `memory`. The other worker's streams are whole. At the end nothing is
    kept. `/livez`, which waits for the event loop as a token does, takes at most 50 ms (p99) from the death to the
    end.
    """
    # What prompts of this size take on a busy machine is no death.
    slow = {"health": {"interval_s": 10, "timeout_s": 10}, "deadlines": {"connect_s": 30}}
    config = {**CONFIG, **slow, "relay": {"continue_bytes": ROOM}, "listen": {"caller_share": 1}}
    async with house({}, config, 1, [FLAGS] * 2) as at:
        await known(at)
        gateway = at.gateways[0]
        await asyncio.gather(*(large(at, number, 2) for number in range(-OPENING, 0)))
        before = gateway.resident()
        room, begun = asyncio.Semaphore(OPENING), set[int]()

        async def one(number: int) -> Read:
            async with room:
                reading = asyncio.create_task(large(at, number, WORDS, begun))
                await until(lambda: number in begun or reading.done(), 30)
            return await reading

        streams = [asyncio.create_task(one(number)) for number in range(STREAMS)]
        opened_ = await until(lambda: len(begun) == STREAMS, 120)
        findings.check("streams that have begun", len(begun), STREAMS, opened_)
        held, grown = await kept_bytes(gateway), gateway.resident() - before
        waits = asyncio.create_task(lag(gateway.address, asyncio.gather(*streams)))
        at.workers[0].process.send_signal(signal.SIGKILL)
        done = await asyncio.gather(*streams)
        late = await waits
        records = await recorded(at, {stream.id for stream in done})
        left = await kept_bytes(gateway)
    lost = [record for record in records if record["continued"] or record["not_continued"]]
    why = Counter(record["not_continued"] for record in lost)
    wrong = {one.id: one.wrong() for one in done if one.wrong()}
    silent = [one.id for one in done if one.id in wrong and not one.errors]
    findings.check(f"MB kept, of {ROOM / 1e6:.0f} at most", f"{held / 1e6:.1f}", STREAMS, 0.8 * ROOM < held <= ROOM)
    bound = A_BYTE * PROMPT * STREAMS + A_STREAM_KIB * 1024 * STREAMS
    findings.at_most(f"MB of memory that they take ({bound / 1e6:.0f} at most)", grown / 1e6, bound / 1e6, STREAMS)
    findings.check(
        "why streams of the lost worker did not go on",
        dict(why), len(lost), set(why) == {None, "memory"},
    )  # fmt: skip
    odd = wrong.keys() ^ {record["id"] for record in records if record["not_continued"]}
    findings.none("streams that are not whole though they went on, or whole though they did not", sorted(odd), STREAMS)
    findings.none("of those that are not whole, that end with no error", silent, len(wrong))
    findings.check("bytes kept once all have ended", left, STREAMS, left == 0)
    p99 = percentile(late, 0.99)
    what = f"ms that the event loop makes a request wait, p99 ({LAG_MS:g} at most; longest {max(late, default=0):.0f})"
    findings.at_most(what, p99, LAG_MS, len(late), timed=True)


async def large(at: House, number: int, words: int, begun: set[int] | None = None) -> Read:
    """A stream of so many words behind a prompt that no other request has."""
    way = WAYS[number % len(WAYS)]
    one = Read(way, f"{way.name}-{number}", " ".join(f"é{number}x{word}" for word in range(words)))
    body: dict[str, Any] = way.body(stream=True, max_tokens=20 * words)
    filler = f"w{number} " * (PROMPT // len(f"w{number} "))
    body["messages"] = [{"role": "user", "content": filler}, {"role": "assistant", "content": "."}, *body["messages"]]
    await collect(one, *await opened(at, way.path, one.id, scripted(body, text=one.text)), number, begun)
    return one


async def kept_bytes(gateway: Process) -> int:
    found = re.search(rb"^dragoman_kept_bytes (\S+)$", (await gateway.get("/metrics")).body, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))
