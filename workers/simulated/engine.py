"""The timing model: batch slots, a first-come queue, KV blocks, a prefix cache, prefill and decode steps.

Like vLLM's scheduler it admits in order of arrival while a slot and blocks are free, prefills prompts one after another
at a fixed rate, and steps all running sequences together. Blocks for the whole reply are taken at admission, so nothing
is preempted. With all times 0 a request passes through without a turn of the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from workers.simulated import tokenizer
from workers.simulated.options import Options

if TYPE_CHECKING:
    from workers.simulated.kv_events import Event, Publisher

BLOCK = 16
_BLOCK_CHARS = BLOCK * tokenizer.CHARS


def chain(prompt: str, salt: str = "") -> list[int]:
    """The keys of a prompt's whole blocks, each depending on all text before it."""
    if prompt.isascii():
        parts = [prompt[i : i + _BLOCK_CHARS] for i in range(0, len(prompt) - _BLOCK_CHARS + 1, _BLOCK_CHARS)]
    else:
        pieces = tokenizer.split(prompt)
        parts = ["".join(pieces[i : i + BLOCK]) for i in range(0, len(pieces) - BLOCK + 1, BLOCK)]
    keys = []
    key = hash(salt)
    for part in parts:
        key = hash((key, part))
        keys.append(key)
    return keys


class Read(NamedTuple):
    """What events tell of a prompt: its tokens, and what keeps it apart."""

    tokens: Sequence[int]
    salt: str
    adapter: str


class Job(Protocol):
    """One request on the engine.

    weight: sequences; need: tokens of prompt and reply together; uncached: prompt tokens to compute; scheduled: when it
    left the queue, `time.monotonic()` seconds.
    """

    weight: int
    need: int
    uncached: int
    scheduled: float

    def prefilled(self) -> None:
        """The first token is due."""

    def step(self) -> bool:
        """The next token is due; False when there is none left to ask for."""


class Full(Exception):
    """The queue is at its limit."""


class Engine:
    """Slots, blocks and the clock of one worker."""

    def __init__(self, options: Options, loop: asyncio.AbstractEventLoop) -> None:
        self.options = options
        self.loop = loop
        self.running = 0
        self.queue: deque[Job] = deque()
        self.blocks = 0
        self.held: dict[Job, int] = {}
        self.prefix: dict[int, None] = {}
        self.publisher: Publisher | None = None
        self.queries = self.hits = self.rejections = 0
        self.prefill_free = 0.0
        self.timers: dict[Job, asyncio.TimerHandle] = {}
        self.decoding: dict[Job, None] = {}
        self.stalled: dict[Job, Callable[[], None]] = {}
        self.ticking: asyncio.Handle | None = None
        self.next_tick = 0.0
        self.itl = options.itl_ms / 1000

    @property
    def usage(self) -> float:
        """Share of the KV blocks in use, 0 to 1."""
        return min(1.0, self.blocks / self.options.kv_blocks)

    def cached(self, blocks: list[int], tokens: int, read: Read | None = None) -> int:
        """How many leading tokens of a prompt the prefix cache holds; its `blocks` (see `chain`) are then in it. With
        `read`, what comes and goes is published.

        As in vLLM only whole blocks count, and the last token is always computed.
        """
        if not self.options.prefix_cache:
            return 0
        prefix = self.prefix
        hits = 0
        for block in blocks:
            if block not in prefix:
                break
            hits += 1
        if hits < len(blocks) or 2 * len(prefix) > self.options.kv_blocks:
            publisher = self.publisher if read is not None else None
            new = [index for index in range(hits, len(blocks)) if blocks[index] not in prefix] if publisher else []
            for block in blocks:
                prefix.pop(block, None)  # put back as the youngest
                prefix[block] = None
            gone = []
            while len(prefix) > self.options.kv_blocks:
                gone.append(next(iter(prefix)))
                del prefix[gone[-1]]
            if publisher is not None and read is not None:
                self._publish(publisher, blocks, new, gone, read)
        hit = min(hits * BLOCK, (tokens - 1) // BLOCK * BLOCK) if tokens else 0
        self.queries += tokens
        self.hits += hit
        return hit

    @staticmethod
    def _publish(publisher: Publisher, blocks: list[int], new: list[int], gone: list[int], read: Read) -> None:
        events: list[Event] = []
        for index in new:
            parent = blocks[index - 1] if index else None
            tokens = read.tokens[index * BLOCK : (index + 1) * BLOCK]
            events.append(publisher.stored(blocks[index], parent, tokens, BLOCK, read.salt, read.adapter))
        events += map(publisher.removed, gone)
        if events:
            publisher.publish(events)

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
        if not self.running:
            return True
        blocks = (job.need + BLOCK - 1) // BLOCK
        return self.running + job.weight <= self.options.slots and self.blocks + blocks <= self.options.kv_blocks

    def _start(self, job: Job) -> None:
        self.running += job.weight
        job.scheduled = time.monotonic()
        self.held[job] = blocks = (job.need + BLOCK - 1) // BLOCK
        self.blocks += blocks
        cost = job.uncached * self.options.prefill_us_per_token * 1e-6
        if not cost:
            job.prefilled()
            return
        now = self.loop.time()
        self.prefill_free = max(now, self.prefill_free) + cost
        self.timers[job] = self.loop.call_at(self.prefill_free, self._prefilled, job)

    def _prefilled(self, job: Job) -> None:
        self.timers.pop(job, None)
        job.prefilled()

    def decode(self, job: Job) -> None:
        """Step the job at every tick from now on."""
        self.decoding[job] = None
        if self.ticking is None:
            self.next_tick = self.loop.time() + self.itl
            self.ticking = self.loop.call_at(self.next_tick, self._due)

    def _due(self) -> None:
        """The time of a tick has come. A reader in this loop first has what the last one sent, however late the loop
        is: the turn after next begins when all that had come by now is read."""
        self.ticking = self.loop.call_soon(self._read)

    def _read(self) -> None:
        self.ticking = self.loop.call_soon(self._tick)

    def _tick(self) -> None:
        if not self.decoding:
            self.ticking = None
            return
        # From the last tick, so that the pace does not drift; but a late loop does not catch up in a burst.
        self.next_tick = max(self.next_tick + self.itl, self.loop.time())
        self.ticking = self.loop.call_at(self.next_tick, self._due)
        for job in list(self.decoding):
            if job in self.decoding and not job.step():
                self.decoding.pop(job, None)

    def after(self, job: Job, seconds: float) -> None:
        """Call the job's `step` once, later."""
        self.timers[job] = self.loop.call_later(seconds, self._later, job)

    def _later(self, job: Job) -> None:
        self.timers.pop(job, None)
        job.step()

    def hurry(self, itl: float) -> None:
        """Make the next tokens now, and all others at this pace."""
        self.itl = itl
        if self.ticking is not None:
            self.ticking.cancel()
            self.next_tick = self.loop.time()
            self._tick()

    def go_on(self) -> None:
        """End the silence of all jobs that stall for ever."""
        stalled, self.stalled = self.stalled, {}
        for wake in stalled.values():
            wake()

    def release(self, job: Job) -> None:
        """The job ended, or its client left: free what it holds and admit others. A second call does nothing."""
        if job in self.held:
            self.blocks -= self.held.pop(job)
            self.running -= job.weight
            self.decoding.pop(job, None)
            self.stalled.pop(job, None)
            if timer := self.timers.pop(job, None):
                timer.cancel()
        elif job in self.queue:
            self.queue.remove(job)
        while self.queue and self._fits(self.queue[0]):
            self._start(self.queue.popleft())

    def forget(self) -> None:
        """Empty the prefix cache."""
        self.prefix.clear()
        if self.publisher is not None:
            self.publisher.publish([self.publisher.cleared])

    def close(self) -> None:
        """Forget everything; no timer fires after this."""
        if self.publisher is not None:
            self.publisher.close()
            self.publisher = None
        self.queue.clear()
        for timer in self.timers.values():
            timer.cancel()
        self.timers.clear()
        self.decoding.clear()
        self.stalled.clear()
        if self.ticking is not None:
            self.ticking.cancel()
            self.ticking = None
