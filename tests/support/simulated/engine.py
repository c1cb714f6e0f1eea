"""The engine with what tests need: it publishes its prefix cache, stalls, hangs, and hurries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from workers.simulated import engine
from workers.simulated.engine import BLOCK, Full, Job, chain
from workers.simulated.options import Options

if TYPE_CHECKING:
    from tests.support.simulated.kv_events import Event, Publisher

__all__ = ["BLOCK", "Engine", "Full", "Job", "Read", "chain"]


class Read(NamedTuple):
    """What events say of a prompt: its tokens, and what keeps it apart."""

    tokens: Sequence[int]
    salt: str
    adapter: str


class Engine(engine.Engine):
    """publisher: of the events of the prefix cache; stalled: jobs that are silent until `go_on`; hung: nothing is
    computed, see `hang`."""

    def __init__(self, options: Options, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(options, loop)
        self.publisher: Publisher | None = None
        self.stalled: dict[Job, Callable[[], None]] = {}
        self._read: Read | None = None
        self.hung = False
        self._late: dict[Job, Callable[[Job], None]] = {}

    def hang(self, hung: bool) -> None:
        """Stops the engine as a core that is stuck behind a server that lives, or lets it go on."""
        self.hung = hung
        if hung:
            return
        late, self._late = self._late, {}
        for job, then in late.items():
            if job in self.held:
                then(job)
        while self.queue and self._fits(self.queue[0]):
            self._start(self.queue.popleft())
        if self.ticking is not None:
            super().tick()

    def _fits(self, job: Job) -> bool:
        return not self.hung and super()._fits(job)

    def _prefilled(self, job: Job) -> None:
        if self.hung:
            self._late[job] = self._prefilled
        else:
            super()._prefilled(job)

    @property
    def usage(self) -> float:
        """Share of the KV blocks in use, 0 to 1."""
        return min(1.0, self.blocks / self.options.kv_blocks)

    def cached(self, blocks: list[int], tokens: int, read: Read | None = None) -> int:
        """With `read`, what comes and goes is published."""
        self._read = read
        return super().cached(blocks, tokens)

    def remember(self, blocks: list[int]) -> list[int]:
        read, publisher = self._read, self.publisher
        if publisher is None or read is None:
            return super().remember(blocks)
        new = [index for index, block in enumerate(blocks) if block not in self.prefix]
        gone = super().remember(blocks)
        events: list[Event] = []
        for index in new:
            parent = blocks[index - 1] if index else None
            tokens = read.tokens[index * BLOCK : (index + 1) * BLOCK]
            events.append(publisher.stored(blocks[index], parent, tokens, BLOCK, read.salt, read.adapter))
        events += map(publisher.removed, gone)
        if events:
            publisher.publish(events)
        return gone

    def tick(self) -> None:
        """A reader in this loop first has what the last tick sent, however late the loop is: the turn after next begins
        when all that had come by now is read."""
        self.ticking = self.loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        if not self.hung:  # else `hang` goes on
            self.ticking = self.loop.call_soon(super().tick)

    def after(self, job: Job, seconds: float) -> None:
        """Call the job's `step` once, later."""
        self.timers[job] = self.loop.call_later(seconds, self._later, job)

    def _later(self, job: Job) -> None:
        self.timers.pop(job, None)
        if self.hung:
            self._late[job] = self._later
        else:
            job.step()

    def hurry(self, itl: float) -> None:
        """Make the next tokens now, and all others at this pace."""
        self.itl = itl
        if self.ticking is not None:
            self.ticking.cancel()
            self.next_tick = self.loop.time()
            super().tick()

    def go_on(self) -> None:
        """End the silence of all jobs that stall for ever."""
        stalled, self.stalled = self.stalled, {}
        for wake in stalled.values():
            wake()

    def release(self, job: Job) -> None:
        if job in self.held:
            self.stalled.pop(job, None)
        super().release(job)

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
        timers = [self.ticking, *self.timers.values()]
        self.ticking = None
        for jobs in (self.stalled, self.queue, self.timers, self.decoding):
            jobs.clear()
        for timer in timers:
            if timer is not None:
                timer.cancel()
