"""What the limiter costs, by hand: `python -m tests.unit.ratelimit.measure_cost`. Not collected by pytest.

CPU of this process: three rules on every request, each reserved and settled. The cost is the process's CPU time minus
that of the same loop with a limiter that has no rules, so what the loop itself takes is not counted. Without `--rate`
the loop is closed: each client asks again as soon as it has settled. With it, requests come at random moments, in the
mean that many a second, and what counts is how long their admission took.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from gateway.config import Limit, Redis
from gateway.core.estimate import Cost
from gateway.core.usage import Usage
from gateway.ratelimit import Subject, SubjectLimiter
from gateway.ratelimit.memory import MemoryStore
from gateway.ratelimit.redis import batcher
from gateway.ratelimit.redis.store import RedisStore
from gateway.ratelimit.store import Store
from gateway.redis import Servers, connect
from gateway.redis.connection import frame
from tests.support.redis_server import Server

RULES = (
    Limit(name="rpm", kind="requests", limit=10**9, scope=("key",)),
    Limit(name="tpm", kind="tokens", limit=10**11, scope=("team",)),
    Limit(name="slots", kind="concurrency", limit=10**6, scope=("key", "model")),
)


class Round:
    """One round of `options.seconds`. waits: seconds that each admission took."""

    def __init__(self, limiter: SubjectLimiter, options: argparse.Namespace) -> None:
        self.limiter = limiter
        self.options = options
        self.waits: list[float] = []
        self.until = time.perf_counter() + options.seconds

    async def run(self) -> float:
        """CPU microseconds a request."""
        cpu = time.process_time()
        if self.options.rate:
            await self.arrivals()
        else:
            await asyncio.gather(*(self.client(number) for number in range(self.options.clients)))
        return (time.process_time() - cpu) / len(self.waits) * 1e6

    async def client(self, number: int) -> None:
        while time.perf_counter() < self.until:
            await self.request(number)

    async def arrivals(self) -> None:
        running: set[asyncio.Task[None]] = set()
        due, number = time.perf_counter(), 0
        while due < self.until:
            due += random.expovariate(self.options.rate)
            number += 1
            # The loop's timers are too coarse to sleep by.
            while time.perf_counter() < due:  # noqa: ASYNC110 - there is no event, only the time
                await asyncio.sleep(0)
            task = asyncio.create_task(self.request(number))
            running.add(task)
            task.add_done_callback(running.discard)
        if running:
            await asyncio.wait(running)

    async def request(self, number: int) -> None:
        subject = Subject(key=f"key{number % self.options.subjects}", team=f"team{number % 4}", model="m")
        asked = time.perf_counter()
        lease = await self.limiter.reserve(subject, Cost(1000))
        self.waits.append(time.perf_counter() - asked)
        await asyncio.sleep(self.options.hold)
        self.limiter.settle(lease, Usage(0, 100))


async def measure(store: Store, options: argparse.Namespace) -> None:
    for name, rules, one in (("none", (), MemoryStore()), (type(store).__name__, RULES, store)):
        limiter = SubjectLimiter(rules, one)
        await limiter.start()
        cpu, waits = float("inf"), list[float]()
        for _ in range(3):
            each = Round(limiter, options)
            if (used := await each.run()) < cpu:
                cpu, waits = used, sorted(each.waits)
        half, most = (waits[len(waits) * share // 100] * 1000 for share in (50, 99))
        spent = "" if options.rate else f"{cpu:6.2f} us CPU a request, "
        sys.stdout.write(
            f"{name:12s} {spent}{len(waits) / options.seconds:8.0f} requests/s, "
            f"admitted within {half:.2f} ms (half), {most:.2f} ms (99 %)\n"
        )
        await limiter.close()


async def round_trips(settings: Redis, calls: int) -> None:
    """CPU of one call and its answer, nothing else: by redis-py's public interface, and by our own connection."""
    pool = connect(settings).connection_pool
    theirs = await pool.get_connection()
    packed = frame((b"ECHO", b"x" * 200))
    cpu = time.process_time()
    for _ in range(calls):
        await theirs.send_packed_command(packed)
        await theirs.read_response()
    used = {"redis-py": time.process_time() - cpu}
    await theirs.disconnect()
    answered: asyncio.Future[bytes | Exception] = asyncio.get_running_loop().create_future()

    def hear(answer: bytes | Exception) -> None:
        answered.set_result(answer)

    ours = await Servers(settings).open(b"key", hear, hear)
    cpu = time.process_time()
    for _ in range(calls):
        answered = asyncio.get_running_loop().create_future()
        ours.write(packed)
        await answered
    used["ours"] = time.process_time() - cpu
    ours.close()
    for name, seconds in used.items():
        sys.stdout.write(f"{name:12s} {seconds / calls * 1e6:6.2f} us CPU a call and its answer\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--subjects", type=int, default=32, help="distinct keys among the clients")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--hold", type=float, default=0.0, help="seconds between reserve and settle")
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second at random moments; 0: closed loop")
    parser.add_argument("--pace", type=float, default=batcher.PACE, help="seconds between calls in a crowd")
    parser.add_argument("--connection", action="store_true", help="one round trip alone, by redis-py and by ours")
    options = parser.parse_args()
    batcher.PACE = options.pace
    with tempfile.TemporaryDirectory() as directory, Server(Path(directory)) as server:
        if options.connection:
            uvloop.run(round_trips(server.settings, 20_000))
            return
        uvloop.run(measure(MemoryStore(), options))
        uvloop.run(measure(RedisStore(server.settings), options))


if __name__ == "__main__":
    main()
