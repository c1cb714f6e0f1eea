"""K3: a million end users, each with a budget and a limit, ask one gateway."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.chaos.house import CHAT, House, house, start
from tests.chaos.link import Link
from tests.chaos.row import FULL, Findings, row
from tests.support.ports import free_port
from tests.support.redis_server import Server

SOME, MANY = 120_000, 1_000_000 if FULL else 200_000
"""SOME are more than a gateway remembers of anything."""
CLIENTS = 32
AGAIN = 20
GROWTH = 16 << 20
PRICE = 0.001


class Caller(asyncio.Protocol):
    """One connection that sends a request as soon as the last one is answered. found: the statuses of all."""

    def __init__(self, requests: Iterator[bytes], found: Counter[bytes]) -> None:
        self._requests = requests
        self._found = found
        self._held = b""
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._ask()

    def _ask(self) -> None:
        data = next(self._requests, None)
        if data is None:
            self._transport.close()
        else:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._held += data
        head, found, body = self._held.partition(b"\r\n\r\n")
        if found and len(body) >= int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]):
            self._found[head[9:12]] += 1
            self._held = b""
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._held or exc is not None:
            self._found[b"cut"] += 1
        self.over.set_result(None)


def requests(at: House, numbers: range) -> Iterator[bytes]:
    """One of each end user."""
    for number in numbers:
        body = b'{"model":"m","max_tokens":5,"user":"user-%07d","messages":[{"role":"user","content":"hi"}]}' % number
        head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\napi-key: {at.keys['app']}\r\ncontent-type: application/json\r\n"
        yield head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


async def ask(at: House, numbers: range) -> Counter[bytes]:
    host, _, port = at.gateways[0].address.partition(":")
    loop, each, found = asyncio.get_running_loop(), requests(at, numbers), Counter[bytes]()
    made = [await loop.create_connection(lambda: Caller(each, found), host, int(port)) for _ in range(CLIENTS)]
    await asyncio.gather(*(caller.over for _, caller in made))
    return found


@row("K3", "a million end users, each with a budget and a limit, ask one gateway")
async def crowd(findings: Findings) -> None:
    """200,000 end users (`FULL=1`: a million), each with a budget and a limit in Redis, call one gateway once.

    Passes if each is answered; the gateway grows by at most 16 MiB after the first 120,000, which are more than it
    remembers of anything; the budgets of the first ones still refuse their second call; `/metrics` stays below
    200,000 bytes.
    """
    port = free_port()

    async def front(at: House) -> list[str]:
        at.others.append(await start(at.folder, "backend", "bench.backend", str(port), port=port))
        return [f"127.0.0.1:{port}"]

    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        config = {
            "log": {"requests": False},
            "redis": {"addresses": [server.address], "timeout_s": 5},
            "end_users": {},
            "spend": {"currency": "EUR", "daily": True},
            "models": {"m": {"price": {"request": PRICE}}},
            "budgets": [{"name": "person", "amount": PRICE, "scope": ["end_user"]}],
            "limits": [{"name": "calls", "kind": "requests", "limit": 5, "per_s": 3600, "scope": ["key", "end_user"]}],
        }
        async with house({"app": {}}, config, workers=(), front=front) as at:
            gateway, begun = at.gateways[0], time.monotonic()
            some = await ask(at, range(SOME))
            before, used = gateway.resident(), server.command("INFO", "memory")["used_memory"]
            rest = await ask(at, range(SOME, MANY))
            rate = MANY / (time.monotonic() - begun)
            growth, more = gateway.resident() - before, server.command("INFO", "memory")["used_memory"] - used
            wrong = {status: count for status, count in (some + rest).items() if status != b"200"}
            findings.check(f"first calls that are not answered ({rate:.0f} a second)", wrong or 0, MANY, not wrong)
            what = f"MiB that the gateway grows after the first {SOME:,}, which left it at {before >> 20}, at most 16"
            findings.at_most(what, growth / (1 << 20), GROWTH >> 20, MANY)
            findings.check("bytes of Redis for one end user", more // (MANY - SOME), MANY - SOME, more > 0)
            again = await ask(at, range(AGAIN))
            findings.check("second calls of the first ones, refused", dict(again), AGAIN, again == {b"429": AGAIN})
            page = len((await Link(gateway.address).get("/metrics")).body)
            findings.at_most("bytes of /metrics, at most 200,000", page, 200_000, 1, ".0f")
