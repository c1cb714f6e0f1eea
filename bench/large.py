"""`python -m bench.large`: large bodies read in a thread while an event loop goes round."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence

from gateway.core.http import Request
from gateway.dialects.openai import OpenAI
from gateway.offload import offload

CONNECTIONS = 50
"""Coroutines that are ready in each round of the loop, as those of busy connections are."""


def body(size: int, messages: int) -> bytes:
    text = "a" * (size // messages - 35)
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}] * messages}).encode()


async def read(content: bytes, seconds: float) -> tuple[int, float, float]:
    """Reads the body again and again. Returns the rounds of the loop meanwhile, the longest one and the fastest
    reading, both in milliseconds."""
    rounds, longest, before = 0, 0.0, time.perf_counter()
    ends = before + seconds

    async def connection() -> None:
        while time.perf_counter() < ends:  # noqa: ASYNC110 - it is what a busy connection does
            await asyncio.sleep(0)

    async def watch() -> None:
        nonlocal rounds, longest, before
        while (now := time.perf_counter()) < ends:
            rounds, longest, before = rounds + 1, max(longest, now - before), now
            await asyncio.sleep(0)

    others = asyncio.gather(watch(), *(connection() for _ in range(CONNECTIONS)))
    fastest = float("inf")
    while (began := time.perf_counter()) < ends:
        await offload(OpenAI().read, Request("POST", "/v1/chat/completions", [], content, route="chat"))
        fastest = min(fastest, time.perf_counter() - began)
    await others
    return rounds, longest * 1000, fastest * 1000


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.large", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args(arguments)
    for size, messages in ((600_000, 15_000), (400_000, 2)):
        rounds, longest, fastest = asyncio.run(read(body(size, messages), options.seconds))
        print(
            f"{size // 1000} KB of {messages:,} messages: read in {fastest:.0f} ms at least, {rounds:,} rounds in "
            f"{options.seconds:g} s, the longest {longest:.0f} ms"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
