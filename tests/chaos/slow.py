"""S3: a thousand connections that send their heads or bodies, or read their replies, a byte at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time

from tests.chaos.greedy import healthy
from tests.chaos.house import CHAT, House, chat, house
from tests.chaos.link import request
from tests.chaos.row import FULL, Findings, percentile, row

CONNECTIONS = 1000
ALONE_S = 5.0 if FULL else 3.0
BESIDE_S = 40.0 if FULL else 17.0
EVERY_S = 1.0
"""A byte so often."""
OPENING_S = 5.0
"""Within which the connections come, one after the other."""
PATIENCE_S = 10.0
"""What the gateway allows for a head, and for the pace of a body to show."""
LATE_S = 1.0
ADDED_MS = 10.0
A_CONNECTION = 64 * 1024


async def crawl(at: House, data: bytes, begin: int, read: bool, until: float) -> float | None:
    """Sends `begin` bytes of `data`, then a byte each second; or with `read` all, and reads a byte each second. Returns
    after how many seconds the gateway ended the connection; None if it had not."""
    host, _, port = at.gateways[0].address.rpartition(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    began = time.monotonic()
    try:
        await loop.sock_connect(raw, (host, int(port)))
        await loop.sock_sendall(raw, data if read else data[:begin])
        for place in range(begin, len(data)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(EVERY_S, max(0.0, until - time.monotonic()))):
                    if read:
                        await asyncio.Event().wait()
                    # Whatever it says, it says before the end.
                    while await loop.sock_recv(raw, 4096):
                        pass
                    return time.monotonic() - began
            if time.monotonic() >= until:
                return None
            if read:
                if not await loop.sock_recv(raw, 1):
                    return time.monotonic() - began
            else:
                await loop.sock_sendall(raw, data[place : place + 1])
    except ConnectionError:
        return time.monotonic() - began
    finally:
        raw.close()
    return None


async def begun(at: House, data: bytes, begin: int, read: bool, until: float, delay: float) -> float | None:
    await asyncio.sleep(delay)
    return await crawl(at, data, begin, read, until)


@row("S3", "a thousand connections that send, or read, a byte at a time beside 20 healthy clients")
async def crawling(findings: Findings) -> None:
    """1,000 connections that send their heads, or their bodies, or read their replies, a byte a second, beside 20
    healthy clients; `listen.header_timeout_s` and `body_timeout_s` 10 s; 17 s each, `FULL=1`: 40 s.

    Passes if healthy clients see no failure; their p99 is at most twice that alone, or 10 ms more; heads and bodies
    are ended after 10 s (1 s more for this machine); at most 64 KiB of memory a connection.
    """
    body = json.dumps(chat(1, text="x" * 4000)).encode()
    head = request("POST", CHAT, {f"x-{number}": "x" * 20 for number in range(50)}, body)
    key = {"header_timeout_s": PATIENCE_S, "body_timeout_s": PATIENCE_S, "max_connections": 2000}
    async with house({"one": {}}, {"listen": key}, 1, [("--slots", "2000")]) as at, healthy(at) as clients:
        authorised = {"api-key": at.keys["one"]}
        stream = request("POST", CHAT, authorised, json.dumps(chat(20, stream=True)).encode())
        whole = request("POST", CHAT, authorised, body)
        kinds = {
            "heads": (head, 20, False),
            "bodies": (whole, len(whole) - len(body) + 1, False),
            "replies": (stream, 0, True),
        }
        phases = []
        for name, (data, begin, read) in kinds.items():
            await asyncio.sleep(ALONE_S)
            before, began = at.gateways[0].resident(), time.monotonic()
            until = began + BESIDE_S
            crawls = [begun(at, data, begin, read, until, OPENING_S * n / CONNECTIONS) for n in range(CONNECTIONS)]
            running = asyncio.gather(*crawls)
            await asyncio.sleep(BESIDE_S / 2)
            grown = (at.gateways[0].resident() - before) / CONNECTIONS
            ends = await running
            phases.append((name, read, began, time.monotonic(), ends, grown))
        await asyncio.sleep(ALONE_S)
        await clients.stop()
        lines = clients.lines()
    failed = [line for line in lines if line["status"] != 200]
    findings.none("replies of healthy clients other than 200", len(failed), len(lines))
    busy = [(began - 0.5, ended + 0.5) for _, _, began, ended, _, _ in phases]
    quiet = [line["ms"] for line in lines if not any(began <= line["at"] <= ended for began, ended in busy)]
    alone = percentile(quiet, 0.99)
    most = max(2 * alone, alone + ADDED_MS)
    for name, read, began, ended, ends, grown in phases:
        among = [line["ms"] for line in lines if began <= line["at"] < ended]
        p99 = percentile(among, 0.99)
        what = f"{name}: p99 of the others, ms (twice or {ADDED_MS:g} more than {alone:.1f} alone at most)"
        findings.at_most(what, p99, most, len(among))
        what = f"{name}: bytes of memory a connection ({A_CONNECTION} at most)"
        findings.at_most(what, grown, A_CONNECTION, CONNECTIONS, ".0f")
        if not read:
            late = max((one for one in ends if one is not None), default=0.0)
            kept = sum(one is None for one in ends)
            what = f"{name}: ended after s at most ({PATIENCE_S:g} and {LATE_S:g}); kept {kept}"
            findings.check(what, f"{late:.1f}", len(ends), not kept and late <= PATIENCE_S + LATE_S)
