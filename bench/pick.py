"""`python -m bench.pick`: what it costs to read a prompt and to pick one of eight workers, without any I/O.

Each figure is the median over conversations that were sent before, so that the index holds them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence

from gateway.config import Breaker, Queue
from gateway.core.messages import Chat, Message, Text
from gateway.fleet.pick import POLICIES
from gateway.fleet.pool import Pool
from gateway.fleet.worker import Worker

WORKERS = 8
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


def pool(policy: str) -> Pool:
    """Eight idle workers."""
    workers = [Worker(f"http://10.0.0.{number}:8000", Breaker(), None) for number in range(WORKERS)]
    for worker in workers:
        worker.ready = True
    return Pool(workers, POLICIES[policy](), Queue(), 0.5, clock=time.monotonic)


async def cost(policy: str, size: int, messages: int, rounds: int) -> tuple[float, int]:
    """Microseconds of one request, and over how many that is the median."""
    draw = random.Random(size + messages)
    fleet, taken = pool(policy), []
    ops = [conversation(draw, size, messages) for _ in range(20)]
    for turn in range(rounds + 1):
        for op in ops:
            before = time.perf_counter()
            routing = fleet.routing(op, [])
            worker = await fleet.acquire((), 0, routing)
            after = time.perf_counter()
            fleet.release(worker, routing)
            if turn:
                taken.append(after - before)
    return statistics.median(taken) * 1e6, len(taken)


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
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
