"""H1, H2 and H3: an engine that hangs, clients without patience, and a worker that leaves under load."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.chaos.house import CHAT, House, Process, chat, house, program
from tests.chaos.link import Answer, Link
from tests.chaos.paced import Load, events, given, known, paced, tell, until
from tests.chaos.row import FULL, Findings, row
from tests.support.ports import free_port
from tests.support.redis_server import Server

RATE = 50.0 if FULL else 20.0
STALLED_S = 5.0 if FULL else 2.0
SCRAPE_S = 0.5
HUNG_S = 30.0 if FULL else 8.0
WARM_S = 5.0 if FULL else 3.0
DETECTED_S = SCRAPE_S + 2.0
"""On top of the bound: a reading of the figures, a look, and the log."""
STREAMS = 20

PATIENCE_S = 1.0
FIRST_S = 3.0
"""Until the first token: nobody who has `PATIENCE_S` sees it."""
IMPATIENT = 50 if FULL else 20
IMPATIENT_S = 60.0 if FULL else 12.0

WORKERS = 4
ROLLED = WORKERS if FULL else 2
HAND_OVER_S = 3.0
TOKENS = 600
"""Of each stream: 12 s, and by that longer than the workers that go need."""


class Streamed:
    """Streams that are under way from the beginning of the row to its end."""

    def __init__(self, at: House, tokens: int) -> None:
        self._address = at.gateways[0].address
        self._tokens = tokens
        self.answers: list[Answer | None] = []

    async def ask(self, number: int) -> None:
        link = Link(self._address)
        answer = None
        with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(180):
                answer = await link.post(CHAT, chat(self._tokens, stream=True, text=f"stream {number}"), {})
        self.answers.append(answer)
        link.close()

    @property
    def cut(self) -> list[str]:
        """The ends of those that are not whole: as many tokens as were asked for, and the end mark."""
        return [
            "nothing" if one is None else one.body[-200:].decode("utf-8", "replace")
            for one in self.answers
            if one is None or not one.body.endswith(b"data: [DONE]\n\n") or b'"finish_reason":"length"' not in one.body
        ]


@contextlib.asynccontextmanager
async def streams(at: House, count: int, tokens: int) -> AsyncIterator[Streamed]:
    found = Streamed(at, tokens)
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(found.ask(number))
        yield found


async def stall(at: House, worker: Process, hung: bool) -> float:
    await tell(worker, "/sim/state", hung=hung)
    return time.monotonic()


@row("H1", "an engine hangs behind a server that lives")
async def hung(findings: Findings) -> None:
    """One of four engines hangs for 8 s, `FULL=1`: 30 s, under 20 requests/s and 20 streams: its server answers
    `/health` and `/metrics`, nothing is computed, and its figures stand still. `health.stalled_s` 2 s, `FULL=1`: 5
    s.

    Passes if it is found 2.5 s after that bound at most, and once; every request is answered with 200, and every
    stream is whole before it moves again; it gets no request while it hangs; it returns when it moves; no other
    worker is taken for stalled.
    """
    config = {
        "health": {"stalled_s": STALLED_S, "interval_s": 1},
        "routing": {"scrape_s": SCRAPE_S},
        "breaker": {"slowstart_s": 1},
    }
    flags = ("--itl-ms", "20")
    async with house({}, config, 1, [flags] * 4) as at:
        await known(at)
        async with paced(at, RATE, chat(10)) as load:
            await asyncio.sleep(WARM_S)
            worker = at.workers[0]
            async with streams(at, STREAMS, 60) as open_streams:
                await asyncio.sleep(0.3)
                began = await stall(at, worker, True)
                found = await until(lambda: bool(events(at, "worker stalled", worker, began)), STALLED_S + 30)
                await asyncio.sleep(max(0.0, began + HUNG_S - time.monotonic()))
                ended = await stall(at, worker, False)
            back = await until(lambda: bool(events(at, "worker returned", worker, ended)), 30)
            await asyncio.sleep(1)
        stalls = events(at, "worker stalled", worker, began)
        late = stalls[0] - began if found else float("inf")
        most = STALLED_S + DETECTED_S
        findings.at_most(f"found, s ({most} at most)", late, most, 1, timed=True)
        findings.check("found at all, and once", len(stalls), 1, len(stalls) == 1)
        lost = [one.status for one in load.asked if one.status != 200]
        findings.none("requests that were lost", lost, len(load.asked))
        findings.none("streams that were cut", open_streams.cut, len(open_streams.answers))
        waited = sum(one is not None and one.began + one.seconds > ended for one in open_streams.answers)
        what, count = "streams that waited until it moved", len(open_streams.answers)
        findings.check(what, waited, count, not waited, timed=True)
        if found:
            sent = [one for one in await given(worker, stalls[0] + 0.5) if one["started"] < ended]
            ours = [one for one in sent if one["request"] and not one["request"].startswith("dragoman")]
            findings.none("requests that were sent to it meanwhile", len(ours), len(load.since(stalls[0], ended)))
        findings.check("back after it moves", "yes" if back else "never", 1, back)
        others = [one for one in at.workers[1:] if events(at, "worker stalled", one)]
        findings.none("others that were taken for stalled", len(others), 3)


@row("H2", "clients without patience against a healthy fleet")
async def impatient(findings: Findings) -> None:
    """20 clients that each wait for 1 s, again and again for 12 s, `FULL=1`: 50 for 60 s, against two healthy workers
    whose first token comes after 3 s; with the engines' figures, and by bytes alone. `breaker.failures` is 1.

    Passes if no worker is stalled, ejected or down, and then a client that waits is answered.
    """
    for what, scrape_s in (("with figures", SCRAPE_S), ("by bytes alone", 0.0)):
        config = {
            "health": {"stalled_s": STALLED_S * 2, "interval_s": 1},
            "routing": {"scrape_s": scrape_s},
            "breaker": {"failures": 1},
        }
        async with house({}, config, 1, [("--fault", f"stall:{FIRST_S}")] * 2) as at:
            await known(at)
            over = time.monotonic() + IMPATIENT_S
            left = await asyncio.gather(*(leave(at, number, over) for number in range(IMPATIENT)))
            out = [
                event
                for event in ("worker stalled", "worker ejected", "worker down")
                for worker in at.workers
                if events(at, event, worker)
            ]
            findings.none(f"{what}: workers that were left out", out, sum(left))
            answer = await at.gateways[0].post(CHAT, chat(2))
            findings.check(f"{what}: a client that waits is answered", answer.status, 1, answer.status == 200)


async def leave(at: House, number: int, over: float) -> int:
    """A client that asks again and again, each time for `PATIENCE_S`."""
    left = 0
    await asyncio.sleep(PATIENCE_S * number / IMPATIENT)
    while time.monotonic() < over:
        link = Link(at.gateways[0].address)
        with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(PATIENCE_S):
                await link.post(CHAT, chat(2, stream=bool(number % 2), text=f"{number} {left}"), {})
        link.close()
        left += 1
    return left


class Fleet:
    """Workers that register. They are started before the gateways, which wait for one."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.workers: list[Process] = []

    async def add(self, at: House) -> None:
        port = free_port()
        words = ["-m", "workers.simulated", "--port", str(port), "--model", "sim", "--itl-ms", "20", "--grace", "120"]
        words += ["--register", f"redis://{self._server.address}", "--hand-over", str(HAND_OVER_S)]
        worker = await program(at.folder, f"registered{port}", sys.executable, *words, port=port)
        at.others.append(worker)
        self.workers.append(worker)
        await worker.ready("/health")

    async def start(self, at: House) -> list[str]:
        for _ in range(WORKERS):
            await self.add(at)
        return []


@row("H3", "workers leave one after the other under streams that outlast their grace")
async def drained(findings: Findings) -> None:
    """Workers that register are stopped one after the other under 20 requests/s and 20 streams of 12 s; `--hand-over`
    3 s, `--grace` 120 s. Another one takes the place of each. Two of four, `FULL=1`: all.

    Passes if every request is answered with 200, every stream is whole, and a worker that is stopped has ended
    after 8 s at most.
    """
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        there = {"addresses": [server.address], "timeout_s": 10}
        config: dict[str, Any] = {"redis": there, "models": {"m": {"discover": {"redis": True}}}}
        fleet = Fleet(server)
        async with house({}, config, 1, (), front=fleet.start) as at:
            first = list(fleet.workers)
            joined = await until(lambda: all(events(at, "worker ready", one) for one in first), 20)
            findings.check("workers that joined", len(first), len(first), joined)
            seconds: list[float] = []
            async with paced(at, RATE, chat(10)) as load, streams(at, STREAMS, TOKENS) as open_streams:
                await asyncio.sleep(1)
                for worker in first[:ROLLED]:
                    began = time.monotonic()
                    worker.process.send_signal(signal.SIGTERM)
                    await asyncio.wait_for(worker.process.wait(), 110)
                    seconds.append(time.monotonic() - began)
                    await fleet.add(at)
            judge(findings, load, open_streams, seconds)


def judge(findings: Findings, load: Load, open_streams: Streamed, seconds: list[float]) -> None:
    lost = [one.status for one in load.asked if one.status != 200]
    findings.none("requests that were lost", lost, len(load.asked))
    findings.none("streams that were cut", open_streams.cut, len(open_streams.answers))
    most = HAND_OVER_S + 5
    worst = max(seconds)
    findings.at_most(
        f"until a worker has ended, s, the longest ({most} at most)", worst, most, len(seconds), timed=True
    )
