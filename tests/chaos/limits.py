"""F14: limits are exact across gateways, refunds are exact, slots come back. Judged by the workers' ledgers."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.ratelimit import HttpRateLimiter, Limits, Subject
from tests.chaos.house import CHAT, House, chat, house
from tests.chaos.link import Link
from tests.chaos.row import FULL, SEED, Findings, row
from tests.support.harness import load_text
from tests.support.redis_server import Server

GATEWAYS, CLIENTS, WINDOWS = 4, 200, 3
WINDOW = 60.0 if FULL else 6.0
REQUESTS = 600 if FULL else 60
TOKENS = 100_000 if FULL else 10_000
SLOTS = 40
CLOCKS = (-5.0, 0.0, 2.5, 5.0)
"""Seconds that each gateway's clock is ahead: windows are told by the store's clock alone."""
LIMITS = [
    {"name": "rpm", "kind": "requests", "limit": REQUESTS, "per_s": WINDOW},
    {"name": "tpm", "kind": "tokens", "limit": TOKENS, "per_s": WINDOW, "reserve": "maximum"},
    {"name": "slots", "kind": "concurrency", "limit": SLOTS},
]


class Admit:
    """One admitted request: it was decided between the moments at which the gateway had read its head and at which the
    worker had it. Of a stream that its client left, what was relayed counts: what a worker makes until it hears of that
    is nobody's, and shown beside."""

    def __init__(self, record: dict[str, Any], entry: dict[str, Any], shift: float) -> None:
        self.earliest = record["time"] - record["duration_ms"] / 1000
        self.latest = entry["started"] + shift
        left = record["outcome"] == "cancelled"
        self.tokens = entry["prompt_tokens"] + ((record["usage"] or {}).get("output", 0) if left else entry["tokens"])


@row("F14", "four gateways, 200 clients, requests and tokens a minute")
async def exact(findings: Findings) -> None:
    """4 gateways whose clocks differ by up to 10 s; 200 clients that retry sooner than told; one key is limited by
    requests, one by tokens; a quarter of the streams is cancelled; three windows (6 s with a tenth of 600 requests
    and 100,000 tokens a minute; `FULL=1`: a minute).

    Passes if no window at any time exceeds the limit (a cancelled stream counts what was relayed; the tokens that
    its worker makes until it learns of the cancellation are shown). At least 0.98 of the limit is used; no worker
    saw a refused request; a cancelled stream is charged exactly what was relayed; no slot is held at the end.
    """
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        config = {"redis": {"addresses": [server.address], "timeout_s": 0.5}, "limits": LIMITS}
        # One is bound by its requests, the other by its tokens.
        sizes = {"many": (5, 40), "long": (300, 700)}
        keys: dict[str, Any] = {name: {} for name in (*sizes, "quits")}
        async with house(keys, config, GATEWAYS, (("--itl-ms", "1"),) * 2, CLOCKS) as at:
            until = time.monotonic() + WINDOWS * WINDOW + 1.0
            draw = random.Random(SEED)
            names = [*sizes] * (CLIENTS // 2)
            async with asyncio.TaskGroup() as group:
                for number, name in enumerate(names):
                    seed = draw.random()
                    group.create_task(client(at, number, name, sizes[name], until, seed))
            await judge(findings, at, list(sizes))
            apart(findings, at)
            await refunds(findings, at, config)


async def client(at: House, number: int, name: str, size: tuple[int, int], until: float, seed: float) -> None:
    draw, link = random.Random(seed), Link(at.gateways[number % GATEWAYS].address)
    headers = {"api-key": at.keys[name]}
    await asyncio.sleep(draw.uniform(0, 0.2))
    while time.monotonic() < until:
        leave = draw.choice((None, None, None, 2))
        body = chat(draw.randint(*size), stream=leave is not None)
        answer = await link.post(CHAT, body, headers, leave)
        if answer.status == 429:
            # Sooner than told, so that the limit is always pressed; not so soon that only the clients run.
            told = int(answer.headers.get("retry-after-ms", 1000)) / 1000
            await asyncio.sleep(min(told, draw.uniform(0.1, 0.4)))
    link.close()


def apart(findings: Findings, at: House) -> None:
    """Each gateway's clock is as wrong as it should be: the time in its last line against the file's own."""
    found = [one.lines()[-1]["time"] - one.log.stat().st_mtime for one in at.gateways]
    off = max(abs(told - ahead) for told, ahead in zip(found, CLOCKS, strict=True))
    shown = ", ".join(f"{one:+.1f} s" for one in found)
    findings.check("clocks of the gateways against this machine's", shown, len(found), off < 1)


async def judge(findings: Findings, at: House, names: Sequence[str]) -> None:
    shift = time.time() - time.monotonic()
    entries = await at.admits()
    await settled(at)
    records = at.records()
    refused = [one for one in records.values() if one["status"] == 429]
    strange = [one["status"] for one in records.values() if one["status"] not in (200, 429)]
    findings.none("answers that are neither 200 nor 429", len(strange), len(records))
    said_no = [one["id"] for one in refused if one["id"] in entries]
    findings.none("refused requests that a worker saw", len(said_no), len(refused))
    for name in names:
        admits = [Admit(records[id_], entry, shift) for id_, entry in entries.items() if records[id_]["key"] == name]
        most, tokens = fullest(admits, WINDOW)
        findings.check(f"{name}: most requests in any {WINDOW:g} s, of {REQUESTS}", most, len(admits), most <= REQUESTS)
        findings.check(f"{name}: most tokens in any {WINDOW:g} s, of {TOKENS}", tokens, len(admits), tokens <= TOKENS)
    first = min(one.earliest for one in admits_of(entries, records, "many", shift))
    span = [one for one in admits_of(entries, records, "many", shift) if one.latest < first + WINDOWS * WINDOW]
    share = len(span) / (WINDOWS * REQUESTS)
    findings.check(
        f"many: admitted in {WINDOWS} windows, share of the limit", f"{share:.4f}", len(span), 0.98 <= share <= 1
    )


def admits_of(entries: dict[str, Any], records: dict[str, Any], name: str, shift: float) -> list[Admit]:
    return [Admit(records[id_], entry, shift) for id_, entry in entries.items() if records[id_]["key"] == name]


def fullest(admits: Sequence[Admit], window: float) -> tuple[int, int]:
    """(most requests, most tokens) that were certainly decided within one window, wherever it starts."""
    most = tokens = 0
    for start in sorted({one.earliest for one in admits}):
        inside = [one for one in admits if one.earliest >= start and one.latest < start + window]
        most = max(most, len(inside))
        tokens = max(tokens, sum(one.tokens for one in inside))
    return most, tokens


async def settled(at: House) -> None:
    """Until no gateway holds a slot and every log is written."""
    for gateway in at.gateways:
        link = Link(gateway.address)
        async with asyncio.timeout(10):
            while b"dragoman_limits_in_flight 0.0" not in (await link.get("/metrics")).body:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        link.close()
    await asyncio.sleep(0.2)


async def refunds(findings: Findings, at: House, config: dict[str, Any]) -> None:
    """Of cancelled requests exactly what was used stays charged, and of those that never reached a worker nothing."""
    headers = {"api-key": at.keys["quits"]}

    async def quit_early(number: int) -> None:
        link = Link(at.gateways[number % GATEWAYS].address)
        await link.post(CHAT, chat(400, stream=True), headers, 1 + number % 5)

    count = min(SLOTS, TOKENS // 450, REQUESTS)
    await asyncio.gather(*(quit_early(number) for number in range(count)))
    await settled(at)
    mine = [one for one in at.records().values() if one["key"] == "quits"]
    cancelled = [one for one in mine if one["outcome"] == "cancelled"]
    used = sum(one["usage"]["input"] + one["usage"]["output"] for one in mine)
    entries = await at.admits()
    made = sum(entries[one["id"]]["tokens"] - one["usage"]["output"] for one in cancelled)
    states = await standing(at, config, "quits")
    findings.check(
        "cancelled: tokens charged less those relayed", states["tpm"] - used, len(cancelled), states["tpm"] == used
    )
    findings.check(
        "cancelled: tokens made after the client left, each",
        f"{made / max(len(cancelled), 1):.1f}",
        len(cancelled),
        True,
    )
    left = {name: (await standing(at, config, name))["slots"] for name in at.keys}
    findings.check("slots held at the end", sum(left.values()), len(at.records()), not any(left.values()))


async def standing(at: House, config: dict[str, Any], key: str) -> dict[str, int]:
    """limit -> what is used of it, by the store itself"""
    import yaml

    models = {"m": {"backend": "vllm", "workers": ["http://127.0.0.1:1"]}}
    found = load_text(yaml.safe_dump({**config, "models": models}))
    limiter = HttpRateLimiter(found, Limits(found)).limiter
    await limiter.start(beats=False)
    try:
        states = await limiter.inspect(Subject(key=key, model="m"))
    finally:
        await limiter.close()
    return {state.rule.name: state.used for state in states}
