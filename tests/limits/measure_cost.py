"""CPU that the limiter costs this process, by hand: `python -m tests.limits.measure_cost`. Not collected by pytest.

Closed loop of clients, each reserving and settling; three rules on every request. The cost is the process's CPU time
minus that of the same loop with a limiter that has no rules, so what the loop itself takes is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from gateway.limits import Cost, Limiter, MemoryStore, Rule, Store, Subject
from gateway.limits.store_redis import RedisStore
from tests.limits.server import Server

RULES = (
    Rule(name="rpm", kind="requests", limit=10**9, scope=("key",)),
    Rule(name="tpm", kind="tokens", limit=10**11, scope=("team",)),
    Rule(name="slots", kind="concurrency", limit=10**6, scope=("key", "model")),
)


async def rate(limiter: Limiter, clients: int, seconds: float, subjects: int, hold: float) -> tuple[float, float]:
    """(CPU microseconds a request, requests a second)"""
    count = 0
    until = time.perf_counter() + seconds
    cost = Cost(1000)

    async def client(number: int) -> None:
        nonlocal count
        subject = Subject(key=f"key{number % subjects}", team=f"team{number % subjects % 4}", model="m")
        while time.perf_counter() < until:
            lease = await limiter.reserve(subject, cost)
            await asyncio.sleep(hold)
            limiter.settle(lease, 100)
            count += 1

    cpu = time.process_time()
    await asyncio.gather(*(client(number) for number in range(clients)))
    return (time.process_time() - cpu) / count * 1e6, count / seconds


async def measure(store: Store, options: argparse.Namespace) -> None:
    for name, rules, one in (("none", (), MemoryStore()), (type(store).__name__, RULES, store)):
        limiter = Limiter(rules, one)
        await limiter.start()
        best = [await rate(limiter, options.clients, options.seconds, options.subjects, options.hold) for _ in range(3)]
        cpu, per_second = min(best)
        sys.stdout.write(f"{name:12s} {cpu:6.2f} us CPU a request, {per_second:8.0f} requests/s\n")
        await limiter.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--subjects", type=int, default=32, help="distinct keys among the clients")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--hold", type=float, default=0.0, help="seconds between reserve and settle")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, Server(Path(directory)) as server:
        uvloop.run(measure(MemoryStore(), options))
        uvloop.run(measure(RedisStore(server.settings), options))


if __name__ == "__main__":
    main()
