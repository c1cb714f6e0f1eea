"""K2: clients race for one budget over three gateways; Redis is slow, and restarts. The workers judge."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from gateway.core.money import NANO
from gateway.ratelimit import HttpRateLimiter, Limits, Subject
from tests.chaos.house import CHAT, House, chat, house
from tests.chaos.limits import settled
from tests.chaos.link import Link
from tests.chaos.row import FULL, SEED, Findings, row
from tests.support.harness import load_text
from tests.support.redis_server import Server

GATEWAYS, CLIENTS = 3, 64
COUNT = 60_000 if FULL else 3_000
REQUEST, TOKEN = 1_000_000, 100_000
"""The price of a request and of a token of its reply, in nano."""
LEAST, MOST = 5, 40
"""Tokens of replies."""
RESERVED = REQUEST + MOST * TOKEN
"""The most that one request reserves, in nano: prompts are free."""
LOST = 17
"""Reservations that may stay: Redis was killed before it answered the calls that made them."""
MODES = ("closed", "local")
"""The budgets that are raced for, by half of the clients each, and how they are when Redis is away."""
AMOUNT = COUNT * 3 // 10 * (REQUEST + (LEAST + MOST) // 2 * TOKEN)
"""Of each, in nano: some 0.6 of the requests spend it."""
SLOW, SLOW_MS, EVERY_S = (0.1, 0.3), 40, 0.1
"""The part of the requests during which Redis stands still for so long, so often."""
RESTARTED, AWAY, AWAY_S = 0.35, 0.45, 1.5
"""The parts after which Redis is killed and comes back with its data: at once, and then."""
LAST = 5
ON_DISK = ("--appendonly", "yes", "--appendfsync", "always")


class Race:
    """done: requests that were answered. harmed: nothing more will happen to Redis."""

    def __init__(self, at: House) -> None:
        self.at = at
        self.done = 0
        self.harmed = False

    async def client(self, number: int, seed: float) -> None:
        draw, link = random.Random(seed), Link(self.at.gateways[number % GATEWAYS].address)
        headers = {"api-key": self.at.keys[MODES[number % 2]]}
        spent = 0
        while self.done < COUNT or not self.harmed or spent < LAST:
            answer = await link.post(CHAT, chat(draw.randint(LEAST, MOST), stream=draw.random() < 0.3), headers)
            self.done += 1
            spent = spent + 1 if answer.status == 429 else 0
            if answer.status != 200:
                await asyncio.sleep(draw.uniform(0.01, 0.05))  # sooner than told, so that the budget is always pressed
        for _ in range(LAST):  # each gateway has a request of each budget once all is over
            await asyncio.sleep(0.5)
            await link.post(CHAT, chat(LEAST), headers)
        link.close()

    async def reached(self, share: float) -> None:
        while self.done < share * COUNT:  # noqa: ASYNC110 - progress announces itself nowhere
            await asyncio.sleep(0.01)

    async def harm(self, server: Server) -> None:
        """What becomes of Redis meanwhile."""
        await self.reached(SLOW[0])
        while self.done < SLOW[1] * COUNT:
            await asyncio.to_thread(server.command, "CLIENT", "PAUSE", SLOW_MS, "ALL")
            await asyncio.sleep(EVERY_S)
        for share, away_s in ((RESTARTED, 0.0), (AWAY, AWAY_S)):
            await self.reached(share)
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(away_s)
            await asyncio.to_thread(server.start)
        self.harmed = True


@row("K2", "64 clients race for budgets over three gateways; Redis is slow, and restarts")
async def spent(findings: Findings) -> None:
    """64 clients at 3 gateways race for two budgets, 3,000 requests (`FULL=1`: 60,000), a third of them streams. While
    a tenth to three tenths of them run, Redis stands still for 40 ms ten times a second. Then it is killed and
    comes back with its data, at once and again after 1.5 s. One budget has `on_redis_failure: closed`, the other
    `local`. The workers' log is the truth.

    Passes if each record's cost is that of the worker's log to the last nano, no worker saw a refused request, and
    nothing fails but with 503 of `closed`; `closed` is spent above its amount by at most what was running and had
    reserved, `local` by at most what was decided alone besides; at least 0.97 of each is spent, or all but 17
    reservations, if that is less; and in the end each counter in Redis is the sum of the worker's log, but for what was
    running.
    """
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), *ON_DISK) as server:
        shared = {"amount": AMOUNT / NANO, "per": "total", "scope": ["team"], "reserve": "maximum"}
        config: dict[str, Any] = {
            "redis": {"addresses": [server.address], "timeout_s": 0.5},
            "models": {"m": {"price": {"request": REQUEST / NANO, "output": TOKEN * 1_000_000 / NANO}}},
            "spend": {"currency": "EUR"},
            "budgets": [
                {**shared, "name": mode, "match": {"team": [mode]}, "on_redis_failure": mode} for mode in MODES
            ],
        }
        async with house({mode: {"team": mode} for mode in MODES}, config, GATEWAYS, (("--itl-ms", "1"),) * 2) as at:
            race, draw = Race(at), random.Random(SEED)
            async with asyncio.TaskGroup() as group:
                group.create_task(race.harm(server))
                for number in range(CLIENTS):
                    group.create_task(race.client(number, draw.random()))
            await judge(findings, at, await charged(config))


async def charged(config: dict[str, Any]) -> dict[str, int]:
    """What each budget's counter in Redis holds, in nano."""
    hashes = {mode: f"sha256:{place:064}" for place, mode in enumerate(MODES)}
    keys = {mode: {"team": mode, "hash": hash_} for mode, hash_ in hashes.items()}
    model = {"backend": "vllm", "workers": ["http://127.0.0.1:9"], **config["models"]["m"]}
    loaded = load_text(json.dumps({**config, "keys": keys, "models": {"m": model}}))
    limiter = HttpRateLimiter(loaded, Limits(loaded)).limiter
    await limiter.start(beats=False)
    try:
        return {mode: (await limiter.inspect(Subject(mode, mode, "m")))[0].used for mode in MODES}
    finally:
        await limiter.close()


async def judge(findings: Findings, at: House, charged: dict[str, int]) -> None:
    entries = await at.admits()
    await settled(at)
    records = at.records()
    strange = [one["status"] for one in records.values() if one["status"] not in (200, 429, 503)]
    findings.none("answers other than 200, 429 and, of `closed`, 503", strange, len(records))
    refused = [one["id"] for one in records.values() if one["status"] != 200]
    findings.none("refused requests that a worker saw", [one for one in refused if one in entries], len(refused))
    costs = {id_: REQUEST + entry["tokens"] * TOKEN for id_, entry in entries.items()}
    wrong = [id_ for id_, cost in costs.items() if records[id_].get("cost") != cost]
    findings.none("requests whose record has another cost than the worker's log", wrong, len(costs))
    truth, told = sum(costs.values()), sum(one.get("cost", 0) for one in records.values())
    findings.check("the records' costs against the worker's log, nano apart", told - truth, len(records), told == truth)
    for mode in MODES:
        mine = [cost for id_, cost in costs.items() if records[id_]["team"] == mode]
        over, running = (sum(mine) - AMOUNT) / AMOUNT, CLIENTS // 2 * RESERVED / AMOUNT
        if mode == "closed":
            what = f"closed: above the amount, in parts of it, at most {running:.4f}: what was running and had reserved"
            findings.at_most(what, over, running, len(mine), ".4f")
        else:
            alone = await decided_alone(at)
            what = f"local: above the amount, at most that and what {alone} requests cost that were decided alone"
            findings.at_most(what, over, running + alone * RESERVED / AMOUNT, len(mine), ".4f")
        least = 1 - max(0.03, LOST * RESERVED / AMOUNT)
        what = f"{mode}: part of the amount that is spent, at least {least:.2f}"
        findings.at_least(what, over + 1, least, len(mine), ".4f")
        apart = (charged[mode] - sum(mine)) / AMOUNT
        what = f"{mode}: the counter against the worker's log, in parts of the amount, at most {running:.4f} apart"
        findings.check(what, f"{apart:+.4f}", len(mine), abs(apart) <= running)


async def decided_alone(at: House) -> int:
    """Requests that gateways decided without Redis."""
    found = 0.0
    for gateway in at.gateways:
        for line in (await gateway.get("/metrics")).body.decode().splitlines():
            if line.startswith("dragoman_limits_alone_total "):
                found += float(line.split()[1])
    return int(found)
