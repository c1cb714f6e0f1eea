"""`python -m bench.batches`: what a full batch costs the clients beside it, and how much idle capacity it uses.

A fleet of simulated workers gets streams at random times, in windows without and with a batch, in turns. The figures
are the time to the first token (TTFT) that clients see, and how many of the sequences that the workers could run beside
those of clients the batch has run. It ends with 1 if the p99 of TTFT is more than 10 % longer with the batch, or less
than 90 % of the idle capacity is used; with 2 if a processor was so busy that the figures would be about that.

A worker steps at the same pace whatever it runs, and by default reads each prompt in the same time. So what a client
loses is what waits for a place, and what the gateway itself is slower. `--prompts-at-once 1` has engines that read one
prompt after the other: a client then also waits for the prompts of lines, as any engine makes it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import httpx
import uvloop
import yaml
from msgspec import Struct, field

from bench.load import HOST
from bench.process import TICK, BenchError, Process, Stopped, cores, cpu_seconds_now, free_port
from bench.subjects import redis_command

MOST_SLOWER, LEAST_USED = 0.10, 0.90
MOST_BUSY = 0.75
"""Of one processor: queues before a busier one take longer than what is measured."""
SLOTS, ITL_MS, PREFILL_US = 32, 60.0, 100.0
"""Of each worker: sequences at once, time between tokens, and of a token of a prompt."""
TOKENS, LINE_TOKENS = 30, (25, 125)
"""Of a client's reply, and of a line's."""
PROMPT = "How idle is a fleet at night? " * 160
LINE_PROMPT = "How idle is a fleet at night? " * 40
"""Some 1,200 and 300 tokens, after a number so that no cache has them."""
RAMP_S, SAMPLE_S = 10.0, 0.25
_RUNNING = re.compile(rb"^vllm:num_requests_running(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


class Window(Struct):
    """One window.

    ttft        seconds
    used, idle  sums of samples of sequences
    busy        share of a processor that the gateway took, that all else of the bench took, and of all processors that
                was taken by anything
    """

    batch: bool
    ttft: list[float] = field(default_factory=list)
    used: float = 0.0
    idle: float = 0.0
    busy: tuple[float, float, float] = (0.0, 0.0, 0.0)


class Fleet:
    """Redis, workers and a gateway. under_way: streams of clients."""

    def __init__(self, stack: ExitStack, scratch: Path, workers: int, at_once: int) -> None:
        measured, rest = cores()
        os.sched_setaffinity(0, rest)
        redis, self.port = free_port(), free_port()
        self.workers = [free_port() for _ in range(workers)]
        self.under_way = 0
        store = Process("redis", redis_command(scratch, redis), rest, scratch / "redis.log")
        stack.callback(store.stop)
        options = ["--slots", str(SLOTS), "--itl-ms", str(ITL_MS), "--prefill-us-per-token", str(PREFILL_US)]
        options += ["--prompts-at-once", str(at_once)]
        for port in self.workers:
            words = [sys.executable, "-m", "gateway.cli", "worker", "simulated", "--port", str(port), *options]
            worker = Process("worker", words, rest, scratch / f"worker{port}.log")
            stack.callback(worker.stop)
            worker.wait_ready(f"http://{HOST}:{port}/health")
        config = {
            "listen": {"port": self.port},
            "log": {"requests": False},
            "redis": {"addresses": [f"{HOST}:{redis}"]},
            "batches": {"directory": str(scratch / "files"), "max_in_flight": 1000},
            "models": {
                "sim": {"backend": "vllm", "workers": [f"http://{HOST}:{port}" for port in self.workers]},
            },
        }
        path = scratch / "gateway.yaml"
        path.write_text(yaml.safe_dump(config))
        words = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(path)]
        gateway = Process("gateway", words, measured, scratch / "gateway.log")
        stack.callback(gateway.stop)
        self._gateway = gateway.popen.pid
        gateway.wait_ready(f"http://{HOST}:{self.port}/readyz?model")
        self.url = f"http://{HOST}:{self.port}/v1"

    async def running(self, client: httpx.AsyncClient) -> float:
        """Sequences that the workers run now."""
        pages = [await client.get(f"http://{HOST}:{port}/metrics") for port in self.workers]
        found = [_RUNNING.search(page.content) for page in pages]
        return sum(float(one[1]) for one in found if one is not None)

    def cpu(self) -> tuple[float, float, float]:
        """Seconds of a processor so far: the gateway's, those of all else that the bench runs, and those of anything,
        divided by the number of processors."""
        # The bench's own tree has all others in it, the gateway too.
        gateway = cpu_seconds_now(self._gateway)
        # user, nice, system, idle, iowait, ...: proc(5)
        spent = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        taken = (sum(spent) - spent[3] - spent[4]) / TICK / (os.cpu_count() or 1)
        return gateway, cpu_seconds_now(os.getpid()) - gateway, taken


class Stream(asyncio.Protocol):
    """One client's request, by little code: what the client itself takes must not count."""

    def __init__(self, body: bytes) -> None:
        self._request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        self._request += b"content-length: %d\r\n\r\n%b" % (len(body), body)
        self._head = b""
        self.first = 0.0
        self.over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, not the class.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.first:
            self._head += data
            if b'"content"' in self._head:
                self.first = time.monotonic()
        if data.endswith(b"\r\n0\r\n\r\n"):
            self._transport.close()
            self._end(self._head.startswith(b"HTTP/1.1 200") and bool(self.first))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(False)

    def _end(self, good: bool) -> None:
        if not self.over.done():
            self.over.set_result(good)


async def stream(fleet: Fleet, window: Window, number: str) -> None:
    """One client's request, whose time to the first token counts in `window`."""
    body = {
        "model": "sim",
        "messages": [{"role": "user", "content": f"{number} {PROMPT}"}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    client = Stream(json.dumps(body).encode())
    fleet.under_way += 1
    began = time.monotonic()
    try:
        await asyncio.get_running_loop().create_connection(lambda: client, HOST, fleet.port)
        if not await client.over:
            raise BenchError("a stream failed")
        window.ttft.append(client.first - began)
    finally:
        fleet.under_way -= 1


async def run(fleet: Fleet, client: httpx.AsyncClient, window: Window, seconds: float, rate: float, seed: int) -> None:
    """One window of so many streams a second."""
    draw, began, before = random.Random(seed), time.monotonic(), fleet.cpu()
    tasks: set[asyncio.Task[None]] = set()
    sampling = asyncio.create_task(sample(fleet, client, window))
    due = 0.0
    while (due := due + draw.expovariate(rate)) < seconds:
        await asyncio.sleep(began + due - time.monotonic())
        Stopped.check()
        # A prompt comes once: the time makes it that of this window.
        tasks.add(asyncio.create_task(stream(fleet, window, f"{began} {due}")))
    passed = time.monotonic() - began
    gateway, others, all_ = (after - first for after, first in zip(fleet.cpu(), before, strict=True))
    window.busy = gateway / passed, others / passed, all_ / passed
    sampling.cancel()
    await asyncio.gather(*tasks)


async def sample(fleet: Fleet, client: httpx.AsyncClient, window: Window) -> None:
    while True:
        await asyncio.sleep(SAMPLE_S)
        running, clients = await fleet.running(client), fleet.under_way
        window.used += max(0.0, running - clients)
        window.idle += max(0.0, SLOTS * len(fleet.workers) - clients)


async def begin(fleet: Fleet, client: httpx.AsyncClient, lines: int) -> str:
    """A batch that outlasts a window."""
    draw, made = random.Random(1), []
    for number in range(lines):
        body = {
            "model": "sim",
            "messages": [{"role": "user", "content": f"{number} {LINE_PROMPT}"}],
            "max_tokens": draw.randint(*LINE_TOKENS),
            "ignore_eos": True,
        }
        made.append(
            json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body})
        )
    files = {"file": ("lines.jsonl", "\n".join(made).encode())}
    file = (await client.post(fleet.url + "/files", data={"purpose": "batch"}, files=files)).json()["id"]
    asked = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return str((await client.post(fleet.url + "/batches", json=asked)).json()["id"])


async def end(fleet: Fleet, client: httpx.AsyncClient, batch: str) -> None:
    await client.post(f"{fleet.url}/batches/{batch}/cancel")
    shown = f"{fleet.url}/batches/{batch}"
    while (await client.get(shown)).json()["status"] != "cancelled":  # noqa: ASYNC110 (it is announced nowhere)
        await asyncio.sleep(0.1)


async def windows(fleet: Fleet, options: argparse.Namespace) -> list[Window]:
    """Windows without and with a batch, in turns; each pair has the same arrivals."""
    capacity = SLOTS * options.workers
    rate = options.load * capacity / (TOKENS * ITL_MS / 1000)
    lines = int(capacity * (options.seconds + RAMP_S) / (LINE_TOKENS[0] * ITL_MS / 1000))
    found = []
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None)) as client:
        await run(fleet, client, Window(False), 5.0, rate, 0)
        for turn in range(2 * options.turns):
            window = Window(batch=turn % 2 == 1)
            batch = await begin(fleet, client, lines) if window.batch else ""
            if window.batch:
                await run(fleet, client, Window(True), RAMP_S, rate, -1)
            await run(fleet, client, window, options.seconds, rate, turn // 2)
            if batch:
                await end(fleet, client, batch)
            found.append(window)
    return found


def p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.batches", description="Clients beside a batch.")
    parser.add_argument("--workers", type=int, default=4, help="simulated workers (%(default)s)")
    parser.add_argument("--load", type=float, default=0.3, help="clients' share of the capacity (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a window (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="pairs of windows (%(default)s)")
    parser.add_argument("--prompts-at-once", type=int, default=SLOTS, help="of a worker (%(default)s: all)")
    options = parser.parse_args(arguments)
    Stopped.watch()
    try:
        with ExitStack() as stack, tempfile.TemporaryDirectory() as scratch:
            fleet = Fleet(stack, Path(scratch), options.workers, options.prompts_at_once)
            found = uvloop.run(windows(fleet, options))
    except BenchError as error:
        print(error, file=sys.stderr)
        return error.status if isinstance(error, Stopped) else 2
    rows = {
        name: [value for window in found if window.batch is batch for value in window.ttft]
        for name, batch in (("without a batch", False), ("with a batch", True))
    }
    for name, values in rows.items():
        median = statistics.median(values)
        print(f"{name:16} p50 {median * 1e3:7.1f} ms   p99 {p99(values) * 1e3:7.1f} ms   n={len(values)}")
    for turn in range(options.turns):
        one, other = found[2 * turn : 2 * turn + 2]
        gateway, others, all_ = (max(pair) for pair in zip(one.busy, other.busy, strict=True))
        print(f"pair {turn + 1}: p99 {p99(one.ttft) * 1e3:.1f} and {p99(other.ttft) * 1e3:.1f} ms", end="; ")
        print(
            f"busiest: gateway {gateway:.0%} of its processor, all else {others:.0%} of theirs, the machine {all_:.0%}"
        )
    without, beside = rows.values()
    slower = p99(beside) / p99(without) - 1
    idle = sum(window.idle for window in found if window.batch)
    used = sum(window.used for window in found if window.batch) / idle
    print(f"p99 of the first token: {slower:+.1%} with a batch (bound {MOST_SLOWER:+.0%})")
    print(f"idle capacity used: {used:.1%} (bound {LEAST_USED:.0%})")
    if max(max(window.busy) for window in found) > MOST_BUSY:
        print(
            f"A processor was busy for more than {MOST_BUSY:.0%}: these figures are not the gateway's.", file=sys.stderr
        )
        return 2
    return int(slower > MOST_SLOWER or used < LEAST_USED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
