"""F1 to F4: clients that leave and workers that die, in every dialect."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import struct
import time
from typing import Any

from msgspec import Struct

from tests.chaos.house import CHAT, House, chat, house
from tests.chaos.link import Link, connected
from tests.chaos.row import FULL, Findings, percentile, row
from tests.support import clients

TIMES = 100
AT_ONCE = 10
AWS_EXCEPTION = b":message-type\x07\x00\texception"
"""The header of an event stream's frame that is an error."""
ATTACKED = 3000 if FULL else 1500


class Way(Struct, frozen=True):
    """How one route of a dialect is asked for a streamed and for a plain reply."""

    client: clients.Way

    @property
    def name(self) -> str:
        return re.sub("[^a-z0-9]+", "-", str(self.client).lower())

    @property
    def path(self) -> str:
        return self.client.path()

    @property
    def ends(self) -> bytes:
        """How every whole stream ends."""
        return self.client.example.ends

    @property
    def done(self) -> bytes:
        """The bytes that say that a stream is whole; such as no stream has where none do."""
        return b"\0" if self.client.example.alike else self.ends

    @property
    def plain(self) -> bool:
        return self.client.answers(stream=False)

    def body(self, *, stream: bool, **members: Any) -> dict[str, Any]:
        """With a place for a script; members by their canonical names."""
        return self.client.body("SCRIPT", stream=stream, model="m", **members)


WAYS = tuple(Way(way) for way in clients.WAYS if way.answers(stream=True))


def scripted(body: dict[str, Any], **script: Any) -> bytes:
    """`body` with a message by which the simulated worker does exactly this."""
    words = json.dumps("sim:" + json.dumps(script))[1:-1]
    return json.dumps(body).replace("SCRIPT", words).encode()


def head(at: House, path: str, id_: str, body: bytes) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: {at.gateways[0].address}\r\ncontent-type: application/json\r\n"
        f"x-request-id: {id_}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


async def opened(at: House, path: str, id_: str, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await connected(at.gateways[0].address)
    writer.write(head(at, path, id_, body))
    await writer.drain()
    return reader, writer


async def leave(at: House, way: Way, number: int, stream: bool, left: dict[str, float], since: int) -> None:
    """Asks, waits until there is something to leave, and goes. since: the last number in the worker's ledger before."""
    id_ = f"{way.name}-{stream}-{number}"
    body = way.body(stream=stream)
    when = "2" if stream else "before"
    reader, writer = await opened(at, way.path, id_, scripted(body, text="a b c d", fault=f"stall@{when}"))
    if stream:
        seen = b""
        while b"\r\n\r\n" not in seen or not seen.split(b"\r\n\r\n", 1)[1]:
            block = await reader.read(65536)
            assert block, seen
            seen += block
    else:
        await started(at, id_, since)
    if number % 2:  # half of them reset the connection instead of closing it
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    left[id_] = time.monotonic()
    writer.close()


async def started(at: House, id_: str, since: int) -> None:
    """Returns when a worker has the request. Its ledger is in another process: it must be asked."""
    pause = asyncio.Event()
    while id_ not in await at.admits(since):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(pause.wait(), 0.01)


async def leaving(findings: Findings, stream: bool) -> None:
    async with house({}, {}, 1, [("--itl-ms", "2")]) as at:
        last = 0  # the ledger is asked often: of what was before only once
        for way in WAYS:
            if not stream and not way.plain:
                continue
            left: dict[str, float] = {}
            for first in range(0, TIMES, AT_ONCE):
                await asyncio.gather(*(leave(at, way, first + i, stream, left, last) for i in range(AT_ONCE)))
            entries = await ended(at, left, last)
            last = max(entry["number"] for entry in entries.values())
            took = [entries[id_]["ended"] - when for id_, when in left.items() if entries[id_]["state"] == "aborted"]
            findings.check(
                f"{way.name}: the worker sees the end, p99 ms (200 at most, 1000 for the last)",
                f"{percentile(took, 0.99) * 1000:.1f}",
                len(took),
                len(took) == TIMES and percentile(took, 0.99) <= 0.2 and max(took) <= 1.0,
            )
        page = (await at.gateways[0].get("/metrics")).body.decode()
        running = [line for line in page.splitlines() if line.startswith("dragoman_requests_running{")]
        held = [line for line in running if not line.endswith(" 0.0")]
        findings.none("requests still under way", len(held), len(running))
        outcomes = [record["outcome"] for record in at.records().values()]
        odd = sum(outcome != "cancelled" for outcome in outcomes)
        findings.none("records that do not say cancelled", odd, len(outcomes))


async def ended(at: House, ids: dict[str, float], since: int) -> dict[str, Any]:
    """The worker's entries of `ids` after number `since`, once all of them have ended. Raises TimeoutError after ten
    seconds."""
    async with asyncio.timeout(10):
        while True:
            entries = await at.admits(since)
            waiting = [id_ for id_ in ids if entries.get(id_, {}).get("state", "running") == "running"]
            if not waiting:
                return entries
            await asyncio.sleep(0.05)


@row("F1", "clients leave mid-stream, in every dialect")
async def leaving_mid_stream(findings: Findings) -> None:
    """100 clients in each dialect close or reset their connection mid-stream.

    Passes if the worker sees it within 200 ms (p99), at most 1 s; nothing is running at the end; every log record
    says cancelled.
    """
    await leaving(findings, stream=True)


@row("F2", "clients leave before a plain reply, in every dialect")
async def leaving_before_a_reply(findings: Findings) -> None:
    """As F1, before a plain reply has begun.

    Passes if as F1.
    """
    await leaving(findings, stream=False)


@row("F3", "a worker is killed under load, before its replies begin")
async def killed_worker(findings: Findings) -> None:
    """One of five workers is killed (SIGKILL) under 30 clients; 1,500 requests, `FULL=1`: 3,000.

    Passes if another worker answers at least 99.9 % of the requests with 200.
    """
    flags = ("--itl-ms", "1")
    async with house({}, {"health": {"interval_s": 1}}, 1, [flags] * 5) as at:
        statuses: list[int] = []
        halfway = asyncio.Event()

        async def client(count: int) -> None:
            link = Link(at.gateways[0].address)
            for _ in range(count):
                statuses.append((await link.post(CHAT, chat(4), {})).status)
                if len(statuses) >= ATTACKED // 4:
                    halfway.set()
            link.close()

        async def killer() -> None:
            await halfway.wait()
            at.workers[0].process.send_signal(signal.SIGKILL)

        await asyncio.gather(killer(), *(client(ATTACKED // 30) for _ in range(30)))
        good = statuses.count(200)
        findings.check(
            "answered 200 by another worker, share (0.999 at least)",
            f"{good / len(statuses):.4f}",
            len(statuses),
            good >= 0.999 * len(statuses),
        )


@row("F4", "a worker's stream breaks after k tokens, in every dialect")
async def broken_streams(findings: Findings) -> None:
    """A stream breaks after 1, 2 or 3 tokens (reset, closed, ended early, an error frame), in each dialect.

    Passes if the client gets one error in the dialect's own form, nothing that looks complete, and no token twice;
    one attempt.
    """
    config = {"models": {"m": {"continue_streams": False}}}  # G2 and G3 have the others
    async with house({}, config, 1, [("--itl-ms", "25")]) as at:
        for way in WAYS:
            broken = [(fault, k) for fault in ("reset", "fin", "eof", "error-frame") for k in (1, 2, 3)]
            results = await asyncio.gather(*(broken_stream(at, way, fault, k) for fault, k in broken))
            wrong = [text for text in results if text]
            findings.none(f"{way.name}: replies that are not one error", wrong, len(results))
        attempts = [record["attempts"] for record in at.records().values()]
        findings.check("attempts of a request, at most", max(attempts), len(attempts), max(attempts) == 1)


async def broken_stream(at: House, way: Way, fault: str, k: int) -> str:
    """What is wrong with the reply to a stream that breaks after `k` tokens, or ""."""
    body = scripted(way.body(stream=True), text="aaaabbbbccccdddd", fault=f"{fault}@{k}")
    reader, writer = await opened(at, way.path, f"{way.name}-{fault}-{k}", body)
    try:
        async with asyncio.timeout(5):
            data = await reader.read(-1)
    except (TimeoutError, ConnectionError) as error:
        return f"{fault}@{k}: {type(error).__name__}"
    finally:
        writer.close()
    head, _, text = data.partition(b"\r\n\r\n")
    if way.done in text or b'"finish_reason":"stop"' in text:
        return f"{fault}@{k}: looks complete"
    errors = text.count(b'"error"') + text.count(b"event: error") + text.count(AWS_EXCEPTION)
    errors += head.lower().count(b"\r\nx-amzn-errortype:")  # whose body has the error as a text in a text
    return "" if errors >= 1 and text.count(b"aaaa") <= 1 else f"{fault}@{k}: {errors} errors in {text[-200:]!r}"
