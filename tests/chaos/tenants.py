"""L5: a tenant at ten times its limit costs another tenant nothing."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path

from tests.chaos.house import CHAT, House, chat, house
from tests.chaos.link import Answer, Link
from tests.chaos.row import FULL, SEED, Findings, percentile, row
from tests.support.redis_server import Server

SECONDS = 60.0 if FULL else 12.0
LIMIT = 20
"""Requests a second that each tenant may send, no more than two of them at once."""
FIRST_TOKEN_US = 5000
"""Of a prompt token: the first token takes some 50 ms, as it does where a model runs."""


@row("L5", "a tenant at ten times its limit beside one at half of its own")
async def quiet_neighbour(findings: Findings) -> None:
    """One tenant uses its whole limit, then sends ten times as much; another uses half of its own.

    Passes if the other tenant is never refused, and its p99 to the first token grows by at most 10 %.
    """
    limits = [
        {"name": "requests", "kind": "requests", "limit": LIMIT, "per_s": 1, "burst": 2},
        {"name": "tokens", "kind": "tokens", "limit": 100_000, "per_s": 60},
        {"name": "slots", "kind": "concurrency", "limit": 20},
    ]
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        config = {"redis": {"addresses": [server.address]}, "limits": limits}
        workers = [("--prefill-us-per-token", str(FIRST_TOKEN_US), "--no-prefix-cache", "--itl-ms", "5")] * 4
        async with house({"loud": {}, "quiet": {}}, config, 2, workers) as at:
            # First the other takes what is its own, then ten times as much: only the excess must cost nothing.
            alone, _ = await asyncio.gather(
                tenant(at, "quiet", LIMIT / 2, SECONDS), tenant(at, "loud", LIMIT, SECONDS, stream=False)
            )
            beside, loud = await asyncio.gather(
                tenant(at, "quiet", LIMIT / 2, SECONDS), tenant(at, "loud", LIMIT * 10, SECONDS, stream=False)
            )
    for name, answers in (("before", alone), ("beside the flood", beside)):
        refused = [one for one in answers if one.status != 200]
        findings.none(f"quiet {name}: refusals", len(refused), len(answers))
    before, after = (percentile([one.first_s for one in answers], 0.99) for answers in (alone, beside))
    findings.check(
        f"quiet: p99 to the first token, {before * 1000:.1f} ms before and {after * 1000:.1f} ms beside the flood",
        f"{after / before - 1:+.1%}",
        len(beside),
        after <= before * 1.1,
    )
    admitted = [one for one in loud if one.status == 200]
    share = len(admitted) / (LIMIT * SECONDS)
    findings.check("loud: admitted, share of its limit", f"{share:.2f}", len(loud), 0.5 < share <= 1 + 1 / SECONDS)


async def tenant(at: House, name: str, rate: float, seconds: float, stream: bool = True) -> list[Answer]:
    """Answers to requests that come at `rate` whatever became of those before."""
    draw = random.Random(SEED)
    answers: list[Answer] = []
    links = [Link(gateway.address) for gateway in at.gateways for _ in range(16)]
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            if not links:
                continue  # all are under way: what would only queue here is not sent
            group.create_task(one_of(at, name, links, answers, stream, draw.randint(4, 8)))
    for link in links:
        link.close()
    return answers


async def one_of(at: House, name: str, links: list[Link], answers: list[Answer], stream: bool, tokens: int) -> None:
    link = links.pop(0)
    try:
        answers.append(await link.post(CHAT, chat(tokens, stream), {"api-key": at.keys[name]}))
    finally:
        links.append(link)
