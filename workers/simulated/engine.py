"""The timing model: batch slots, a first-come queue, KV blocks, a prefix cache, prefill and decode steps.

Like vLLM's scheduler it admits in order of arrival while a slot and blocks are free, prefills prompts one after another
(or a few at once, by option) at a fixed rate, and steps all running sequences together. Blocks for the whole reply are
taken at admission, so nothing is preempted. With all times 0 a request passes through without a turn of the loop.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import deque
from typing import Protocol

from msgspec import Struct

from workers.simulated import tokenizer
from workers.simulated.options import Options

BLOCK = 16


def chain(prompt: str, salt: str = "") -> list[int]:
    """The keys of a prompt's whole blocks, each depending on all text before it."""
    if prompt.isascii():
        size = BLOCK * tokenizer.CHARS
        parts = [prompt[at : at + size] for at in range(0, len(prompt) - size + 1, size)]
    else:
        pieces = tokenizer.split(prompt)
        parts = ["".join(pieces[at : at + BLOCK]) for at in range(0, len(pieces) - BLOCK + 1, BLOCK)]
    return list(itertools.accumulate(parts, lambda key, part: hash((key, part)), initial=hash(salt)))[1:]


class Entry(Struct, gc=False):
    """Times of one request, `time.monotonic()` seconds, and its tokens: made so far, of the prompt, and cached ones."""

    started: float
    first_token: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Job(Protocol):
    """One request on the engine.

    weight: sequences; need: tokens of prompt and reply together; uncached: prompt tokens to compute; scheduled: when it
    left the queue, `time.monotonic()` seconds.
    """

    weight: int
    need: int
    uncached: int
    scheduled: float

    @property
    def entry(self) -> Entry: ...

    def prefilled(self) -> None:
        """The first token is due."""

    def step(self) -> bool:
        """The next token is due; False when there is none left to ask for."""


class Full(Exception):
    """The queue is at its limit."""


class Engine:
    """Slots, blocks and the clock of one worker. queries, hits: prompt tokens sought in the prefix cache, and found."""

    def __init__(self, options: Options, loop: asyncio.AbstractEventLoop) -> None:
        self.options = options
        self.loop = loop
        self.running = self.blocks = self.queries = self.hits = self.rejections = 0
        self.queue: deque[Job] = deque()
        self.held: dict[Job, int] = {}
        self.prefix: dict[int, None] = {}
        self.prefill_free = [0.0] * options.prompts_at_once
        self.next_tick = 0.0
        self.timers: dict[Job, asyncio.TimerHandle] = {}
        self.decoding: dict[Job, None] = {}
        self.ticking: asyncio.Handle | None = None
        self.itl = options.itl_ms / 1000

    def cached(self, blocks: list[int], tokens: int) -> int:
        """How many leading tokens of a prompt the prefix cache holds; its `blocks` (see `chain`) are then in it.
        As in vLLM only whole blocks count, and the last token is always computed."""
        if not self.options.prefix_cache:
            return 0
        hits = next((at for at, block in enumerate(blocks) if block not in self.prefix), len(blocks))
        if hits < len(blocks) or 2 * len(self.prefix) > self.options.kv_blocks:
            self.remember(blocks)
        hit = min(hits * BLOCK, (tokens - 1) // BLOCK * BLOCK) if tokens else 0
        self.queries += tokens
        self.hits += hit
        return hit

    def remember(self, blocks: list[int]) -> list[int]:
        """Put blocks into the prefix cache, as its youngest. Returns those that had to go."""
        for block in blocks:
            self.prefix.pop(block, None)
            self.prefix[block] = None
        gone = list(itertools.islice(self.prefix, max(0, len(self.prefix) - self.options.kv_blocks)))
        for block in gone:
            del self.prefix[block]
        return gone

    def submit(self, job: Job) -> bool:
        """Run the job now (True) or queue it (False). Raises Full."""
        if not self.queue and self._fits(job):
            self._start(job)
            return True
        limit = self.options.queue_limit
        if limit is not None and len(self.queue) >= limit:
            self.rejections += 1
            raise Full
        self.queue.append(job)
        return False

    def _fits(self, job: Job) -> bool:
        left = self.options.kv_blocks - self.blocks - (job.need + BLOCK - 1) // BLOCK
        return not self.running or (self.running + job.weight <= self.options.slots and left >= 0)

    def _start(self, job: Job) -> None:
        self.running += job.weight
        job.scheduled = time.monotonic()
        self.held[job] = blocks = (job.need + BLOCK - 1) // BLOCK
        self.blocks += blocks
        cost = job.uncached * self.options.prefill_us_per_token * 1e-6
        if cost:
            due = max(self.loop.time(), self.prefill_free[0]) + cost
            heapq.heapreplace(self.prefill_free, due)
            self.timers[job] = self.loop.call_at(due, self._prefilled, job)
        else:
            job.prefilled()

    def _prefilled(self, job: Job) -> None:
        self.timers.pop(job, None)
        job.prefilled()

    def decode(self, job: Job) -> None:
        """Step the job at every tick from now on."""
        self.decoding[job] = None
        if self.ticking is None:
            self.next_tick = self.loop.time() + self.itl
            self.ticking = self.loop.call_at(self.next_tick, self.tick)

    def tick(self) -> None:
        """Step all running sequences."""
        if not self.decoding:
            self.ticking = None
            return
        # From the last tick, so that the pace does not drift; but a late loop does not catch up in a burst.
        self.next_tick = max(self.next_tick + self.itl, self.loop.time())
        self.ticking = self.loop.call_at(self.next_tick, self.tick)
        for job in list(self.decoding):
            if job in self.decoding and not job.step():
                self.decoding.pop(job, None)

    def release(self, job: Job) -> None:
        """The job ended, or its client left: free what it holds and admit others. A second call does nothing."""
        if job in self.held:
            self.blocks -= self.held.pop(job)
            self.running -= job.weight
            self.decoding.pop(job, None)
            if timer := self.timers.pop(job, None):
                timer.cancel()
        elif job in self.queue:
            self.queue.remove(job)
        while self.queue and self._fits(self.queue[0]):
            self._start(self.queue.popleft())
