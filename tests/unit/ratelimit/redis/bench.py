"""A batcher whose clock stands still and whose link to Redis the test answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import msgpack

from gateway.config import Limit
from gateway.light_task import Promise
from gateway.ratelimit.model import ADMITTED, Plan, Settlement, Subject, Verdict
from gateway.ratelimit.plan import Layout, Plans
from gateway.ratelimit.redis.batcher import Batcher, Replica
from gateway.ratelimit.redis.call_deadlines import CallDeadlines
from gateway.ratelimit.redis.codec import ADMIT, BEAT, PROBE, SETTLE, Result
from gateway.ratelimit.redis.link import Link, OnAnswer
from gateway.ratelimit.window import Counted

PLAN: Plan = Plans([Limit(name="slots", kind="concurrency", limit=1)], Layout()).of(Subject("ann"))
ME = Replica(b"beats", "me", 17_500_000, 30_000_000)
GRANTED = Verdict(ADMITTED, 0, [Counted(0, 0, 0)])
RELEASE = [Settlement(0, 0, 0)]


class Held(Link):
    """A link whose calls wait to be answered."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[int, str]]] = []  # (code, holder) of each operation of each call
        self.deadlines: list[int] = []  # of the calls, in microseconds of the server's clock
        self.dropped = 0
        self.waiting: list[tuple[list[tuple[int, str]], OnAnswer]] = []

    def call(self, keys: Sequence[bytes], payload: bytes, answered: OnAnswer) -> None:
        deadline, *_, found = msgpack.decode(payload)
        ops = [(op[0], op[1]) for op in found]
        self.calls.append(ops)
        self.deadlines.append(deadline)
        self.waiting.append((ops, answered))

    def answer(self, now: int = 10**15, verdict: Verdict = GRANTED) -> None:
        """Grants all of the oldest call under way. now: microseconds of the server's clock."""
        assert self.waiting, "no call is under way"
        ops, heard = self.waiting.pop(0)
        answers = {ADMIT: verdict, BEAT: 1, PROBE: 1}
        heard(msgpack.encode([now, *(answers[code] for code, _ in ops if code in answers)]))

    def fail(self, answer: bytes | Exception) -> None:
        """Answers the oldest call under way with what is no verdict."""
        _, heard = self.waiting.pop(0)
        heard(answer)

    def drop(self) -> None:
        self.dropped += 1
        self.waiting.clear()


class Clock:
    """The running loop, with a time that is set and timers that are run by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        real = asyncio.get_running_loop()
        self.call_soon = real.call_soon
        self.create_future = real.create_future
        self.create_task = real.create_task

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., None], *words: Any) -> Any:
        due = (self.now + delay, partial(callback, *words))
        self.timers.append(due)
        return _Timer(self.timers, due)

    def run_until(self, moment: float) -> None:
        """Runs what is due up to `moment`, 100 being the beginning."""
        while due := sorted((timer for timer in self.timers if timer[0] <= moment + 1e-9), key=lambda timer: timer[0]):
            self.timers.remove(due[0])
            self.now = due[0][0]
            due[0][1]()
        self.now = moment


class _Timer:
    def __init__(self, timers: list[Any], due: Any) -> None:
        self._timers = timers
        self._due = due

    def cancel(self) -> None:
        if self._due in self._timers:
            self._timers.remove(self._due)


class Bench:
    """A started lane with a timeout of 50 ms."""

    def __init__(self) -> None:
        self.link = Held()
        self.batcher = Batcher(self.link, ME, 0.05, lambda: None, lambda plan, index: False)
        self.clock: Any = Clock()

    async def start(self) -> Bench:
        starting = asyncio.create_task(self.batcher.start())
        for _ in range(2):  # one that connects, one that measures the way
            await turns()
            self.link.answer()
        await starting
        self.link.calls.clear()
        self.batcher._loop = self.clock  # time goes by this clock
        self.batcher.deadlines = CallDeadlines(0.05)  # what was measured by the other clock counts no more
        return self

    def ask(self, holder: str) -> Promise[Result]:
        return self.batcher.ask(ADMIT, PLAN, (1,), holder)

    async def asked(self, holder: str = "a") -> Promise[Result]:
        """As `ask`; returns when whatever is to happen at once has happened."""
        waiting = self.ask(holder)
        await turns()
        return waiting

    async def granted(self, holder: str, took: float = 0.0) -> None:
        """Asks, and is answered after `took` seconds. The call asks nothing else, and is forgotten."""
        waiting = await self.asked(holder)
        assert [one for one in self.link.calls.pop() if one[0] != SETTLE] == [(ADMIT, holder)]
        self.clock.run_until(self.clock.now + took)
        self.link.answer()
        assert await waiting == GRANTED

    def settle(self, holder: str, needed: bool = True) -> None:
        self.batcher.post(SETTLE, PLAN, RELEASE, holder, needed)


async def turns() -> None:
    """Enough of them for whatever is to happen at once."""
    for _ in range(5):
        await asyncio.sleep(0)
