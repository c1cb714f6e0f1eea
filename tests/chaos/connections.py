"""F9 and F10: connections to workers that end just as they are used, and that are given up again and again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from typing import Any

from tests.chaos.house import CHAT, House, chat, house, start
from tests.chaos.link import connected, links, request
from tests.chaos.row import FULL, SEED, Findings, row
from tests.support.ports import free_port

ROUNDS = 50 if FULL else 25
AT_ONCE = 200
LATE_S = 0.005
"""How far away a worker is: for so long after it has closed an idle connection, requests still go out on it."""

SLOTS = 10
TASKS = 20
CANCELS = 8000
ROUNDS_OF_CANCELS = 4
FOLLOW_UPS = 30


@row("F9", "workers close idle connections just as they are used again")
async def closed_idle(findings: Findings) -> None:
    """200 clients send requests at once, each 0.9 to 1.1 s after its last answer, 5,000 in all, `FULL=1`: 10,000.
    Workers are 5 ms away and close connections that were idle for 1 s, half of them by a reset, so requests meet
    closing connections.

    Passes if every answer is 200, without retries on another worker; no request is sent more than twice, none is
    answered twice by a worker; at least 20 did meet a closing connection.
    """
    # Without another try on another worker: a request that is sent again is sent by the pool of connections.
    config = {"retry": {"attempts": 1}}
    flags = ["--itl-ms", "5", "--keep-alive-s", "60", "--slots", str(AT_ONCE)]
    async with house({}, config, 1, [flags, flags], front=tapped) as at:
        draw = random.Random(SEED)
        answers: Counter[int] = Counter()
        with links(at.gateways[0].address, AT_ONCE) as made:
            for _ in range(ROUNDS):
                # All at once, or the connection used last would take them all and none would ever be idle.
                asked = (link.post(CHAT, chat(4, number % 2 == 0), {}) for number, link in enumerate(made))
                for result in await asyncio.gather(*asked, return_exceptions=True):
                    answers[0 if isinstance(result, BaseException) else result.status] += 1
                await asyncio.sleep(draw.uniform(0.9, 1.1))
        lines = [line for line in at.others[0].lines() if line.get("event") == "asked"]
        times = Counter(line["id"] for line in lines)
        lost = sum(line["lost"] for line in lines)
        ledger = [entry for worker in at.workers for entry in await worker.generated()]
    sent = answers.total()
    findings.check("answers other than 200", sent - answers[200], sent, answers[200] == sent)
    findings.check("requests that met a closing connection (20 at least)", lost, sent, lost >= 20)
    again = sum(count - 1 for count in times.values())
    most = max(times.values(), default=0)
    findings.check(f"sent again, {again} of them; times that one was sent, at most", most, len(times), most <= 2)
    twice = len(ledger) - len({entry["id"] for entry in ledger})
    findings.check("answered twice by a worker", twice, len(ledger), not twice and len(ledger) == sent)


async def tapped(at: House) -> list[str]:
    """A tap before each worker."""
    links = [(free_port(), worker.address) for worker in at.workers]
    settings = {"links": links, "idle_s": 1.0, "late_s": LATE_S, "seed": SEED}
    at.others.append(await start(at.folder, "tap", "tests.chaos.tap", json.dumps(settings), port=links[0][0]))
    return [f"127.0.0.1:{port}" for port, _ in links]


@row("F10", "clients that cancel at any moment, twice as many as a worker takes")
async def cancelled(findings: Findings) -> None:
    """Clients of a model with 10 slots leave 8,000 times, 20 at a time: at once, while they wait for a slot, before
    the reply, or in the middle of it. After every 2,000 come 30 clients that stay.

    Passes if those 30 are answered within 3 s and hold exactly 10 slots at once; nothing runs at the worker at the
    end; file descriptors are as before ±2.
    """
    config = {"models": {"m": {"max_in_flight": SLOTS}}}
    draw = random.Random(SEED)
    good, slowest = 0, 0.0
    async with house({}, config, 1, [("--itl-ms", "1")]) as at:
        gateway = at.gateways[0]
        before = gateway.descriptors()
        for turn in range(ROUNDS_OF_CANCELS):
            share = CANCELS // TASKS // ROUNDS_OF_CANCELS
            await asyncio.gather(*(canceller(gateway.address, draw, share) for _ in range(TASKS)))
            began = time.monotonic()
            with contextlib.suppress(TimeoutError), links(gateway.address, FOLLOW_UPS) as made:
                async with asyncio.timeout(3):
                    staying = (
                        link.post(CHAT, chat(50), {"x-request-id": f"stays-{turn}-{number}"})
                        for number, link in enumerate(made)
                    )
                    good += sum(answer.status == 200 for answer in await asyncio.gather(*staying))
            slowest = max(slowest, time.monotonic() - began)
        # A pool keeps idle connections for 4 s.
        after = await gateway.settled(before + 2, 6)
        entries = await at.workers[0].generated()
        outcomes = Counter(record["outcome"] for record in at.records().values())
    left = outcomes["cancelled"]
    states = Counter(entry["state"] for entry in entries)
    findings.check(
        f"cancelled as the gateway saw it, {states['aborted']} of them at the worker", left, CANCELS, left == CANCELS
    )
    follow_ups = ROUNDS_OF_CANCELS * FOLLOW_UPS
    findings.check(
        f"follow-ups answered within 3 s; the slowest of them took {slowest:.2f} s",
        good,
        follow_ups,
        good == follow_ups,
    )
    bad = outcomes.total() - left - outcomes["ok"]
    findings.none("records that say neither ok nor cancelled", bad, outcomes.total())
    findings.none("still running at the worker", states["running"], len(entries))
    # A slot too few is one that leaked, a slot too many was given back twice. Of clients that left the worker hears a
    # moment later than the gateway: it may even complete their replies, while their slots are others' already.
    most = at_once([entry for entry in entries if entry["request"].startswith("stays-")])
    findings.check(f"slots that the follow-ups got at once ({SLOTS})", most, follow_ups, most == SLOTS)
    findings.check("file descriptors more than before (2 at most)", after - before, 1, after - before <= 2)


async def canceller(address: str, draw: random.Random, count: int) -> None:
    """Asks and leaves, again and again: at once, while it waits for a slot, before a reply, or in the middle of it."""
    for _ in range(count):
        reader, writer = await connected(address)
        # So long that no reply is whole before its client leaves, however late that is.
        body = json.dumps(chat(5000, draw.random() < 0.5)).encode()
        writer.write(request("POST", CHAT, {}, body))
        if stay_s := draw.choice((0.0, draw.uniform(0, 0.02), draw.uniform(0, 0.1))):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(stay_s):
                    await reader.read(-1)
        writer.close()


def at_once(entries: list[dict[str, Any]]) -> int:
    """The most of them that were under way at a time."""
    moments = [(entry["started"], 1) for entry in entries] + [(entry["ended"], -1) for entry in entries]
    now = most = 0
    for _, step in sorted(moments):
        now += step
        most = max(most, now)
    return most
