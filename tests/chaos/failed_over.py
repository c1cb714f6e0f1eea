"""F13: the primary of a Redis with a replica falls silent, the replica takes its place, and the old one comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.chaos.house import CHAT, House, chat, house
from tests.chaos.limits import settled
from tests.chaos.link import repeated, request
from tests.chaos.row import FULL, Findings, row
from tests.support.ports import free_port
from tests.support.redis_server import Server

GATEWAYS = 4
CLIENTS = 40
FAILOVERS = 8 if FULL else 2
HEALTHY_S = 16.0 if FULL else 6.0
SILENT_S = 16.0 if FULL else 8.0
DOWN_MS = 1000
"""Sentinel takes a server that is silent for so long for lost."""
LIMIT, PER_S = 60, 4.0
SLOTS = 30
STRICT_S = 5.0


@row("F13", "the Redis primary falls silent, its replica is promoted, it comes back; a flood meanwhile")
async def failed_over(findings: Findings) -> None:
    """40 clients flood 4 gateways that find Redis by a Sentinel. Its primary is stopped (SIGSTOP), its replica is
    promoted, and the old one continues, 2 times, `FULL=1`: 8 times; 60 requests in 4 s.

    Passes if every answer is 200 or 429. Clients get the limit of each window, and at most one window's more for
    each failover. Limits are strict on every gateway 5 s after the old primary is back; no key in Redis lacks a
    time to live, no counter is below zero, no slot is held.
    """
    with contextlib.ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        servers = [exits.enter_context(pair(folder, "one"))]
        servers.append(exits.enter_context(pair(folder, "two", servers[0].port)))
        sentinel = exits.enter_context(watcher(folder, servers[0].port))
        config = {
            "redis": {"addresses": [sentinel.address], "mode": "sentinel", "sentinel_name": "limits", "timeout_s": 0.1},
            "limits": [
                {"name": "rpm", "kind": "requests", "limit": LIMIT, "per_s": PER_S, "on_redis_failure": "local"},
                {"name": "slots", "kind": "concurrency", "limit": SLOTS},
            ],
        }
        await asyncio.to_thread(known, sentinel)
        async with house({"flood": {}}, config, GATEWAYS, [("--itl-ms", "2")]) as at:
            over = asyncio.Event()
            statuses: list[int] = []
            tasks = [asyncio.create_task(flood(at, number, over, statuses)) for number in range(CLIENTS)]
            began, promoted, moments = time.monotonic(), 0, []
            for _ in range(FAILOVERS):
                await asyncio.sleep(HEALTHY_S)
                before = await asyncio.to_thread(primary_of, sentinel)
                old = next(one for one in servers if one.port == before)
                moments.append(time.monotonic())
                old.freeze()
                await asyncio.sleep(SILENT_S)
                promoted += await asyncio.to_thread(primary_of, sentinel) != before
                old.thaw()  # for a moment it takes itself for the primary
            await asyncio.sleep(HEALTHY_S)
            over.set()
            await asyncio.gather(*tasks)
            ended = time.monotonic()
            await settled(at)
            await judge(findings, at, statuses, began, ended, promoted)
            returns = strict(at, moments)
            late = max(returns, default=1e9)
            most = SILENT_S + STRICT_S
            findings.at_most(
                f"s from the silence until every gateway's limits are strict ({most:g} at most)",
                late,
                most,
                len(returns),
            )
            now = next(one for one in servers if one.port == primary_of(sentinel))
            keys(findings, now)


def pair(folder: Path, name: str, of: int | None = None) -> Server:
    place = folder / name
    place.mkdir()
    words = ["--repl-diskless-sync-delay", "0", "--repl-timeout", "5"]
    if of is not None:
        words += ["--replicaof", f"127.0.0.1 {of}"]
    return Server(place, *words)


def watcher(folder: Path, primary: int) -> Server:
    """A Sentinel: the same program, another configuration, which it writes to."""
    place, port = folder / "sentinel", free_port()
    place.mkdir()
    path = place / "sentinel.conf"
    path.write_text(
        f"sentinel monitor limits 127.0.0.1 {primary} 1\nsentinel down-after-milliseconds limits {DOWN_MS}\n"
        "sentinel failover-timeout limits 3000\n"
    )
    return Server(place, "--sentinel", port=port, file=path)


def known(sentinel: Server) -> None:
    """Returns once it knows the replica."""
    deadline = time.monotonic() + 20
    while not any(found[b"flags"] == b"slave" for found in replicas(sentinel)):
        assert time.monotonic() < deadline, "the Sentinel found no replica"
        time.sleep(0.1)


def replicas(sentinel: Server) -> list[dict[bytes, bytes]]:
    found = sentinel.command("SENTINEL", "REPLICAS", "limits")
    return [one if isinstance(one, dict) else dict(zip(one[::2], one[1::2], strict=True)) for one in found]


def primary_of(sentinel: Server) -> int:
    return int(sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "limits")[1])


async def flood(at: House, number: int, over: asyncio.Event, statuses: list[int]) -> None:
    asked = request("POST", CHAT, {"api-key": at.keys["flood"]}, json.dumps(chat(3)).encode())
    async for answer in repeated(at.gateways[number % GATEWAYS].address, asked, lambda: not over.is_set(), 0.15):
        statuses.append(answer.status)


async def judge(findings: Findings, at: House, statuses: list[int], began: float, ended: float, promoted: int) -> None:
    n = len(statuses)
    findings.check("promotions of a replica", promoted, FAILOVERS, promoted == FAILOVERS)
    odd = [status for status in statuses if status not in (200, 429)]
    findings.none("answers that are neither 200 nor 429", len(odd), n)
    entries = (await at.admits()).values()
    admitted = sum(began <= entry["started"] <= ended for entry in entries)
    windows = -(-(ended - began) // PER_S)
    # A failover may forget the window that was under way; without Redis each gateway counts its share, from nothing.
    most = (windows + 1 + FAILOVERS) * LIMIT
    what = f"admitted in {windows:g} windows of {LIMIT}, {FAILOVERS} more for the failovers at most"
    findings.check(what, admitted, n, 0.7 * windows * LIMIT <= admitted <= most)


def strict(at: House, moments: list[float]) -> list[float]:
    """For each gateway and failover: seconds from the silence until the last word of its log before the next is that
    limits are strict."""
    shift = time.time() - time.monotonic()
    found = []
    for gateway in at.gateways:
        lines = [line for line in gateway.lines() if line.get("event", "").startswith("limits")]
        for began, next_ in zip(moments, [*moments[1:], 1e18], strict=True):
            mine = [line for line in lines if began <= line["time"] - shift < next_]
            if mine:
                last = mine[-1]
                found.append(last["time"] - shift - began if last["event"] == "limits strict" else 1e9)
    return found


def keys(findings: Findings, server: Server) -> None:
    """What the primary holds in the end: nothing that stays for ever, nothing below zero."""
    names: list[bytes] = server.command("KEYS", "*")
    endless = [name for name in names if server.command("PTTL", name) < 0]
    findings.none("keys without a time to live", endless, len(names))
    below: list[Any] = []
    for name in names:
        kind = server.command("TYPE", name)
        kind = kind.decode() if isinstance(kind, bytes) else kind
        if kind == "hash":
            found = server.command("HVALS", name)
            below += [(name, value) for value in found if value.lstrip(b"-").isdigit() and int(value) < 0]
    findings.none("counters below zero", below, len(names))
