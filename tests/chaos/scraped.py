"""M1: scrapes of `/metrics` while many streams are open."""

from __future__ import annotations

import asyncio
import json
import random
import time

from tests.chaos.house import house, start
from tests.chaos.link import Link
from tests.chaos.row import FULL, SEED, Findings, percentile, row

STREAMS = 1000
ITL_MS = 500
"""Slow streams: what is measured is the scrape, not a loop that is full with passing tokens on."""
TOKENS = 20
WINDOW_S = 60.0 if FULL else 15.0
PAUSE_S = (0.2, 0.4)
LONGEST_SCRAPE_MS = 50.0
LONGEST_STALL_MS = 10.0
OPEN = {"accept": "application/openmetrics-text;version=1.0.0"}

Times = list[tuple[float, float]]
"""Begin and end of requests, in seconds."""


@row("M1", "scrapes while 1,000 streams are open")
async def scraped(findings: Findings) -> None:
    """`/metrics` is scraped as OpenMetrics and with `metrics.genai`, at irregular times, while 1,000 streams with two
    tokens a second are open; 15 s, `FULL=1`: 60 s.

    Passes if a scrape takes ≤ 50 ms (p95). The longest wait of `/livez` during a scrape, which waits for the event
    loop as a token does, is ≤ 10 ms longer than at as many moments without a scrape (median and p90).
    """
    config = {"listen": {"max_connections": 4 * STREAMS, "caller_share": 1}, "metrics": {"genai": True}}
    flags = ("--itl-ms", str(ITL_MS), "--slots", str(2 * STREAMS))
    async with house({}, config, 1, [flags]) as at:
        address = at.gateways[0].address
        settings = {"address": address, "key": "", "streams": STREAMS, "tokens": TOKENS, "pause_s": 0.0}
        at.others.append(await start(at.folder, "small", "tests.chaos.small", json.dumps(settings), port=0))
        link = Link(address)
        await running(link)
        waits, scrapes, others = await measured(address)
        most = await running(link)
        link.close()
    findings.check("streams open", most, 1, most >= 0.9 * STREAMS)
    took = [(end - begin) * 1000 for begin, end in scrapes]
    what = f"a scrape takes at most {LONGEST_SCRAPE_MS:g} ms (p95; median {percentile(took, 0.5):.1f} ms)"
    slow = percentile(took, 0.95)
    findings.check(what, f"{slow:.1f} ms", len(took), slow <= LONGEST_SCRAPE_MS)
    beside, else_ = longest(waits, scrapes), longest(waits, others)
    for share in (0.5, 0.9):
        added = percentile(beside, share) - percentile(else_, share)
        what = f"the longest wait beside a scrape is at most {LONGEST_STALL_MS:g} ms longer than at another time"
        findings.check(f"{what} (p{share * 100:.0f})", f"{added:.1f} ms", len(beside), added <= LONGEST_STALL_MS)


async def running(link: Link) -> int:
    """Requests under way, once they are as many as there are to be or 20 s have passed."""
    found = 0
    for _ in range(100):
        page = (await link.get("/metrics")).body.decode()
        shown = [line for line in page.splitlines() if line.startswith("dragoman_requests_running{")]
        found = sum(int(float(line.rpartition(" ")[2])) for line in shown)
        if found >= 0.9 * STREAMS:
            break
        await asyncio.sleep(0.2)
    return found


async def measured(address: str) -> tuple[Times, Times, Times]:
    """(requests to `/livez`, one after another: each waits as long as a token that comes at that moment; scrapes;
    as many moments without a scrape, as long as the scrapes)."""
    link, other, draw = Link(address), Link(address), random.Random(SEED)
    waits, scrapes, others = Times(), Times(), Times()
    over = time.monotonic() + WINDOW_S

    async def look() -> None:
        while time.monotonic() < over:
            answer = await link.get("/livez")
            waits.append((answer.began, answer.began + answer.seconds))
            await asyncio.sleep(0.002)

    async def scrape() -> None:
        while time.monotonic() < over:
            answer = await other.get("/metrics", OPEN)
            scrapes.append((answer.began, answer.began + answer.seconds))
            await asyncio.sleep(draw.uniform(*PAUSE_S))
            began = time.monotonic()
            others.append((began, began + answer.seconds))
            await asyncio.sleep(draw.uniform(*PAUSE_S))

    await asyncio.gather(look(), scrape())
    link.close()
    other.close()
    return waits, scrapes, others


def longest(waits: Times, moments: Times) -> list[float]:
    """For each of `moments`, the longest of the waits in it, in milliseconds."""
    return [
        max(((end - begin) * 1000 for begin, end in waits if begin < until and end > since), default=0.0)
        for since, until in moments
    ]
