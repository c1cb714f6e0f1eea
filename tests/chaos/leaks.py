"""L4: many streams, of which some are left in the middle, leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections import Counter
from collections.abc import Sequence

from tests.chaos.broken import WAYS, scripted
from tests.chaos.connections import at_once
from tests.chaos.house import CHAT, Process, chat, house
from tests.chaos.link import Link, links, request
from tests.chaos.row import FULL, SEED, Findings, row

STREAMS = 100_000 if FULL else 5000
WARM_UP = 10_000 if FULL else 6000
STEPS = 20
"""How often memory is read."""

CLIENTS = 50
CANCELLED = 0.4
"""Share of the streams that are to be left; some of them are whole before that, or have not begun."""
SLOTS = 40
LIMIT = 60


@row("L4", "streams in every dialect, 30 % of them left at random")
async def left_behind(findings: Findings) -> None:
    """50 clients open 5,000 streams in all dialects, after 6,000 to warm up, under a limit of 60 at once and with a
    worker of 40 slots; at least 30 % are cancelled, waiting or after some blocks; `FULL=1`: 100,000 after 10,000.

    Passes if memory grows by less than 1 MB for 10,000 streams (least squares over 21 readings); file descriptors
    and tasks are as before ±2. If 70 streams then come at once, 60 are admitted and 40 are at the worker: no slot
    is lost.
    """
    config = {
        "models": {"m": {"max_in_flight": SLOTS}},
        "limits": [{"name": "slots", "kind": "concurrency", "limit": LIMIT}],
    }
    draw = random.Random(SEED)
    flags = ("--itl-ms", "2", "--ledger", "1000")
    async with house({"one": {}}, config, 1, [flags], under=("tests.chaos.counted",)) as at:
        gateway, key = at.gateways[0], at.keys["one"]
        descriptors, tasks = gateway.descriptors(), await tasks_of(gateway)
        ends: Counter[str] = Counter()
        await load(gateway.address, key, draw, WARM_UP, ends)
        memory = [gateway.resident()]
        for _ in range(STEPS):
            await load(gateway.address, key, draw, STREAMS // STEPS, ends)
            memory.append(gateway.resident())
        # A pool keeps idle connections for 4 s.
        descriptors = await gateway.settled(descriptors + 2, 6) - descriptors
        tasks = await tasks_of(gateway) - tasks
        before = len(at.records())
        with links(gateway.address, LIMIT + 10) as made:
            answers = await asyncio.gather(*(link.post(CHAT, chat(100, True), {"api-key": key}) for link in made))
        admitted = sum(answer.status == 200 for answer in answers)
        most = at_once((await at.workers[0].generated())[-admitted:])
        outcomes = Counter(record["outcome"] for record in at.records().values())
    whole = ends["whole"]
    odd = ends.total() - whole - ends["left"]
    findings.check(
        f"streams neither whole ({whole}) nor left ({ends['left']})",
        ", ".join(name for name in ends if name not in ("whole", "left")) or 0,
        ends.total(),
        not odd,
    )
    share = outcomes["cancelled"] / before
    findings.at_least("cancelled, as the gateway saw it, share (0.3 at least)", share, 0.3, before, ".2f")
    grown = slope(memory) * STEPS / STREAMS * 10_000 / 1e6
    findings.check(
        f"MB of memory for 10,000 more (1 at most); {memory[0] / 1e6:.1f} MB before and {memory[-1] / 1e6:.1f} after",
        f"{grown:+.2f}",
        STREAMS,
        grown < 1,
    )
    findings.check("file descriptors more than before (2 at most)", descriptors, ends.total(), descriptors <= 2)
    findings.check("tasks more than before (2 at most)", tasks, ends.total(), tasks <= 2)
    findings.check(
        f"slots of the limit, given to {LIMIT + 10} at once ({LIMIT})", admitted, ends.total(), admitted == LIMIT
    )
    findings.check(f"slots of the worker, taken by them at once ({SLOTS})", most, ends.total(), most == SLOTS)


async def load(address: str, key: str, draw: random.Random, count: int, ends: Counter[str]) -> None:
    async def client(share: int) -> None:
        link = Link(address)
        for _ in range(share):
            ends[await one(link, key, draw)] += 1
        link.close()

    await asyncio.gather(*(client(count // CLIENTS) for _ in range(CLIENTS)))


async def one(link: Link, key: str, draw: random.Random) -> str:
    """A stream in some dialect, whole or left: while it waits for a worker, or after some of its blocks."""
    way = draw.choice(WAYS)
    tokens = draw.randint(6, 20)
    data = request(
        "POST", way.path, {"api-key": key}, scripted(way.body(stream=True, max_tokens=100), text="abcd" * tokens)
    )
    how = draw.random()
    if how < CANCELLED / 2:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(draw.uniform(0.002, 0.01)):
                await link.send(data)
        link.close()
        return "left"
    if how < CANCELLED:
        await link.send(data, leave_after=draw.randint(1, 3))
        return "left"
    answer = await link.send(data)
    return "whole" if answer.status == 200 and way.ends in answer.body else f"{answer.status} {answer.body[-50:]!r}"


async def tasks_of(gateway: Process) -> int:
    """How many its loop has, when no request runs."""
    known = len(counts(gateway))
    gateway.process.send_signal(signal.SIGUSR1)
    async with asyncio.timeout(5):
        while len(counts(gateway)) == known:  # noqa: ASYNC110 (it is another process)
            await asyncio.sleep(0.05)
    return counts(gateway)[-1]


def counts(gateway: Process) -> list[int]:
    return [line["tasks"] for line in gateway.lines() if line.get("event") == "counted"]


def slope(values: Sequence[float]) -> float:
    """By how much they grow from one to the next: least squares."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    steps = [number - middle for number in range(len(values))]
    return sum(step * (value - mean) for step, value in zip(steps, values, strict=True)) / sum(s * s for s in steps)
