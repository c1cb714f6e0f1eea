"""L3: clients that ask for large streams and read nothing of them."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.broken import head
from tests.chaos.frozen import spread
from tests.chaos.house import CHAT, House, house, start
from tests.chaos.kept import kept_bytes
from tests.chaos.link import connected
from tests.chaos.paced import until
from tests.chaos.row import FULL, Findings, row
from tests.support.ports import free_port

READERS = 200
BYTES = 64_000_000
WRITE_IDLE_S = 60.0 if FULL else 5.0
WARM_UP = 2_000_000
WARMING = 20
LANES = (CHAT, "/ollama/chat/completions")
"""One that passes a worker's bytes on, and one that rewrites them."""
SLOW = 8
SIP = 16384
SLOW_BYTES_PER_S = 400_000
"""Of readers that are slow, and are to be served on. Kernels tell of room in large steps."""
SLOW_BYTES = int(SLOW_BYTES_PER_S * 2 * WRITE_IDLE_S)
"""They last longer than a reader that stalls, and are fewer than what any lane makes of the worker's."""


async def flood(at: House, size: int) -> list[str]:
    """A torrent for a worker; it is the last of `others`."""
    port = free_port()
    at.others.append(await start(at.folder, "torrent", "tests.chaos.torrent", str(port), str(size), port=port))
    await at.others[-1].ready("/health")
    return [at.others[-1].address]


def asking(at: House, name: str, number: int) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    return head(at, LANES[number % len(LANES)], f"{name}-{number}", json.dumps(body, separators=(",", ":")).encode())


async def stick(at: House, number: int) -> socket.socket:
    """Asks, and reads nothing."""
    host, _, port = at.gateways[0].address.rpartition(":")
    raw = socket.socket()
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
    await asyncio.get_running_loop().sock_sendall(raw, asking(at, "stuck", number))
    return raw


async def sip(at: House, number: int, size: int, rate: float) -> bool:
    """Whether a reader of `size` bytes, `rate` of them a second, gets them."""
    reader, writer = await connected(at.gateways[0].address, limit=SIP)
    writer.write(asking(at, "slow", number))
    got, began = 0, time.monotonic()
    while got < size and (block := await reader.read(SIP)):
        got += len(block)
        await asyncio.sleep(max(0.0, began + got / rate - time.monotonic()))
    writer.transport.abort()
    return got >= size


def ended(at: House, name: str) -> list[dict[str, Any]]:
    """What the torrent says of streams that are over."""
    return [line for line in at.others[-1].lines() if line.get("id", "").startswith(name)]


def orphans(address: str) -> int:
    """Bytes that the kernel still has to send for the sockets of `address` that no process holds any more (Linux)."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(one[4].partition(":")[0], 16) for one in rows if one[1].endswith(port) and one[9] == "0")


@row("L3", "readers of large streams that stall, beside some that are slow")
async def stalled(findings: Findings) -> None:
    """200 clients request streams of 64 MB and read nothing, half of them in a dialect whose streams are rewritten; 8
    others read 400 kB/s; `listen.write_idle_s` 5 s, `FULL=1`: 60 s.

    Passes if at most 4 MiB of a stream leave its worker, by the gateway's acknowledgements; memory ≤ 256 KiB a
    stream; each stream is ended 5 s ±10 % after its last byte, with nothing left in the kernel; the slow readers
    are still served.
    """
    config = {"listen": {"write_idle_s": WRITE_IDLE_S}}
    async with house({}, config, 1, (), front=partial(flood, size=BYTES)) as at:
        gateway = at.gateways[0]
        # What the first streams of a process need once is no stream's own.
        await asyncio.gather(*(sip(at, number, WARM_UP, math.inf) for number in range(WARMING)))
        await until(lambda: len(ended(at, "slow")) == WARMING, 5)
        before = gateway.resident()
        slow = [asyncio.ensure_future(sip(at, number, SLOW_BYTES, SLOW_BYTES_PER_S)) for number in range(SLOW)]
        stuck = [await stick(at, number) for number in range(READERS)]
        await asyncio.sleep(WRITE_IDLE_S / 2)
        # What other workers would need to go on has a bound of its own (row G5).
        held = (gateway.resident() - before - await kept_bytes(gateway)) / READERS
        early = len(ended(at, "stuck"))
        await until(lambda: len(ended(at, "stuck")) == READERS, WRITE_IDLE_S + 30)
        lines = ended(at, "stuck")
        left = orphans(gateway.address)
        cut = [got for got in await asyncio.gather(*slow) if not got]
        await until(lambda: len(at.records()) == READERS + SLOW + WARMING, 5)
        records = [record["outcome"] for id_, record in at.records().items() if id_.startswith("stuck")]
        for one in stuck:
            one.close()
    findings.none("streams that ended before they were looked at", early, READERS)
    most = max((line["taken"] for line in lines), default=0) / (1 << 20)
    findings.at_most("MiB pulled from the worker for a stream (4 at most)", most, 4, len(lines), ".2f")
    findings.check(
        "KiB of memory for a stream, beside the texts that are kept (256 at most)",
        f"{held / 1024:.0f}",
        READERS,
        held <= 256 << 10,
    )
    waits = [line["ended"] - line["last"] for line in lines]
    odd = [wait for wait in waits if abs(wait - WRITE_IDLE_S) > WRITE_IDLE_S * 0.1]
    findings.check(
        f"ended after s without a byte ({WRITE_IDLE_S:g} ±10 %)",
        spread(waits),
        len(waits),
        not odd and len(waits) == READERS,
    )
    wrong = [outcome for outcome in records if outcome != "cancelled"]
    findings.check("records that do not say cancelled", len(wrong), len(records), not wrong and len(records) == READERS)
    findings.none("bytes that the kernel keeps for those that were ended", left, READERS)
    findings.none(f"readers of {SLOW_BYTES_PER_S // 1000} kB/s that are ended", len(cut), SLOW)
