"""F15 and F17: gateways behind haproxy, as they are rolled and as their workers fall silent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from httpx import HTTPError
from openai import AsyncOpenAI, OpenAIError

from tests.chaos.broken import WAYS, Way, scripted
from tests.chaos.house import CHAT, House, Process, chat, house, program
from tests.chaos.link import Link, connected, request, to_the_end
from tests.chaos.row import FULL, SEED, Findings, row
from tests.support.ports import free_port

CHECK_S = 0.2
"""haproxy asks /readyz so often."""

STREAMS = 100
RATE = 50
LAPS = 3 if FULL else 1
KEPT = 10
"""Connections that those who ask keep, each in use a few times a second."""

IDLE_S = 2.0
"""haproxy ends connections that are silent for so long."""
SILENCE_S = 3 * IDLE_S
HANG_S = 8.0
TIMES = 5
ROUNDS = 4 if FULL else 1
TOKENS = ("aaaa", "bbbb", "cccc", "dddd")

Reply = tuple[bytes, float]
"""All that comes until the connection ends, and after how many seconds that is."""

# retries 0: what fails is seen, and not sent to another gateway in silence.
CONFIG = """
global
    maxconn 2000
defaults
    mode {mode}
    retries 0
    timeout connect 1s
    timeout client {idle_ms}ms
    timeout server {idle_ms}ms
    option httpchk GET /readyz
    default-server inter {check_ms}ms fall 1 rise 1 check
frontend front
    bind 127.0.0.1:{port}
    default_backend gateways
backend gateways
    balance leastconn
"""


def haproxy(findings: Findings) -> str | None:
    """Its path; without it the row is short, and says how to get it."""
    found = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        findings.check("haproxy is here (Debian: apt-get install haproxy)", "no", 1, False)
    return found


@contextlib.asynccontextmanager
async def balancer(binary: str, at: House, idle_s: float, mode: str = "http") -> AsyncIterator[Process]:
    """haproxy before the gateways; it ends connections that are silent for `idle_s`. In mode "tcp" it knows nothing of
    requests: a client's connection stays with its gateway."""
    port = free_port()
    text = CONFIG.format(mode=mode, idle_ms=round(idle_s * 1000), check_ms=round(CHECK_S * 1000), port=port)
    text += "".join(f"    server g{number} {one.address}\n" for number, one in enumerate(at.gateways))
    path = at.folder / "haproxy.cfg"
    path.write_text(text)
    balancing = await program(at.folder, "haproxy", binary, "-db", "-f", str(path), port=port)
    try:
        await balancing.ready("/readyz")
        yield balancing
    finally:
        await balancing.stop()


@row("F15", "gateways are replaced one after the other behind haproxy")
async def rolled(findings: Findings) -> None:
    """3 gateways get SIGTERM one after the other and restart, behind haproxy, which asks `/readyz` every 0.2 s and
    never retries; `relay.notice_s` 0.8 s. Load: 100 streaming clients and 50 requests/s; only those 50; both with
    haproxy balancing TCP connections; `FULL=1`: three rounds. Then streams longer than `relay.drain_s`, 6 in each
    dialect.

    Passes if no request is refused, cut, or answered other than 2xx. The longer streams end with an error in their
    dialect, none by a reset, within `relay.drain_s` and 2 s.
    """
    binary = haproxy(findings)
    if binary is None:
        return
    flags = ["--itl-ms", "20", "--slots", "400"]
    config = {"relay": {"drain_s": 15, "notice_s": 4 * CHECK_S}}
    async with house({}, config, 3, [flags] * 2) as at:
        for mode, streams in (("http", STREAMS), ("http", 0), ("tcp", STREAMS)):
            async with balancer(binary, at, 30, mode) as front:
                replies = await under_load(at, front.address, streams)
            for kind, ends in replies.items():
                bad = ends.total() - ends["whole"]
                how = f" ({', '.join(end for end in ends if end != 'whole')})" if bad else ""
                beside = "streams beside" if streams else "no streams"
                what = f"{kind}, balanced by {mode.upper()}, {beside}: refused, not 2xx, or cut"
                findings.check(what, f"{bad}{how}", ends.total(), not bad)
    await outlived(findings, binary)


async def under_load(at: House, address: str, streams: int) -> dict[str, Counter[str]]:
    """What became of requests while every gateway was replaced."""
    over = asyncio.Event()
    draw = random.Random(SEED)
    replies: dict[str, Counter[str]] = {"plain": Counter()}
    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(streaming(address, draw, over, replies.setdefault("streams", Counter())))
        group.create_task(asking(address, over, replies["plain"]))
        await asyncio.sleep(1)
        for _ in range(LAPS):
            await roll(at)
        over.set()
    return replies


async def roll(at: House) -> None:
    """Every gateway is ended and started again, the next once haproxy knows of that."""
    for number, old in enumerate(at.gateways):
        old.process.terminate()
        status = await old.process.wait()
        assert status == 0, old.log.read_text()[-2000:]
        at.gateways[number] = await old.again()
        await at.gateways[number].ready("/readyz?model")
        await asyncio.sleep(3 * CHECK_S)


async def streaming(address: str, draw: random.Random, over: asyncio.Event, ends: Counter[str]) -> None:
    link = Link(address)
    await asyncio.sleep(draw.uniform(0, 1))
    while not over.is_set():
        ends[await ending(link, chat(draw.randint(25, 100), True), b"[DONE]")] += 1
    link.close()


async def asking(address: str, over: asyncio.Event, ends: Counter[str]) -> None:
    links: list[Link] = []
    began, number = time.monotonic(), 0

    async def ask() -> None:
        link = links.pop(0) if len(links) >= KEPT else Link(address)
        ends[await ending(link, chat(2), b'"usage"')] += 1
        links.append(link)

    async with asyncio.TaskGroup() as group:
        while not over.is_set():
            await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
            group.create_task(ask())
            number += 1
    for link in links:
        link.close()


async def ending(link: Link, body: Any, done: bytes) -> str:
    """What became of a request: "whole", or what was wrong."""
    try:
        answer = await link.post(CHAT, body, {})
    except (OSError, asyncio.IncompleteReadError) as error:
        return type(error).__name__
    return "whole" if answer.status == 200 and done in answer.body else f"{answer.status} {answer.body[-60:]!r}"


async def outlived(findings: Findings, binary: str) -> None:
    """Streams that are longer than the grace."""
    drain_s, times = 2.0, 6
    async with (
        house({}, {"relay": {"drain_s": drain_s}}, 1, [("--itl-ms", "20", "--slots", "400")]) as at,
        balancer(binary, at, 30) as front,
    ):
        ended = asyncio.Event()
        tasks = [asyncio.ensure_future(cut(front.address, way, ended)) for way in WAYS for _ in range(times)]
        await asyncio.sleep(1)
        at.gateways[0].process.terminate()
        began = time.monotonic()
        ends = await asyncio.gather(*tasks)
        took = time.monotonic() - began
    wrong = sorted(
        {f"{way.name}: {end}" for way, end in zip((w for w in WAYS for _ in range(times)), ends, strict=True) if end}
    )
    findings.none("streams longer than the grace that do not end by one error", wrong, len(ends))
    findings.check(
        f"seconds until all of them had ended ({drain_s:g} + 2)",
        f"{took:.2f}",
        len(ends),
        drain_s <= took <= drain_s + 2,
    )


async def cut(address: str, way: Way, ended: asyncio.Event) -> str:
    """What is wrong with the end of a stream that its gateway cannot wait for."""
    reader, writer = await connected(address)
    writer.write(
        request(
            "POST",
            way.path,
            {"connection": "close"},
            scripted(way.body(stream=True, max_tokens=1000), text="word " * 1000),
        )
    )
    try:
        data = await reader.read(-1)
    except ConnectionError as error:
        return type(error).__name__
    finally:
        writer.close()
    head, _, text = data.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        return head.decode("latin-1")[:80]
    if way.done in text or b'"finish_reason":"stop"' in text:
        return f"looks complete: {text[-200:]!r}"
    return "" if errors_in(text) else f"no error in {text[-200:]!r}"


@row("F17", "workers are silent for three times as long as the balancer before the gateway waits")
async def silent(findings: Findings) -> None:
    """Haproxy closes connections that are silent for 2 s. A worker is silent for 6 s: before its head, after it, after
    one token, after three; 5 streams of each in each dialect, `FULL=1`: 20. Then it is silent for ever, with
    deadlines of 8 s.

    Passes if every stream is whole, including lines of JSON; openai's own client reads every one. A worker that
    hangs causes one error in the dialect after 8 s ±10 %. As a control, haproxy ends all of the same requests sent
    as plain ones.
    """
    binary = haproxy(findings)
    if binary is None:
        return
    config = {"relay": {"keepalive_s": IDLE_S / 4}, "deadlines": {"first_byte_s": HANG_S, "idle_s": HANG_S}}
    async with (
        house({}, config, 1, [("--itl-ms", "5", "--slots", "1000")]) as at,
        balancer(binary, at, IDLE_S) as front,
    ):
        silences = [f"stall:{SILENCE_S:g}@{when}" for when in ("before", "headers", 1, 3)]
        hangs = [f"stall@{when}" for when in ("before", "headers", 1, 3)]
        control: list[Reply] = []
        read: list[str] = []
        survived: list[list[Reply]] = [[] for _ in WAYS]
        hung: list[list[Reply]] = [[] for _ in WAYS]
        # One client for all: to make one takes longer than a request. It keeps no connection: haproxy would end those
        # that idle between the rounds.
        async with AsyncOpenAI(
            base_url=f"http://{front.address}/v1",
            api_key="none",
            max_retries=0,
            default_headers={"connection": "close"},
        ) as client:
            for _ in range(ROUNDS):
                found = await asyncio.gather(
                    asyncio.gather(*(patient(front.address, WAYS[0], silences[0], stream=False) for _ in range(TIMES))),
                    asyncio.gather(*(gather_way(front.address, way, silences) for way in WAYS)),
                    asyncio.gather(*(gather_way(front.address, way, hangs) for way in WAYS)),
                    asyncio.gather(*(sdk(client, fault) for fault in silences for _ in range(TIMES))),
                )
                control += found[0]
                for all_of_it, one_round in ((survived, found[1]), (hung, found[2])):
                    for replies, more in zip(all_of_it, one_round, strict=True):
                        replies += more
                read += found[3]
    ended = sum(b" 504 " in data.split(b"\r\n")[0] for data, _ in control)
    findings.check("plain requests that the balancer ends, as a control", ended, len(control), ended == len(control))
    for way, replies in zip(WAYS, survived, strict=True):
        bad = [data[-100:] for data, _ in replies if not whole(way, data)]
        findings.none(f"{way.name}: streams that do not survive", bad, len(replies))
    odd = sorted({text for text in read if text != "".join(TOKENS)})
    findings.none("openai's own client: streams that it does not read whole", odd, len(read))
    for way, replies in zip(WAYS, hung, strict=True):
        bad = [data[-100:] for data, _ in replies if way.done in data or not errors_in(data)]
        findings.none(f"{way.name}: hung workers that are not told as an error", bad, len(replies))
    times = [took for replies in hung for _, took in replies]
    findings.check(
        f"seconds until a hung worker is told ({HANG_S:g} s ± 10 %)",
        f"{min(times):.2f} to {max(times):.2f}",
        len(times),
        min(times) >= 0.9 * HANG_S and max(times) <= 1.1 * HANG_S,
    )


async def gather_way(address: str, way: Way, faults: list[str]) -> list[Reply]:
    return await asyncio.gather(*(patient(address, way, fault) for fault in faults for _ in range(TIMES)))


async def patient(address: str, way: Way, fault: str, stream: bool = True) -> Reply:
    body = scripted(way.body(stream=stream), text="".join(TOKENS), fault=fault)
    return await to_the_end(address, request("POST", way.path, {"connection": "close"}, body))


def whole(way: Way, data: bytes) -> bool:
    """Whether a stream has all of its tokens and its end, and is what readers of its kind can read."""
    head, _, rest = data.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0] or not rest.endswith(b"\r\n0\r\n\r\n") or errors_in(data):
        return False
    text = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        text, rest = text + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    if text.lstrip().startswith(b"{"):
        for line in text.splitlines():
            json.loads(line)
    at = 0
    for token in TOKENS:
        at = text.find(token.encode(), at)
        if at < 0:
            return False
    return way.ends in text


def errors_in(data: bytes) -> int:
    return data.count(b'"error"') + data.count(b"event: error")


async def sdk(client: AsyncOpenAI, fault: str) -> str:
    """What OpenAI's client reads."""
    script = "sim:" + json.dumps({"text": "".join(TOKENS), "fault": fault})
    try:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": script}], stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    except (OpenAIError, HTTPError) as error:
        return repr(error)
