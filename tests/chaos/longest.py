"""J3: a batch of as many lines as one may have, while a client calls."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path

import httpx

from tests.chaos.batched import Job, executed, judge, leftovers
from tests.chaos.house import CHAT, chat, house
from tests.chaos.link import Answer, repeated, request
from tests.chaos.row import FULL, Findings, percentile, row
from tests.support.redis_server import Server

LINES = 50_000 if FULL else 2_000
MOST_S = 450.0
PAUSE_S = 0.1
GROWTH = 48 << 20


async def _answers(address: str, data: bytes, over: asyncio.Future[None]) -> list[Answer]:
    return [one async for one in repeated(address, data, lambda: not over.done(), PAUSE_S)]


@row("J3", "a batch of as many lines as one may have")
async def longest(findings: Findings) -> None:
    """A batch of 2,000 requests (`FULL=1`: 50,000, as many as it may have) on one gateway, while a client calls every
    0.1 s.

    Passes if it completes within 450 s with one result for each request; workers answered each once; the memory of
    the gateway grows by at most 48 MiB at worst; the client's calls all succeed, 0.25 s at most (p99); nothing is
    left in the folder but files that clients know.
    """
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        files = Path(folder, "files")
        config = {
            "redis": {"addresses": [server.address]},
            "batches": {"directory": str(files)},
            "models": {"m": {"max_in_flight": 64}},
        }
        async with house({"client": {}}, config, 1, ((), ())) as at, httpx.AsyncClient(timeout=60) as client:
            gateway = at.gateways[0]
            first = Job(at, client, files, "first", 500)  # what a gateway keeps is allocated by it
            await first.create()
            await first.ended()
            before, over = gateway.resident(), asyncio.get_running_loop().create_future()
            ask = request("POST", CHAT, {"api-key": at.keys["client"]}, json.dumps(chat(5)).encode())
            asking = asyncio.create_task(_answers(gateway.address, ask, over))
            job, begun = Job(at, client, files, "long", LINES), time.monotonic()
            await job.create()
            repeated_ = await judge(findings, job, cancelled=False, most_s=MOST_S)
            seconds = time.monotonic() - begun
            over.set_result(None)
            answers = await asking
            growth = gateway.resident(at_worst=True) - before
            what = f"MiB that memory grows at worst, at most {GROWTH >> 20} ({LINES / seconds:.0f} lines a second)"
            findings.at_most(what, growth / (1 << 20), GROWTH >> 20, LINES)
            wrong = [one.status for one in answers if one.status != 200]
            findings.none("answers of a client meanwhile other than 200", wrong, len(answers))
            slow = percentile([one.seconds for one in answers], 0.99)
            findings.at_most("s that the client waits, p99, at most 0.25", slow, 0.25, len(answers), ".3f", timed=True)
            done = await executed(at)
            lines = sum(count for text, count in done.items() if text.startswith(job.name))
            findings.check(
                "lines that workers answered, each once", lines - repeated_, LINES, lines - repeated_ == LINES
            )
            findings.none("files that are left of batches", leftovers(files), LINES)
