"""M1: scrapes of `/metrics` while many streams are open."""

from __future__ import annotations

import asyncio
import json
import time

from tests.chaos.house import house, start
from tests.chaos.link import Link
from tests.chaos.row import FULL, Findings, percentile, row

STREAMS = 1000
ITL_MS = 500
"""Slow streams: what is measured is the scrape, not a loop that is full with passing tokens on."""
TOKENS = 20
WINDOW_S = 30.0 if FULL else 8.0
EVERY_S = 0.5
LONGEST_SCRAPE_MS = 50.0
LONGEST_STALL_MS = 10.0
OPEN = {"accept": "application/openmetrics-text;version=1.0.0"}


@row("M1", "scrapes while 1,000 streams are open")
async def scraped(findings: Findings) -> None:
    config = {"listen": {"max_connections": 4 * STREAMS}, "metrics": {"genai": True}}
    flags = ("--itl-ms", str(ITL_MS), "--slots", str(2 * STREAMS))
    async with house({}, config, 1, [flags]) as at:
        address = at.gateways[0].address
        settings = {"address": address, "key": "", "streams": STREAMS, "tokens": TOKENS, "pause_s": 0.0}
        clients = await start(at.folder, "small", "tests.chaos.small", json.dumps(settings), port=0)
        at.others.append(clients)
        link = Link(address)
        await running(link)
        scrapes: list[float] = []
        quiet = await waits(address, None)
        loud = await waits(address, scrapes)
        most = await running(link)
        link.close()
    findings.check("streams open", most, 1, most >= 0.9 * STREAMS)
    worst = percentile(scrapes, 0.99)
    what = f"a scrape takes at most {LONGEST_SCRAPE_MS:g} ms (p99; median {percentile(scrapes, 0.5):.1f} ms)"
    findings.check(what, f"{worst:.1f} ms", len(scrapes), worst <= LONGEST_SCRAPE_MS)
    added = max(0.0, percentile(loud, 0.99) - percentile(quiet, 0.99))
    what = f"`/livez` beside it waits at most {LONGEST_STALL_MS:g} ms longer (p99) than without scrapes"
    findings.check(what, f"{added:.1f} ms", len(loud), added <= LONGEST_STALL_MS)


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


async def waits(address: str, scrapes: list[float] | None) -> list[float]:
    """How long `/livez` takes, asked again and again, in milliseconds: as long as a token that comes at that moment is
    late. Meanwhile `/metrics` is scraped, unless `scrapes` is None; how long each takes is added there."""
    link, found = Link(address), list[float]()
    end = time.monotonic() + WINDOW_S

    async def look() -> None:
        while time.monotonic() < end:
            found.append((await link.get("/livez")).seconds * 1000)
            await asyncio.sleep(0.002)

    async def scrape(into: list[float]) -> None:
        other = Link(address)
        while time.monotonic() < end:
            into.append((await other.get("/metrics", OPEN)).seconds * 1000)
            await asyncio.sleep(EVERY_S)
        other.close()

    await asyncio.gather(look(), *([scrape(scrapes)] if scrapes is not None else []))
    link.close()
    return found
