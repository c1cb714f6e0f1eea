"""L2 and L6: request bodies of 20 MB, many at once in little memory, and one after another beside small streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from tests.chaos.house import CHAT, House, Process, house, program, start
from tests.chaos.link import connected
from tests.chaos.row import FULL, SEED, Findings, percentile, row
from tests.support.ports import free_port

LENGTH = 20_000_000
SENDERS = 64
MEMORY = 512 << 20
MOST = 0.8
SLICE, SLICE_S = 1 << 18, 0.002
"""As a network of 1 Gbit/s brings it."""
LEAD = 1 << 20
"""A client sends so much, and goes on when it has heard nothing for LEAD_S: as far away as others are."""
LEAD_S = 0.1
SECONDS = 60.0 if FULL else 15.0

STREAMS = 50
STEP_S = 0.02
LONGEST_S, LONG_S = 0.1, 0.05
ALONE_S, BESIDE_S = (10.0, 60.0) if FULL else (5.0, 20.0)


def sized(make: str, filler: str) -> bytes:
    """A chat of LENGTH bytes: `make` with so much of `filler` in it."""
    return make.replace("FILLER", filler * ((LENGTH - len(make.encode())) // len(filler.encode()) + 1)).encode()


def said(content: str) -> str:
    return f'{{"model":"big","max_tokens":4,"messages":[{{"role":"user","content":{content}}}]}}'


@contextlib.contextmanager
def group(limit: int) -> Iterator[Path | None]:
    """The folder of a control group that may have so many bytes (Linux, version 1 or 2), inside of our own; None where
    this machine lets us make none."""
    made, name = None, "memory.max"
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            made, name = Path("/sys/fs/cgroup/memory", path.lstrip("/")), "memory.limit_in_bytes"
            break
        if not controllers:
            made = Path("/sys/fs/cgroup", path.lstrip("/"))
    made = made / f"dragoman-chaos-{os.getpid()}" if made is not None else None
    try:
        if made is not None:
            made.mkdir()
            (made / name).write_text(str(limit))
    except OSError:
        if made is not None and made.is_dir():
            made.rmdir()
        made = None
    try:
        yield made
    finally:
        if made is not None:
            made.rmdir()


class Sent(Struct):
    """status is 0 where the connection broke. sent: bytes of the body when the answer came."""

    status: int = 0
    head: bytes = b""
    sent: int = 0


async def send(at: House, body: bytes, path: str = CHAT) -> Sent:
    """Sends a body until it is whole or answered."""
    reader, writer = await connected(at.gateways[0].address)
    one = Sent()
    words = f"POST {path} HTTP/1.1\r\nhost: gateway\r\napi-key: {at.keys['bulk']}\r\ncontent-type: application/json\r\n"
    writer.write(f"{words}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode())
    view = memoryview(body)
    answer = asyncio.ensure_future(reader.read(65536))
    try:
        while one.sent < len(body) and not answer.done():
            writer.write(view[one.sent : one.sent + SLICE])
            one.sent += min(SLICE, len(body) - one.sent)
            await writer.drain()
            await asyncio.wait([answer], timeout=LEAD_S if one.sent == LEAD else SLICE_S)
        one.head = await answer
        one.status = int(one.head[9:12] or b"0")
    except OSError:
        answer.cancel()
    writer.transport.abort()
    return one


@contextlib.asynccontextmanager
async def small(at: House, streams: int, tokens: int, pause_s: float) -> AsyncIterator[Process]:
    """Clients of small streams, with the key "other"."""
    settings = {
        "address": at.gateways[0].address,
        "key": at.keys["other"],
        "streams": streams,
        "tokens": tokens,
        "pause_s": pause_s,
    }
    words = json.dumps(settings)
    process = await start(at.folder, "small", "tests.chaos.small", words, port=0)
    try:
        yield process
    finally:
        await process.stop()


async def sink(at: House, port: int) -> list[str]:
    """Starts the worker of model "big", which takes what it is sent and reads nothing of it."""
    # It and its clients would be on other machines: here they stand back.
    words = ["nice", "-n", "10", sys.executable, "-m", "tests.chaos.torrent", str(port), "0"]
    at.others.append(await program(at.folder, "sink", *words, port=port))
    await at.others[-1].ready("/health")
    return [worker.address for worker in at.workers]


def config(port: int, **listen: Any) -> dict[str, Any]:
    big = {"backend": "vllm", "upstream_model": "sim", "workers": [f"http://127.0.0.1:{port}"]}
    return {"models": {"big": big}, "listen": listen}


@row("L2", "64 parallel bodies of 20 MB in little memory")
async def bodies(findings: Findings) -> None:
    """64 clients send bodies of 20 MB, half of them of the kind that takes most memory, and send again 0.5 to 1.5 s
    after a refusal, for 15 s, `FULL=1`: 60 s. The gateway runs in a control group of 512 MiB, from which it derives
    `listen.max_bodies_bytes`; without control groups that is set to a tenth of 512 MiB. Another tenant sends small
    streams.

    Passes if the gateway keeps running, with memory ≤ 80 % at its peak; at least one body is served every 2 s; the
    others get 413, or 503 with `Retry-After`, before all of it was sent. The other tenant sees no failure, p99 to
    the first token ≤ 250 ms.
    """
    # The second of these is the worst for memory: one character decides how wide a text's are.
    kinds = [sized(said('"FILLER"'), "some words "), sized(said('"FILLER \U0001f600"'), "some words ")]
    port, replies, over = free_port(), list[Sent](), time.monotonic() + SECONDS

    async def sender(number: int) -> None:
        draw = random.Random(SEED + number)
        while time.monotonic() < over:
            one = await send(at, kinds[number % len(kinds)])
            replies.append(one)
            if one.status != 200:
                await asyncio.sleep(draw.uniform(0.5, 1.5))

    with group(MEMORY) as folder:
        # Without a group it cannot know what it may have.
        listen = {} if folder else {"max_bodies_bytes": MEMORY // 10}
        under = ("tests.chaos.bounded", str(folder)) if folder else ()
        keys: dict[str, dict[str, Any]] = {"bulk": {}, "other": {}}
        async with (
            house(
                keys, config(port, **listen), 1, [("--itl-ms", "5")], front=partial(sink, port=port), under=under
            ) as at,
            small(at, 10, 4, 0.1) as others,
        ):
            over = time.monotonic() + SECONDS
            await asyncio.gather(*(sender(number) for number in range(SENDERS)))
            peak = at.gateways[0].resident(at_worst=True)
            alive = at.gateways[0].process.returncode is None
            await others.stop()
            lines = others.lines()
    findings.check(
        f"still running, {'in a control group of' if folder else 'without a control group; it would be of'} 512 MiB",
        "yes" if alive else "no",
        len(replies),
        alive,
    )
    findings.check("MiB of memory at worst (410, 80 %)", f"{peak / (1 << 20):.0f}", len(replies), peak <= MOST * MEMORY)
    ends = Counter(one.status for one in replies)
    findings.check("served", ends[200], len(replies), ends[200] >= SECONDS / 2)
    odd = [one for one in replies if one.status not in (200, 413, 503)]
    findings.none("neither served nor 413 or 503", len(odd), len(replies))
    refused = [one for one in replies if one.status == 503]
    read = [one for one in refused if one.sent >= LENGTH or b"\r\nretry-after: " not in one.head.lower()]
    most = max((one.sent for one in refused), default=0) / 1e6
    findings.none(
        f"refused without Retry-After or after all was sent; most was sent by one, {most:.1f} MB", read, len(refused)
    )
    firsts = [line["blocks"][0] - line["at"] for line in lines if line["status"] == 200 and line["blocks"]]
    failed = [line for line in lines if line["status"] != 200]
    findings.none("another tenant's requests that fail", len(failed), len(lines))
    p99 = percentile(firsts, 0.99) * 1000
    findings.at_most("another tenant's p99 to the first token, ms (250)", p99, 250, len(firsts))


class Pauses(Struct):
    """How much later than its worker sent it each block of small streams came, in seconds, in one stretch of time."""

    late: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        p999, most = (percentile(self.late, share) * 1000 for share in (0.999, 1.0))
        return f"{p999:.1f} and {most:.1f}"


def pauses(lines: Sequence[dict[str, Any]], began: float, ended: float) -> Pauses:
    found = Pauses()
    for line in lines:
        blocks = line["blocks"][:-1]  # the last block holds a finish, and its end comes with it
        found.late += [max(0.0, then - first - STEP_S) for first, then in pairwise(blocks) if began <= first < ended]
    return found


@row("L6", "bodies of 20 MB and of 1.5 million tokens beside 50 small streams")
async def stalls(findings: Findings) -> None:
    """Large bodies one after another beside 50 small streams with a token every 20 ms: 20 MB of text, 20 MB of an
    image, 1.5 million tokens as text (7.5 MB), and as token ids, which exceed the limit and get a 400; 20 s,
    `FULL=1`: 60 s. The large bodies have a worker of their own, so that only the gateway's pauses count.

    Passes if blocks of the small streams are late by at most 50 ms (p99.9) and 100 ms (all); the lateness without
    large bodies is printed beside it.
    """
    draw = random.Random(SEED)
    ids = ",".join(str(draw.randrange(100_000)) for _ in range(1_500_000))
    image = (
        '[{"type":"text","text":"What is it?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,FILLER"}}]'
    )
    kinds = {
        "20 MB of text": (CHAT, sized(said('"FILLER"'), "some words ")),
        "20 MB of an image": (CHAT, sized(said(image), "iVBORw0K")),
        "1.5 million tokens of text": (CHAT, said('"' + "word\\n" * 1_500_000 + '"').encode()),
        "1.5 million token ids": ("/v1/completions", f'{{"model":"big","prompt":[{ids}],"max_tokens":4}}'.encode()),
    }
    replies: dict[str, Counter[int]] = {name: Counter() for name in kinds}
    port = free_port()
    keys: dict[str, dict[str, Any]] = {"bulk": {}, "other": {}}
    flags = ("--itl-ms", str(STEP_S * 1000))
    async with (
        house(keys, config(port), 1, [flags], front=partial(sink, port=port)) as at,
        small(at, STREAMS, 100, 0.0) as others,
    ):
        await asyncio.sleep(2)  # all have begun
        began = time.monotonic()
        await asyncio.sleep(ALONE_S)
        beside = time.monotonic()
        while time.monotonic() < beside + BESIDE_S:
            for name, (path, body) in kinds.items():
                replies[name][(await send(at, body, path)).status] += 1
        ended = time.monotonic()
        await asyncio.sleep(3)  # what is under way is written down at its end
        await others.stop()
        lines = others.lines()
    for name, statuses in replies.items():
        wanted = 400 if name == "1.5 million token ids" else 200
        findings.check(
            f"{name}: answers other than {wanted}",
            statuses.total() - statuses[wanted],
            statuses.total(),
            statuses[wanted] == statuses.total(),
        )
    failed = [line for line in lines if line["status"] != 200]
    findings.none("small streams that fail", len(failed), len(lines))
    alone, among = pauses(lines, began, beside), pauses(lines, beside, ended)
    findings.check(
        f"late blocks of small streams, ms, p99.9 (50) and most (100); without large bodies {alone}",
        among,
        len(among.late),
        percentile(among.late, 0.999) <= LONG_S and max(among.late, default=0.0) <= LONGEST_S,
    )
