"""L10: a healthy Redis is exact wherever it is: 30 ms away, and on a machine that is busy with other things."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.house import CHAT, House, Process, chat, house
from tests.chaos.link import repeated, request
from tests.chaos.row import FULL, Findings, row
from tests.support.far import Far
from tests.support.redis_server import Server

ROUND_TRIP = 0.03
GATEWAYS, CLIENTS, LIMIT = 2, 40, 60
SECONDS = 30.0 if FULL else 8.0
"""Less than the window of a minute: all that is admitted counts."""
_ALONE = re.compile(rb"^dragoman_limits_alone_total (\S+)$", re.MULTILINE)


@row("L10", "a flood while Redis is healthy, but 30 ms away, or on a busy machine")
async def far_and_busy(findings: Findings) -> None:
    """40 clients of two keys, one of which fails closed, flood 2 gateways at the default `redis.timeout_s`. First
    Redis is 30 ms away; then it is near, and twice as many processes as cores use all CPU.

    Passes if exactly the limit is admitted in the window; no 503; no request is decided without Redis.
    """
    with tempfile.TemporaryDirectory() as name, Server(folder := Path(name)) as server:
        with Far(folder, server.port, ROUND_TRIP) as far:
            await flooded(findings, "30 ms away", far.address)
        server.command("FLUSHALL")
        with hogs(2 * (os.cpu_count() or 1)):
            await flooded(findings, "on a busy machine", server.address)


async def flooded(findings: Findings, where: str, address: str) -> None:
    """Requests of one key for which the limit is counted locally without Redis, and of one that is refused then."""
    rule = {"kind": "requests", "limit": LIMIT}
    limits = [
        {**rule, "name": mode, "match": {"key": [mode]}, "on_redis_failure": mode} for mode in ("local", "closed")
    ]
    config = {"redis": {"addresses": [address]}, "limits": limits}
    async with house({"local": {}, "closed": {}}, config, GATEWAYS) as at:
        answers = {mode: list[int]() for mode in ("local", "closed")}
        until = time.monotonic() + SECONDS
        await asyncio.gather(
            *(client(at, place, mode, answers[mode], until) for mode in answers for place in range(CLIENTS // 2))
        )
        alone = sum([await decided_alone(gateway) for gateway in at.gateways])
    asked = sum(map(len, answers.values()))
    for mode, found in answers.items():
        admitted = found.count(200)
        findings.check(f"{where}, {mode}: admitted, of {LIMIT}", admitted, len(found), admitted == LIMIT)
    refused = answers["closed"].count(503)
    findings.check(f"{where}, closed: answers 503", refused, len(answers["closed"]), refused == 0)
    findings.check(f"{where}: decided by a gateway alone", alone, asked, alone == 0)


async def client(at: House, place: int, key: str, answers: list[int], until: float) -> None:
    await asyncio.sleep(place * 0.003)
    asked = request("POST", CHAT, {"api-key": at.keys[key]}, json.dumps(chat(1)).encode())
    async for answer in repeated(at.gateways[place % GATEWAYS].address, asked, lambda: time.monotonic() < until, 0.02):
        answers.append(answer.status)


async def decided_alone(gateway: Process) -> int:
    found = _ALONE.search((await gateway.get("/metrics")).body)
    return int(float(found[1])) if found else 0


@contextlib.contextmanager
def hogs(number: int) -> Iterator[None]:
    """So many processes that take all the CPU they get."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()
