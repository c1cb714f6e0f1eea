"""F11 and F12: Redis freezes, is killed, and returns, under load, while one tenant floods."""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from tests.chaos.house import CHAT, House, chat, house
from tests.chaos.link import Answer, Link, repeated, request
from tests.chaos.row import FULL, Findings, percentile, row
from tests.support.redis_server import Server

GATEWAYS = 4
RATE = 100.0
"""Requests a second, of the paced clients together."""
HEALTHY, FROZEN, DEAD, BACK = (20.0, 20.0, 10.0, 10.0) if FULL else (6.0, 6.0, 3.0, 5.0)
ONSET = 1.0
"""Two failed calls of 50 ms open the breaker: an onset of a second has it all."""
WIDE, FLOOD = 100_000, 40
TOLD = 3  # lines a replica: strict at the start, degraded, strict
MODES = ("local", "open", "closed")


class Seen(Struct):
    """One answer: at what time it was asked for, of whom, and how long it took."""

    at: float
    who: str
    answer: Answer


def limits() -> list[dict[str, object]]:
    wide = [
        {"name": f"wide-{mode}", "kind": "requests", "limit": WIDE, "match": {"key": [mode]}, "on_redis_failure": mode}
        for mode in MODES
    ]
    return [*wide, {"name": "flood", "kind": "requests", "limit": FLOOD, "per_s": 60, "match": {"key": ["flood"]}}]


@row("F11", "Redis frozen, killed and back at 100 requests a second; a tenant floods (F12)")
async def away(findings: Findings) -> None:
    """4 gateways at 100 requests/s and a tenant that floods; Redis is stopped, killed, and restarted empty.

    Passes if compared with requests without limits at the same time, p99 grows by ≤ 60 ms at the onset and ≤ 1 ms
    once the breaker is open; `local`, `open` and `closed` limits behave as configured. The flood gets its limit, at
    most once more its limit, and at most its limit again from a Redis that forgot. Limits are strict again ≤ 5 s
    after Redis returns; ≤ 3 log lines a gateway.
    """
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        config = {"redis": {"addresses": [server.address], "timeout_s": 0.05}, "limits": limits()}
        async with house({name: {} for name in (*MODES, "flood", "free")}, config, GATEWAYS) as at:
            seen: list[Seen] = []
            going = True
            tasks = [
                asyncio.create_task(paced(at, who, place, seen, lambda: going))
                for who in (*MODES, "free")
                for place in range(GATEWAYS)
            ]
            tasks += [asyncio.create_task(flood(at, place, seen, lambda: going)) for place in range(GATEWAYS)]
            await asyncio.sleep(HEALTHY)
            frozen = time.monotonic()
            server.freeze()
            await asyncio.sleep(FROZEN)
            server.send(signal.SIGKILL)
            server.kill()
            await asyncio.sleep(DEAD)
            returned = time.monotonic()
            await asyncio.to_thread(server.start)
            await asyncio.sleep(BACK)
            going = False
            await asyncio.gather(*tasks)
            await asyncio.sleep(0.2)
            judge(findings, at, seen, frozen, returned)


async def paced(at: House, who: str, place: int, seen: list[Seen], going: Callable[[], bool]) -> None:
    every = 4 * GATEWAYS / RATE
    link, headers = Link(at.gateways[place].address), {"api-key": at.keys[who]}
    due = time.monotonic() + every * (place / GATEWAYS + len(who) / 28)
    while going():
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        due += every
        seen.append(Seen(time.monotonic(), who, await link.post(CHAT, chat(1), headers)))
    link.close()


async def flood(at: House, place: int, seen: list[Seen], going: Callable[[], bool]) -> None:
    asked = request("POST", CHAT, {"api-key": at.keys["flood"]}, json.dumps(chat(1)).encode())
    async for answer in repeated(at.gateways[place].address, asked, going, 0.02):
        seen.append(Seen(answer.began, "flood", answer))


def judge(findings: Findings, at: House, seen: list[Seen], frozen: float, returned: float) -> None:
    def between(start: float, end: float, *who: str) -> list[Seen]:
        return [one for one in seen if one.who in who and start <= one.at < end]

    def late(start: float, end: float) -> tuple[float, int]:
        """p99 of milliseconds, over that of requests without any limit at the same time."""
        mine = [one.answer.seconds * 1000 for one in between(start, end, *MODES) if one.answer.status == 200]
        free = [one.answer.seconds * 1000 for one in between(start, end, "free")]
        return percentile(mine, 0.99) - percentile(free, 0.99), len(mine)

    before, _ = late(frozen - HEALTHY + 1, frozen)
    onset, n = late(frozen - 0.05, frozen + ONSET)
    findings.at_most("p99 added at onset, ms, at most 60", onset, 60, n)
    opened, n = late(frozen + ONSET, returned)
    findings.at_most(f"p99 added once open, ms, at most 1 (healthy {before:.2f})", opened, 1, n, ".2f")
    for mode, wanted in (("local", 200), ("open", 200), ("closed", 503)):
        answers = between(frozen + ONSET, returned, mode)
        other = [one for one in answers if one.answer.status != wanted]
        findings.none(f"{mode}: answers other than {wanted} while away", len(other), len(answers))
    told = [one for one in between(frozen + ONSET, returned, "closed") if "retry-after" not in one.answer.headers]
    findings.none("closed: 503 without Retry-After", told, len(between(frozen + ONSET, returned, "closed")))
    errors = [one for one in seen if one.answer.status >= 500 and one.who != "closed"]
    findings.none("5xx of those who do not fail closed", len(errors), len(seen))
    flooding = between(0, returned, "flood")
    admitted = [one for one in flooding if one.answer.status == 200]
    most = FLOOD + GATEWAYS * -(-FLOOD // GATEWAYS)
    findings.check(
        f"flood: admitted until the return, {FLOOD} by Redis and at most {most - FLOOD} without",
        len(admitted),
        len(flooding),
        FLOOD <= len(admitted) <= most,
    )
    flooding = between(returned, 1e18, "flood")
    admitted = [one for one in flooding if one.answer.status == 200]
    what = f"flood: admitted after the return of a Redis that forgot, at most {FLOOD}"
    findings.check(what, len(admitted), len(flooding), len(admitted) <= FLOOD)
    strict, lines = [], []
    shift = time.time() - time.monotonic()
    for gateway in at.gateways:
        mine = [line for line in gateway.lines() if line.get("event", "").startswith("limits")]
        lines.append(len(mine))
        strict.append(mine[-1]["time"] - shift - returned if mine[-1]["event"] == "limits strict" else 1e9)
    findings.at_most("strict again, s after the return, at most 5", max(strict), 5, len(strict), ".2f")
    findings.check(f"log lines a replica, at most {TOLD}", max(lines), len(lines), max(lines) <= TOLD)
