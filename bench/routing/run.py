"""One subject on eight fresh workers: sends a trace and takes what became of it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence

import httpx
from msgspec import Struct

from bench.process import BenchError
from bench.replies import MODEL
from bench.routing.traces import Conversation, Turn
from tests.support.simulated.server import Simulated

WORKERS = 8
PREFILL_US = 150.0
"""For a prompt token that is not cached: 6,700 tokens a second."""
ITL_MS = 12.0
SLOTS = 24
KV_BLOCKS = 3_072
"""Of 16 tokens: a worker holds 49,152 tokens, running and cached; the trace has more."""


class Figures(Struct):
    """What one subject made of the trace.

    hits      cached prompt tokens, as a share of all
    first_ms  milliseconds from asking to the first text, sorted
    work      tokens that the busiest worker computed (of prompts what was not cached, and replies), beside the mean
    busiest   requests of the worker that had most, beside the mean
    """

    name: str
    requests: int
    hits: float
    first_ms: list[float]
    work: float
    busiest: float

    def percentile(self, share: float) -> float:
        """Milliseconds."""
        return self.first_ms[min(len(self.first_ms) - 1, int(share * len(self.first_ms)))]


def fleet(kv_blocks: int = KV_BLOCKS, telling: bool = False) -> list[Simulated]:
    """Eight workers, not started. telling: they publish what they cache."""
    return [
        Simulated(
            models=(MODEL,),
            prefill_us_per_token=PREFILL_US,
            itl_ms=ITL_MS,
            slots=SLOTS,
            kv_blocks=kv_blocks,
            kv_events_port=0 if telling else None,
            max_model_len=32_768,
            ledger=100_000,
        )
        for _ in range(WORKERS)
    ]


async def play(name: str, urls: Sequence[str], workers: Sequence[Simulated], trace: Sequence[Conversation]) -> Figures:
    """Sends every conversation to `urls` in turn, as gateways behind a load balancer get it. Raises BenchError for a
    request that fails."""
    for worker in workers:
        worker.reset()
    turn = itertools.cycle(urls)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
    async with httpx.AsyncClient(timeout=120, trust_env=False, limits=limits) as client:
        began = time.perf_counter()
        taken = await asyncio.gather(*(_converse(client, turn, one, began) for one in trace))
    entries = [worker.entries for worker in workers]
    everything = [entry for one in entries for entry in one]
    work = [sum(entry.prompt_tokens - entry.cached_tokens + entry.tokens for entry in one) for one in entries]
    return Figures(
        name,
        len(everything),
        sum(entry.cached_tokens for entry in everything) / sum(entry.prompt_tokens for entry in everything),
        sorted(itertools.chain.from_iterable(taken)),
        max(work) * len(work) / sum(work),
        max(map(len, entries)) * len(entries) / len(everything),
    )


async def _converse(client: httpx.AsyncClient, turn: Iterator[str], one: Conversation, began: float) -> list[float]:
    await asyncio.sleep(began + one.begins_s - time.perf_counter())
    taken = []
    for request in one.turns:
        await asyncio.sleep(request.wait_s)
        taken.append(await _ask(client, next(turn), request))
    return taken


async def _ask(client: httpx.AsyncClient, url: str, request: Turn) -> float:
    """Milliseconds to the first text."""
    body = {
        "model": MODEL,
        "messages": request.messages,
        "max_tokens": request.output,
        "ignore_eos": True,
        "stream": True,
    }
    first = 0.0
    sent = time.perf_counter()
    async with client.stream("POST", url + "/v1/chat/completions", json=body) as reply:
        if reply.status_code != 200:
            raise BenchError(f"{url} answered {reply.status_code}: {(await reply.aread())[:300]!r}")
        done = False
        async for block in reply.aiter_raw():
            if not first and b'"content":" ' in block:
                first = time.perf_counter()
            done = done or b"[DONE]" in block
    if not done or not first:
        raise BenchError(f"{url} ended a stream early")
    return (first - sent) * 1000
