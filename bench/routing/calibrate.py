"""`python -m bench.routing.calibrate URL MODEL`: what a worker takes for a prompt and for a token, in the terms of the
simulated worker's timing model.

It is measured from the client's side, with prompts of random words that no cache holds, then with the same ones again.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import pairwise

import httpx
from msgspec import Struct

SIZES = (50, 150, 300, 450)
"""Words of the prompts."""
ROUNDS = 4
TOKENS = 32
"""Of the replies whose pace is measured."""
TOGETHER = 8


class Timing(Struct):
    """Milliseconds to the first token beside the number of prompt tokens, and between two tokens."""

    cold: list[tuple[int, float]]
    warm: list[tuple[int, float]]
    alone_ms: float
    together_ms: float

    @property
    def prefill_us(self) -> float:
        """Microseconds of a prompt token that is not cached: the slope of the line of least squares."""
        return slope(self.cold) * 1000

    @property
    def cached(self) -> float:
        """What a prompt token takes that the prefix cache holds, of one that it does not."""
        return slope(self.warm) / slope(self.cold)


def slope(points: Sequence[tuple[int, float]]) -> float:
    """Of the line of least squares."""
    return statistics.linear_regression(*zip(*points, strict=True)).slope


async def measure(url: str, model: str) -> Timing:
    """Raises httpx.HTTPError, ValueError for what is no stream with usage."""
    draw = random.Random(1)
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        await _ask(client, model, "warm up", 4)
        cold: list[tuple[int, float]] = []
        warm: list[tuple[int, float]] = []
        for _ in range(ROUNDS):
            for size in SIZES:
                prompt = " ".join("".join(draw.choices("abcdefghij", k=4)) for _ in range(size))
                for points in (cold, warm):
                    first, _, tokens = await _ask(client, model, prompt, 1)
                    points.append((tokens, first))
        _, alone, _ = await _ask(client, model, "Count to a hundred.", TOKENS)
        many = await asyncio.gather(
            *(_ask(client, model, f"Count from {number} on.", TOKENS) for number in range(TOGETHER))
        )
    return Timing(cold, warm, statistics.median(alone), statistics.median([gap for one in many for gap in one[1]]))


async def _ask(client: httpx.AsyncClient, model: str, prompt: str, tokens: int) -> tuple[float, list[float], int]:
    """(milliseconds to the first text, milliseconds between pieces, tokens of the prompt)."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0,
    }
    body["stream_options"] = {"include_usage": True}
    times = [time.perf_counter()]
    count = 0
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if '"prompt_tokens":' in line and not count:
                count = int(line.split('"prompt_tokens":')[1].split(",")[0])
            elif '"text":' in line:
                times.append(time.perf_counter())
    if len(times) < 2 or not count:
        raise ValueError(f"{client.base_url} sent no stream with usage")
    gaps = [(after - before) * 1000 for before, after in pairwise(times[1:])]
    return (times[1] - times[0]) * 1000, gaps, count


def main(arguments: Sequence[str]) -> int:
    """Prints the timing, and the flags of a simulated worker that keeps it. Returns the exit status."""
    if len(arguments) != 2:
        print("usage: python -m bench.routing.calibrate URL MODEL", file=sys.stderr)
        return 2
    found = asyncio.run(measure(*arguments))
    sizes = sorted({tokens for tokens, _ in found.cold})
    print(f"prompts of {sizes[0]} to {sizes[-1]} tokens, {len(found.cold)} of them, each twice")
    print(f"a token of a prompt: {found.prefill_us:.0f} µs; one that is cached: {found.cached:.2f} of that")
    print(f"between two tokens: {found.alone_ms:.1f} ms; of {TOGETHER} replies together: {found.together_ms:.1f} ms")
    print(f"flags: --prefill-us-per-token {found.prefill_us:.0f} --itl-ms {found.together_ms:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
