"""F5: a worker freezes (SIGSTOP): its connections stay open, and nothing more comes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import statistics
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

from msgspec import Struct, field

from tests.chaos.broken import opened
from tests.chaos.house import CHAT, House, Process, chat, house
from tests.chaos.link import connected
from tests.chaos.paced import Asked, Load, events, given, known, paced, until
from tests.chaos.row import FULL, SEED, Findings, percentile, row

SILENT_S = 10.0 if FULL else 2.0
"""How long a worker may be silent, before its reply and in it."""
CONNECT_S = 1.0
HEALTH = {"interval_s": 5.0, "timeout_s": 1.0} if FULL else {"interval_s": 1.0, "timeout_s": 0.5}
MISSES = 3
WORKERS = 5
STREAMS = 10
"""To each worker."""
STEP_S = 0.02
BEFORE_S, AFTER_S = (10.0, 20.0) if FULL else (5.0, 6.0)
RATE = 40.0
"""Of plain requests, a second, besides the streams."""
BURST = 60
"""Plain requests at once as it freezes: later ones would hardly meet it, because it is busy."""
AT_ONCE = 24
"""Requests at once to three workers of which one accepts no connection."""


class Followed(Struct):
    """A stream as its client saw it: when each block came, and when it ended, by the monotonic clock."""

    id: str
    blocks: list[float] = field(default_factory=list)
    data: bytes = b""
    ended: float = 0.0

    @property
    def whole(self) -> bool:
        return b"[DONE]" in self.data


def words(name: str) -> str:
    """A beginning of its own: requests that begin alike go to one worker, as long as it has room."""
    return f"{name} {random.Random(f'{SEED} {name}').random()}"


async def follow(at: House, one: Followed, tokens: int) -> None:
    reader, writer = await opened(at, CHAT, one.id, json.dumps(chat(tokens, True, words(one.id))).encode())
    with contextlib.suppress(ConnectionError):
        while block := await reader.read(65536):
            one.blocks.append(time.monotonic())
            one.data += block
    one.ended = time.monotonic()
    writer.close()


@row("F5", "a worker freezes under streams, before its replies, and when it should accept connections")
async def frozen(findings: Findings) -> None:
    """One of five workers is frozen (SIGSTOP) under 50 streams, 60 requests at once and 40 a second, each with a
    beginning of its own, since alike ones go to one worker. Then one of three is frozen, and its kernel accepts no
    more connections. `deadlines` of 2 s, `FULL=1`: 10 s.

    Passes if its streams end with one error and its plain requests with a 504, each at its deadline ±10 %. After
    three probes nothing is sent to it, and it is used again when it continues. On the other workers every reply is
    whole; the p99 of requests and of gaps between blocks (median over seconds) is at most 10 % above before. A
    connection that it does not accept goes to another worker at `connect_s` ±10 %.
    """
    await under_way(findings)
    await unaccepted(findings)


async def under_way(findings: Findings) -> None:
    flags = ("--itl-ms", str(STEP_S * 1000))
    config: dict[str, Any] = {
        "deadlines": {"first_byte_s": SILENT_S, "idle_s": SILENT_S},
        "health": HEALTH,
        "models": {"m": {"continue_streams": False}},
        "breaker": {"slowstart_s": 0},  # a worker that came after the gateway would have less than its share to lose
    }
    async with house({}, config, 1, [flags] * WORKERS) as at, _loaded(at) as load:
        streams = [Followed(f"stream-{number}") for number in range(STREAMS * WORKERS)]
        tokens = int((BEFORE_S + AFTER_S) / STEP_S)
        async with asyncio.TaskGroup() as group:
            for one in streams:
                group.create_task(follow(at, one, tokens))
            await asyncio.sleep(BEFORE_S)
            stopped = time.monotonic()
            at.workers[0].process.send_signal(signal.SIGSTOP)
            burst = Load(at, "burst")
            for number in range(BURST):
                group.create_task(burst.ask(chat(4, text=words(f"burst {number}"))))
            await asyncio.sleep(AFTER_S)
        burst.close()
        thawed = time.monotonic()
        at.workers[0].process.send_signal(signal.SIGCONT)
        back = await until(lambda: bool(events(at, "worker ready", at.workers[0], thawed)), 10)
        settled = time.monotonic()
        await until(lambda: len(at.records()) >= len(streams) + BURST + len(load.since(0, settled)), 5)
        judge_streams(findings, at, streams, stopped)
        judge_requests(findings, at, load, burst.asked, stopped, thawed)
        findings.check("back once it goes on", "yes" if back else "no", 1, back)


@contextlib.asynccontextmanager
async def _loaded(at: House) -> AsyncIterator[Load]:
    await known(at)
    async with paced(at, RATE, chat(4)) as load:
        yield load


def on(at: House, worker: Process) -> set[str]:
    """Ids of requests that this worker was the last to have."""
    return {id_ for id_, record in at.records().items() if record.get("worker") == f"http://{worker.address}"}


def judge_streams(findings: Findings, at: House, streams: list[Followed], stopped: float) -> None:
    theirs = on(at, at.workers[0])
    hit = [one for one in streams if one.id in theirs]
    others = [one for one in streams if one.id not in theirs]
    # The last block of all is the error.
    silences = [one.ended - max(block for block in one.blocks if block < stopped + SILENT_S / 2) for one in hit]
    late = [silence for silence in silences if not _about(silence, SILENT_S)]
    findings.check(
        f"streams of the frozen worker: silence until they end, s, {SILENT_S} ±10 %",
        spread(silences),
        len(silences),
        not late and len(hit) >= STREAMS / 2,
    )
    wrong = [one for one in hit if one.whole or one.data.count(b'"error"') != 1]
    findings.none("of those, that do not end with one error", len(wrong), len(hit))
    cut = [one for one in others if not one.whole]
    findings.none("streams of the others that are not whole", len(cut), len(others))
    gaps = [(then, then - first) for one in others for first, then in pairwise(one.blocks)]
    usual, slow = (usual_p99_ms(some) for some in apart(gaps, stopped))
    findings.at_most(
        f"streams of the others: p99 between two blocks, ms, 10 % above {usual:.1f} at most",
        slow,
        usual * 1.1,
        len(gaps),
    )


def apart(seen: list[tuple[float, float]], when: float) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    return [one for one in seen if one[0] < when], [one for one in seen if one[0] >= when]


def usual_p99_ms(seen: list[tuple[float, float]]) -> float:
    """Of (when, seconds): the p99 of each second, and of those the median, for a machine that does other things."""
    by_second: dict[int, list[float]] = {}
    for when, seconds in seen:
        by_second.setdefault(int(when), []).append(seconds)
    return statistics.median([percentile(each, 0.99) for each in by_second.values()] or [0.0]) * 1000


def judge_requests(
    findings: Findings, at: House, load: Load, burst: list[Asked], stopped: float, thawed: float
) -> None:
    theirs = on(at, at.workers[0])
    under_way = [one for one in load.since(0, thawed) if one.at + one.ms / 1000 > stopped]
    hit = [one for one in [*under_way, *burst] if one.id in theirs]
    times = [one.ms / 1000 for one in hit]
    odd = [one for one in hit if one.status != 504 or not _about(one.ms / 1000, SILENT_S)]
    findings.check(f"plain requests that it had: 504 after s, {SILENT_S} ±10 %", spread(times), len(times), not odd)
    others = [one for one in load.since(stopped, thawed) if one.id not in theirs]
    elsewhere = [*others, *(one for one in burst if one.id not in theirs)]
    failed = [one for one in elsewhere if one.status != 200]
    findings.none("plain requests to the others that fail", len(failed), len(elsewhere))
    answered = [(one.at, one.ms / 1000) for one in load.since(0, thawed) if one.id not in theirs]
    usual, slow = (usual_p99_ms(some) for some in apart(answered, stopped))
    findings.at_most(
        f"plain requests to the others: p99 ms, 10 % above {usual:.1f} at most", slow, usual * 1.1, len(others)
    )
    last = max((one.at for one in hit), default=stopped) - stopped
    most = MISSES * (HEALTH["interval_s"] + HEALTH["timeout_s"])
    after = load.since(stopped + most, thawed)
    findings.at_most(f"it is sent nothing more after s ({most} at most, three probes)", last, most, len(after), ".2f")


def _about(seconds: float, wanted: float) -> bool:
    return abs(seconds - wanted) <= wanted * 0.1


def spread(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}" if values else "none"


async def unaccepted(findings: Findings) -> None:
    """As long as its queue has room the kernel accepts connections for a frozen process: here it has none."""
    # A third of the requests meets it, more or less: some eight.
    config = {"deadlines": {"connect_s": CONNECT_S}, "breaker": {"slowstart_s": 0, "failures": 3}}
    async with house({}, config, 1, [("--itl-ms", "5")] * 3) as at:
        await known(at)
        deaf = at.workers[0]
        stopped = time.monotonic()
        deaf.process.send_signal(signal.SIGSTOP)
        filling = await fill(deaf)
        load = Load(at, "deaf")
        # None of them ends before the last is sent.
        first = await asyncio.gather(*(load.ask(chat(100, text=words(f"first {n}"))) for n in range(AT_ONCE)))
        reached = {entry["request"]: entry["started"] for worker in at.workers[1:] for entry in await given(worker)}
        waits = [reached.get(one.id, 1e18) - one.at for one in first]
        moved = [wait for wait in waits if wait > CONNECT_S / 2]
        odd = [wait for wait in moved if not _about(wait, CONNECT_S)]
        findings.check(
            f"unaccepted: sent to another worker after s, {CONNECT_S} ±10 %", spread(moved), len(moved), not odd
        )
        failed = [one for one in first if one.status != 200]
        findings.none("unaccepted: answers other than 200", len(failed), len(first))
        out = await until(
            lambda: bool(events(at, "worker ejected", deaf, stopped) or events(at, "worker down", deaf, stopped)), 1
        )
        then = await asyncio.gather(*(load.ask(chat(10, text=words(f"then {n}"))) for n in range(AT_ONCE)))
        slow = [one for one in then if one.status != 200 or one.ms > CONNECT_S * 500]
        findings.check("unaccepted: requests that meet it once it is out", len(slow), len(then), out and not slow)
        load.close()
        for writer in filling:
            writer.transport.abort()
        deaf.process.send_signal(signal.SIGCONT)


async def fill(worker: Process) -> list[asyncio.StreamWriter]:
    """Connects until the worker's kernel accepts no more."""
    made: list[asyncio.StreamWriter] = []
    while True:
        try:
            async with asyncio.timeout(0.3):
                made.append((await connected(worker.address))[1])
        except TimeoutError:
            return made
