"""L12: ten thousand open streams on one process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import time
from collections import Counter
from typing import Any

from tests.chaos.house import CHAT, House, Process, chat, house, start
from tests.chaos.link import lag, request
from tests.chaos.row import FULL, Findings, percentile, row
from tests.support.ports import free_port

STREAMS = 10_000
EVERY_S = 10.0
"""Between two tokens of a stream: what is measured is what a stream costs, not what a token does."""
TOKENS = 8 if FULL else 3
OPENING_S = 20.0
A_STREAM_KIB = 32.0
LAG_MS = 50.0
SPARE = 200
DESCRIPTORS = 2 * STREAMS + SPARE


class Reader(asyncio.Protocol):
    """A client of one stream; it keeps the last bytes only."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.tail = b""
        self.began = asyncio.get_running_loop().create_future()
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self.data)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if not self.tail:
            self.began.set_result(data[9:12])
        self.tail = (self.tail + data)[-80:]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.began.done():
            self.began.set_result(b"")
        self.ended.set_result("whole" if b"[DONE]" in self.tail else f"cut: {self.tail[-40:]!r}")


@row("L12", "ten thousand open streams on one process")
async def many(findings: Findings) -> None:
    """10,000 streams are open on one gateway, or as many as the hard limit on open files has two each for, each with a
    token every 10 s at a moment of its own; 3 tokens each, `FULL=1`: 8.

    Passes if all begin with 200 and end whole; at most 32 KiB of the gateway's memory a stream; `/livez`, which
    waits for the event loop as a token does, takes at most 50 ms (p99) meanwhile.
    """
    hard = raised()
    streams = min(STREAMS, (hard - SPARE) // 2)
    what = f"streams at once, {STREAMS} or as many as the hard limit on open files ({hard}) has two each for"
    findings.check(what, streams, 1, streams >= 0.9 * STREAMS)
    port = free_port()

    async def front(at: House) -> list[str]:
        words = ["tests.chaos.patient", str(port), str(EVERY_S), str(TOKENS)]
        at.others.append(await start(at.folder, "patient", *words, port=port))
        await at.others[-1].ready("/health")
        return [f"127.0.0.1:{port}"]

    async with house({}, {"listen": {"max_connections": streams + 20, "caller_share": 1}}, 1, (), front=front) as at:
        gateway = at.gateways[0]
        for _ in range(20):
            await asyncio.gather(*(opened(gateway, wait=True) for _ in range(10)))
        before, idle = gateway.resident(), gateway.descriptors()
        readers = await all_opened(gateway, streams)
        lags = asyncio.create_task(lag(gateway.address, readers[0].ended))
        statuses = Counter([await one.began for one in readers])
        grown = (gateway.resident() - before) / len(readers) / 1024
        held = gateway.descriptors() - idle
        ends = Counter([await one.ended for one in readers])
        waits = await lags
        odd = [line for line in gateway.lines() if line.get("event") in ("bug", "library", "retry", "worker down")]
        warned = [line for line in gateway.lines() if str(line.get("event")).startswith("fewer connections")]
    n = len(readers)
    findings.check("streams that do not begin with 200", n - statuses[b"200"], n, statuses[b"200"] == n)
    wrong = ends - Counter(whole=ends["whole"])
    findings.none("streams that are not whole at their end", wrong, n)
    findings.check(
        "descriptors in use for them (two each, less a few connections that were there)", held, n, held >= 1.98 * n
    )
    findings.at_most(f"KiB of memory a stream ({A_STREAM_KIB:g} at most)", grown, A_STREAM_KIB, n)
    slow = percentile(waits, 0.99)
    what = f"ms that the event loop makes a request wait, p99 ({LAG_MS:g} at most; median {percentile(waits, 0.5):.1f})"
    findings.at_most(what, slow, LAG_MS, len(waits))
    findings.check("lines of the log that tell of trouble", odd[:1] or 0, n, not odd and not warned)


def raised() -> int:
    """The limit on open files that this process and its children have from now on: as many as are needed, if that is
    allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else max(DESCRIPTORS, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, most))
        return DESCRIPTORS
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


async def opened(gateway: Process, wait: bool = False) -> Reader:
    host, _, port = gateway.address.rpartition(":")
    body: dict[str, Any] = {**chat(1 if wait else TOKENS, stream=not wait)}
    data = request("POST", CHAT, {"connection": "close"}, json.dumps(body).encode())
    _, reader = await asyncio.get_running_loop().create_connection(lambda: Reader(data), host, int(port))
    return reader


async def all_opened(gateway: Process, streams: int) -> list[Reader]:
    """One after the other, evenly, so that their tokens come evenly too."""
    began, found = time.monotonic(), []
    for number in range(streams):
        pause = began + OPENING_S * number / streams - time.monotonic()
        if pause > 0.01:
            await asyncio.sleep(pause)
        found.append(await opened(gateway))
    return found
