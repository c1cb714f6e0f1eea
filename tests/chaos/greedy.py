"""L7 and L8: one connection that takes what it can, a client's or a worker's, beside 20 healthy clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct

from tests.chaos.house import CHAT, House, Process, house, program, start
from tests.chaos.link import request
from tests.chaos.odd import chunked
from tests.chaos.row import FULL, Findings, percentile, row
from tests.support.ports import free_port

CLIENTS = 20
PAUSE_S = 0.05
ALONE_S, BESIDE_S = (5.0, 10.0) if FULL else (2.0, 3.0)
MEMORY = 8 << 20
BACK = 2 << 20
"""What the allocator may keep of it for later."""
BACK_S = 5.0
ADDED_MS = 10.0
HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: gateway\r\n"
CHUNKED = "transfer-encoding: chunked\r\n\r\n"
GET = "GET {} HTTP/1.1\r\nhost: gateway\r\n\r\n"


class Flood(Struct):
    """What one connection sends: `head`, then `block` again and again. `{key}` in them is a valid key's header."""

    name: str
    head: str = ""
    block: str = ""
    read: bool = False


def asking(mode: str, stream: bool = False) -> str:
    """A chat with the lavish worker, as text; `{key}` is where its key's header belongs."""
    body = {"model": "big", "messages": [{"role": "user", "content": mode}], "stream": stream}
    data = request("POST", CHAT, {}, json.dumps(body).encode()).decode()
    return data.replace("\r\n", "\r\n{key}", 1)


OF_CLIENTS = [
    Flood("requests for an unknown path, unread", block=GET.format("/none")),
    Flood("chats without a key, unread", block=HEAD + "content-length: 2\r\n\r\n{}"),
    Flood("/livez, unread", block=GET.format("/livez")),
    Flood("/livez, read", block=GET.format("/livez"), read=True),
    Flood("chats for 1 MB each, unread", block=asking("megabyte")),
    Flood("a body in chunks of one byte, with a key", head=HEAD + "{key}" + CHUNKED, block="1\r\nx\r\n"),
    Flood("a body in chunks of one byte, without a key", head=HEAD + CHUNKED, block="1\r\nx\r\n"),
    Flood("a body of empty lines, in chunks", HEAD + "{key}" + CHUNKED, chunked(b"\r\n" * 500, 1000).decode()),
    Flood("a large body that is refused", head=HEAD + "content-length: 60000000\r\n\r\n", block="x" * 1000),
    Flood("header fields without end", head=HEAD, block="a:\r\n"),
    Flood("empty lines without end", block="\r\n"),
]
OF_WORKERS = [
    Flood("frames", asking("frames", True), read=True),
    Flood("frames in chunks of one byte", asking("bytes", True), read=True),
    Flood("tiny frames", asking("tiny", True), read=True),
    Flood("comments", asking("comments", True), read=True),
    Flood("frames, unread", asking("frames", True)),
]


@contextlib.asynccontextmanager
async def healthy(at: House) -> AsyncIterator[Process]:
    settings = {"address": at.gateways[0].address, "key": at.keys["one"], "clients": CLIENTS, "pause_s": PAUSE_S}
    process = await start(at.folder, "steady", "tests.chaos.steady", json.dumps(settings), port=0)
    try:
        yield process
    finally:
        await process.stop()


async def rude(at: House, flood: Flood, seconds: float) -> dict[str, Any]:
    """Floods the first gateway for so long; what the flood says of itself at its end."""
    key = f"api-key: {at.keys['one']}\r\n"
    settings = {
        "address": at.gateways[0].address,
        "read": flood.read,
        "head": flood.head.replace("{key}", key),
        "block": flood.block.replace("{key}", key),
        "seconds": seconds,
    }
    # It would be on another machine: here it stands back.
    words = ["nice", "-n", "10", sys.executable, "-m", "tests.chaos.flood", json.dumps(settings)]
    process = await program(at.folder, f"flood{time.monotonic_ns()}", *words, port=0)
    await process.process.wait()
    return process.lines()[-1]


class Beside(Struct):
    """What one flood did: bytes of memory at most during it and after it, beyond those before; when it ran."""

    flood: Flood
    most: int
    left: int
    began: float
    ended: float
    sent: int


async def beside(at: House, flood: Flood) -> Beside:
    gateway = at.gateways[0]
    await rude(at, flood, 0.3)  # what the first of a kind needs once is no connection's own
    await asyncio.sleep(ALONE_S)
    before = most = gateway.resident()
    began = time.monotonic()
    running = asyncio.create_task(rude(at, flood, BESIDE_S))
    while not running.done():
        most = max(most, gateway.resident())
        await asyncio.sleep(0.05)
    ended = time.monotonic()
    over = ended + BACK_S
    while gateway.resident() - before > BACK and time.monotonic() < over:  # noqa: ASYNC110 (another process)
        await asyncio.sleep(0.1)
    told = await running
    return Beside(flood, most - before, gateway.resident() - before, began, ended, told["sent"] + told["read"])


async def judged(findings: Findings, floods: list[Flood]) -> None:
    port = free_port()
    big = {"backend": "vllm", "upstream_model": "sim", "workers": [f"http://127.0.0.1:{port}"]}
    # A body that is allowed is no connection's own.
    listen = {"max_body_bytes": 2_000_000}
    config = {"models": {"big": big}, "listen": listen, "log": {"requests": False}}

    async def lavish(at: House) -> list[str]:
        words = ["nice", "-n", "10", sys.executable, "-m", "tests.chaos.lavish", str(port)]
        at.others.append(await program(at.folder, "lavish", *words, port=port))
        await at.others[-1].ready("/health")
        return [worker.address for worker in at.workers]

    async with house({"one": {}}, config, 1, [("--itl-ms", "0")], front=lavish) as at, healthy(at) as clients:
        await asyncio.sleep(ALONE_S)
        found = [await beside(at, flood) for flood in floods]
        await asyncio.sleep(ALONE_S)
        await clients.stop()
        lines = clients.lines()
    failed = [line for line in lines if line["status"] != 200]
    findings.none("replies of healthy clients other than 200", len(failed), len(lines))
    quiet = [line["ms"] for line in lines if not any(one.began - 0.5 <= line["at"] <= one.ended for one in found)]
    alone = percentile(quiet, 0.99)
    for one in found:
        among = [line["ms"] for line in lines if one.began <= line["at"] < one.ended]
        added = percentile(among, 0.99) - alone
        findings.at_most(
            f"{one.flood.name}: ms that it adds to the others' p99 (10 at most; {alone:.1f} alone; "
            f"{one.sent / 1e6:.1f} MB taken)",
            added,
            ADDED_MS,
            len(among),
            "+.1f",
        )
        findings.check(
            f"{one.flood.name}: MB of memory at its worst (8.4 at most); left of it after {BACK_S:g} s (2.1 at most)",
            f"{one.most / 1e6:.1f}; {one.left / 1e6:.1f}",
            1,
            one.most <= MEMORY and one.left <= BACK,
        )


@row("L7", "one client's connection that sends without end beside 20 healthy clients")
async def client(findings: Findings) -> None:
    """One connection sends without end, for 3 s each, `FULL=1`: 10 s: pipelined requests whose replies it does not
    read (unknown path, no key, `/livez`, chats for 1 MB each) or reads; bodies in chunks of one byte, and of empty
    lines; a large body that was refused; header fields; empty lines. 20 other clients send short requests;
    `listen.max_body_bytes` 2 MB.

    Passes if memory grows by at most 8 MiB and is within 2 MiB of its start 5 s later; p99 of the others grows by
    at most 10 ms; all of theirs are answered 200.
    """
    await judged(findings, OF_CLIENTS)


@row("L8", "one worker that sends without end beside 20 healthy clients")
async def worker(findings: Findings) -> None:
    """As L7, with the reply of one worker instead: ordinary frames as fast as they are taken, the same in chunks of
    one byte, tiny frames, only comments, and frames that its client does not read.

    Passes if as L7.
    """
    await judged(findings, OF_WORKERS)
