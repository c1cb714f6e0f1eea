"""The figures of the comparison. Each is measured on all subjects in turns, so that a slow second affects all of
them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from bench.peers import load
from bench.peers.dialects import Dialect
from bench.process import BenchError, Process, Stopped, cpu_seconds_now, tree
from bench.replies import MARK, REPLIES
from bench.rows import DONE

SIZES = {"1 KB": 1024, "100 KB": 100 << 10, "400 KB": 400 << 10}
CONNECTIONS = 32
# In the whole reply.
CHUNKS = REPLIES[b"/v1/chat/completions"].whole.count(MARK)
STREAMS = 100
SHORT, LONG = 10, 510
IDLE_STREAMS = 1000
MOST_LOST = 0.05


class Running(Struct):
    """A subject that serves. name `backend` is the canned worker itself, asked directly. dialect: whose streams it is
    asked for, where that is not the worker's own."""

    name: str
    port: int
    process: Process
    path: str
    headers: dict[str, str]
    slow: bool
    streams: bool = True
    most: int = IDLE_STREAMS
    dialect: Dialect | None = None

    def request(self, size: int, chunks: int | None = None) -> bytes:
        """The bytes of one chat of `size` bytes; with `chunks` one for a stream."""
        if self.dialect is not None and chunks is not None:
            return load.request(self.dialect.row.path, self.headers, self.dialect.body(chunks))
        return load.request(self.path, self.headers, load.body(size, chunks))

    async def connect(self, number: int) -> list[load.Caller]:
        """So many connections to it."""
        end = DONE if self.dialect is None else self.dialect.row.end
        return await load.connect(self.name, self.port, number, end)

    def cpu(self) -> float:
        """Seconds that the whole process tree has used."""
        return cpu_seconds_now(self.process.popen.pid)


Taken = dict[str, list[float]]
"""Subject, or dialect -> its samples, one a round."""


class Lost(Struct):
    """Chunks that did not come back as they were sent, over all figures."""

    asked: dict[str, int] = {}
    frames: dict[str, int] = {}

    def count(self, name: str, wanted: int, taken: Sequence[load.Taken]) -> None:
        """`wanted` chunks were due in each reply."""
        self.asked[name] = self.asked.get(name, 0) + wanted * len(taken)
        missing = sum(abs(wanted - one.chunks) + (not one.ended) for one in taken)
        self.frames[name] = self.frames.get(name, 0) + missing
        # The table reports a few. Many make the other figures meaningless.
        if missing and self.frames[name] > max(self.asked[name] * MOST_LOST, wanted * CONNECTIONS):
            said = next((one.refusal for one in taken if one.refusal), "fewer chunks than were sent")
            raise BenchError(f"{name}: {self.frames[name]} of {self.asked[name]} chunks were lost: {said}")


def turns(subjects: Sequence[Running], rounds: int) -> list[list[Running]]:
    """The subjects, forwards and backwards in turn."""
    return [list(subjects) if number % 2 else list(reversed(subjects)) for number in range(rounds)]


async def plain(subjects: Sequence[Running], size: int, rounds: int, requests: int, lost: Lost) -> Taken:
    """CPU microseconds a request: turns of `requests` over CONNECTIONS connections."""
    taken: Taken = {}
    for turn in [subjects, *turns(subjects, rounds)]:
        for one in turn:
            Stopped.check()
            number = max(requests // (40 if one.slow else 1) // CONNECTIONS, 1)
            # Anew for each turn: some close what has been idle for seconds.
            callers, data = await one.connect(CONNECTIONS), one.request(size)
            lost.count(one.name, CHUNKS, await load.batch(callers, data, False))  # caches warm up
            before = one.cpu()
            for _ in range(number):
                lost.count(one.name, CHUNKS, await load.batch(callers, data, False))
            used = one.cpu() - before
            load.hang_up(callers)
            taken.setdefault(one.name, []).append(used / (number * CONNECTIONS) * 1e6)
    # The first turn warmed up.
    return {name: samples[1:] for name, samples in taken.items()}


async def chunk(subjects: Sequence[Running], rounds: int, lost: Lost, *, by_dialect: bool = False) -> Taken:
    """CPU microseconds for a streamed chunk: STREAMS streams of LONG chunks, less as many streams of SHORT chunks,
    divided by the chunks between. by_dialect: samples of a subject that is asked for a dialect have the dialect's
    name."""
    taken: Taken = {}
    for turn in turns(subjects, rounds):
        for one in turn:
            used = {}
            streams = STREAMS // (10 if one.slow else 1)
            for length in (SHORT, LONG):
                Stopped.check()
                callers = await one.connect(streams)
                before = one.cpu()
                due = length if one.dialect is None else length * one.dialect.row.times
                lost.count(one.name, due, await load.batch(callers, one.request(1024, length), True))
                used[length] = one.cpu() - before
                load.hang_up(callers)
            name = one.name if one.dialect is None or not by_dialect else one.dialect.name
            taken.setdefault(name, []).append((used[LONG] - used[SHORT]) / (streams * (LONG - SHORT)) * 1e6)
    return taken


async def growth(subjects: Sequence[Running], seconds: float) -> Taken:
    """MiB that the process tree grows by in a minute of plain requests on CONNECTIONS connections: measured over the
    second half of `seconds`, which are warm by then."""
    taken: Taken = {}
    loop = asyncio.get_running_loop()
    for one in subjects:
        sizes = []
        for _ in range(2):
            Stopped.check()
            callers = await one.connect(CONNECTIONS)
            end = loop.time() + seconds / 2
            await asyncio.gather(*(until(caller, one.request(1024), end) for caller in callers))
            load.hang_up(callers)
            sizes.append(proportional(one.process.popen.pid))
        taken[one.name] = [(sizes[1] - sizes[0]) / 2**20 * 60 / (seconds / 2)]
    return taken


async def until(caller: load.Caller, data: bytes, end: float) -> list[float]:
    """Sends plain requests one after the other until `end`, by the loop's clock; returns the seconds of each. Raises
    BenchError if one is refused."""
    found = []
    loop = asyncio.get_running_loop()
    while loop.time() < end:
        taken = await caller.ask(data, False)
        if taken.refusal:
            raise BenchError(f"a rate counts answers alone: {taken.refusal}")
        found.append(taken.whole_s)
    return found


async def memory(subjects: Sequence[Running]) -> tuple[Taken, Taken]:
    """(MiB idle, KiB an idle open stream): proportional set size of the process tree, kernel buffers left out. A stream
    costs what the memory grows by from a tenth of IDLE_STREAMS to as many more; so what the first streams make a
    subject load and allocate once is not in it."""
    idle: Taken = {}
    each: Taken = {}
    for one in subjects:
        Stopped.check()
        streams = min(IDLE_STREAMS // (5 if one.slow else 1), one.most)
        (caller,) = await one.connect(1)
        await load.batch([caller], one.request(1024), False)
        load.hang_up([caller])
        idle[one.name] = [proportional(one.process.popen.pid) / 2**20]
        if not one.streams:
            continue
        callers = await _silent(one, streams // 10)
        before = proportional(one.process.popen.pid)
        callers += await _silent(one, streams)
        after = proportional(one.process.popen.pid)
        load.hang_up(callers)
        each[one.name] = [(after - before) / streams / 1024]
    return idle, each


async def _silent(one: Running, streams: int) -> list[load.Caller]:
    """So many open streams, each of which has said a first chunk and says no more."""
    callers: list[load.Caller] = []
    while len(callers) < streams:
        some = await one.connect(min(streams - len(callers), 50))
        for caller in some:
            caller.ask(one.request(1024, 0), True).add_done_callback(_heard)
        await asyncio.wait([caller.first for caller in some], timeout=load.PATIENCE_S)
        callers += some
        if not all(caller.first.done() for caller in some):
            raise BenchError(f"{one.name}: not all of the first {len(callers)} streams began")
    return callers


def _heard(future: asyncio.Future[load.Taken]) -> None:
    """Closes the streams; their incomplete end does not count as a loss."""
    if not future.cancelled():
        future.exception()


def proportional(root: int) -> int:
    """Bytes of the proportional set size of `root` and its descendants (proc(5), smaps_rollup)."""
    total = 0
    for pid in tree(root):
        for line in Path("/proc", str(pid), "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total
