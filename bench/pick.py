"""`python -m bench.pick`: what it costs to read a prompt and to pick a worker, without any I/O.

Each figure of the first table is the median over rounds of conversations that were sent before, so that the index holds
them. The second table is that of short conversations in fleets of different sizes, each of them new: half of them with
a system prompt that all workers have, as many clients have one, and some requests under way. All of it is CPU time,
with that of giving the worker back. The third table is that of short conversations once the index has been sent so many
other prefixes, and the memory that these take.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from gateway.config import Breaker, Queue
from gateway.core.messages import Chat, Message, Text
from gateway.core.routing_facts import RoutingFacts
from gateway.fleet.pick import POLICIES
from gateway.fleet.pick.prefix import Prefix
from gateway.fleet.pool import Pool
from gateway.fleet.worker import Worker

WORKERS = 8
FLEETS = (1, 4, 16, 50, 200)
_UNDER_WAY = 40
_BATCH = 200
_KEYS = 4  # of a prompt of a thousand characters
SENT = (0, 10_000, 100_000, 1_000_000)
SHAPES = ((1_000, 2), (40_000, 10), (400_000, 2), (400_000, 40), (400_000, 200))
"""(characters, messages)"""


def conversation(draw: random.Random, size: int, messages: int) -> Chat:
    """A chat of about `size` characters."""
    each = size // messages
    roles = ["system", *["user", "assistant"] * messages][:messages]
    texts = ["".join(draw.choices("abcdefghijklmnop ", k=each)) for _ in roles]
    return Chat(
        model="m", messages=tuple(Message(role, (Text(text),)) for role, text in zip(roles, texts, strict=True))
    )


def pool(policy: str, count: int = WORKERS) -> Pool:
    """So many idle workers."""
    workers = [Worker(f"http://10.0.0.{number}:8000", Breaker(), None) for number in range(count)]
    for worker in workers:
        worker.ready = True
    return Pool(workers, POLICIES[policy](), Queue(), 0.5, clock=time.monotonic)


async def cost(policy: str, size: int, messages: int, rounds: int) -> tuple[float, int]:
    """Microseconds of one request, and of how many it was measured."""
    draw = random.Random(size + messages)
    fleet, taken = pool(policy), []
    ops = [conversation(draw, size, messages) for _ in range(20)]
    for _ in range(rounds + 1):
        began = time.process_time()
        for op in ops:
            routing = fleet.routing(op, [])
            fleet.release(await fleet.acquire((), 0, routing), routing)
        taken.append((time.process_time() - began) / len(ops))
    return statistics.median(taken[1:]) * 1e6, rounds * len(ops)


async def cost_after(sent: int, rounds: int) -> tuple[float, float]:
    """(microseconds of a short request to eight workers that were sent so many other prefixes, MiB that these take)."""
    draw, fleet, before = random.Random(sent), pool("prefix"), resident()
    policy = fleet.policy
    assert isinstance(policy, Prefix)
    for number in range(sent // _KEYS):
        policy.index.add([draw.getrandbits(63) for _ in range(_KEYS)], fleet.workers[number % WORKERS])
    kept, taken = resident() - before, []
    for _ in range(rounds + 1):
        ops = [conversation(draw, 1_000, 2) for _ in range(_BATCH)]
        began = time.process_time()
        for op in ops:
            routing = fleet.routing(op, [])
            fleet.release(await fleet.acquire((), 0, routing), routing)
        taken.append((time.process_time() - began) / _BATCH)
    return statistics.median(taken[1:]) * 1e6, kept / 2**20


def resident() -> int:
    """Bytes of this process in memory (proc(5), statm)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def cost_among(policy: str, count: int, rounds: int) -> float:
    """Microseconds of a short request to a fleet of so many workers, without reading its prompt."""
    draw, fleet, taken = random.Random(count), pool(policy, count), []
    under_way: deque[tuple[Worker, RoutingFacts]] = deque()
    system = conversation(draw, 3_000, 1).messages
    for _ in range(rounds + 1):
        ops = [conversation(draw, 600, 2) for _ in range(_BATCH)]
        for op in ops[1::2]:
            op.messages = (*system, *op.messages[1:])
        routings, began = [fleet.routing(op, []) for op in ops], time.process_time()
        for routing in routings:
            under_way.append((await fleet.acquire((), 0, routing), routing))
            if len(under_way) > _UNDER_WAY:
                fleet.release(*under_way.popleft())
        taken.append((time.process_time() - began) / _BATCH)
    return statistics.median(taken[1:]) * 1e6


def main(arguments: Sequence[str]) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.pick", description="What a pick costs.")
    parser.add_argument("--rounds", type=int, default=50, help="how often each conversation is sent")
    options = parser.parse_args(arguments)
    print("| policy | characters | messages | µs | n |\n|---|--:|--:|--:|--:|")
    for policy in POLICIES:
        for size, messages in SHAPES:
            taken, number = asyncio.run(cost(policy, size, messages, options.rounds))
            print(f"| {policy} | {size:,} | {messages} | {taken:.1f} | {number} |")
    print("\n| µs of a pick alone, by workers |", " | ".join(map(str, FLEETS)), "|\n|---|" + "--:|" * len(FLEETS))
    for policy in POLICIES:
        figures = [asyncio.run(cost_among(policy, count, options.rounds)) for count in FLEETS]
        print(f"| {policy} |", " | ".join(f"{figure:.1f}" for figure in figures), "|")
    print("\n| prefixes sent before | µs | MiB that they take |\n|--:|--:|--:|")
    for sent in SENT:
        taken, kept = asyncio.run(cost_after(sent, options.rounds))
        print(f"| {sent:,} | {taken:.1f} | {kept:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
