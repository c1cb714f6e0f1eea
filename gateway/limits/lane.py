"""One stream of script calls to one hash slot: batching, the deadline, the breaker. Knows nothing of redis.

At most one call is under way. What is asked meanwhile goes with the next one, so the operations of one loop turn, and
under load those of one round trip, share a call. An operation never waits longer than `timeout` in all: when a call
fails, everything that queued behind it fails with it.

Breaker.  closed: calls go out. `FAILURES` failed calls in a row open it. open: nothing goes out, `admit` raises at
once, settlements are kept. A probe in the background (half-open) asks every `PROBE_EVERY`; two prompt answers in a
row close it again and the kept settlements go first.

A call that timed out may still run when the server wakes. It is never sent again. Its admissions carry a deadline in
the server's clock and do nothing after it, so at most a request that the server decided in time, and whose answer was
lost, stays charged: its rates slide out of their windows, its slots expire with their lease. Settlements have no
deadline, as they are right whenever they run.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Future, Task
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import uniform
from time import monotonic
from typing import Any

from gateway.limits.batch import ADMIT, BEAT, SETTLE, Item, answered, only_releases, pack, unpack
from gateway.limits.model import Plan, Verdict
from gateway.limits.store import StoreDown

FAILURES = 2
PROBE_EVERY = 0.5
PROBE_CONNECT = 1.0
BATCH = 256
KEPT = 20_000
_NO_PLAN = Plan((), (), ())

Call = Callable[[Sequence[bytes], bytes], Awaitable[bytes]]
"""Runs the script with these keys and this payload. Raises `Unsent` when it certainly did not run, or anything else."""


class Unsent(Exception):
    """The call never reached the server."""


class Lane:
    """key is the lane's heartbeat counter, me this process's name in it; timeout in seconds."""

    def __init__(
        self, call: Call, key: bytes, me: str, timeout: float, beat_ttl: float, changed: Callable[[], None]
    ) -> None:
        self.up = False
        self.reason = "not started"
        self.replicas = 1
        self.lease_ttl = 30_000_000
        self._call = call
        self._key = key
        self._me = me
        self._timeout = timeout
        self._beat_ttl = round(beat_ttl * 1_000_000)
        self._changed = changed
        self._queue: deque[Item] = deque()
        self._kept: deque[Item] = deque(maxlen=KEPT)
        self._pump: Task[None] | None = None
        self._probe: Task[None] | None = None
        self._failures = 0
        self._jumped = False
        self._offset: int | None = None
        self._loop = asyncio.get_running_loop()

    def ask(self, code: int, plan: Plan, what: Sequence[Any], lease: str = "") -> Future[Verdict]:
        """Queues an operation that has an answer. Raises `StoreDown` at once while the breaker is open."""
        if not self.up:
            raise StoreDown(self.reason)
        waiter: Future[Verdict] = self._loop.create_future()
        self._queue.append((code, lease, plan, what, waiter))
        if self._pump is None:
            self._pump = self._loop.create_task(self._run())
        return waiter

    def tell(self, code: int, plan: Plan, what: Sequence[Any], lease: str) -> None:
        """Queues an operation without an answer. While the breaker is open settlements are kept, renewals dropped."""
        if self.up:
            self._queue.append((code, lease, plan, what, None))
            if self._pump is None:
                self._pump = self._loop.create_task(self._run())
        elif code == SETTLE:
            self._kept.append((code, lease, plan, what, None))

    async def beat(self) -> None:
        with contextlib.suppress(StoreDown):
            self.replicas = max((await self.ask(BEAT, _NO_PLAN, (self._key, self._beat_ttl), self._me))[0], 1)

    async def start(self) -> None:
        """Probes once; if that fails, goes on probing in the background."""
        if await self._probe_once(PROBE_CONNECT):
            self._recover()
        else:
            self._probe = self._loop.create_task(self._keep_probing())

    async def flush(self) -> None:
        while self._pump is not None:
            await asyncio.wait([self._pump])

    async def close(self) -> None:
        await self.flush()
        if self.up:
            with contextlib.suppress(StoreDown):
                await self.ask(BEAT, _NO_PLAN, (self._key, 0), self._me)
        for task in (self._probe, self._pump):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        self.up, self.reason = False, "closed"

    async def _run(self) -> None:
        queue = self._queue
        try:
            while queue and self.up:
                items = [queue.popleft() for _ in range(min(len(queue), BATCH))]
                items = [item for item in items if item[4] is None or not item[4].done()]
                asked = monotonic()
                try:
                    answer = await self._exchange(items, self._timeout)
                except asyncio.CancelledError:
                    self._abandon(items, "closed", ran=True)
                    self._abandon_queue("closed")
                    raise
                except Exception as error:
                    self._failed(items, error)
                    return
                self._failures = 0
                self._resolve(items, answer, monotonic() - asked < self._timeout / 2)
        finally:
            self._pump = None

    async def _exchange(self, items: Sequence[Item], within: float) -> list[Verdict]:
        sent = int(monotonic() * 1_000_000)
        # The server's clock as of sending, never early: an answer's time minus the time its call was sent.
        deadline = 1 << 52 if self._offset is None else sent + self._offset + int(within * 1_000_000)
        keys, payload = pack(items, deadline, self.lease_ttl)
        async with asyncio.timeout(within):
            raw = await self._call(keys, payload)
        now, answer = unpack(raw)
        self._offset = now - sent
        return answer

    def _resolve(self, items: Sequence[Item], answer: Sequence[Verdict], prompt: bool) -> None:
        at = 0
        late: list[Item] = []
        for item in items:
            if not answered(item):
                continue
            verdict, waiter = answer[at], item[4]
            at += 1
            if waiter is None:
                continue
            if waiter.done():  # its client left meanwhile
                self._undo(item, verdict)
            elif verdict[0] == -2:
                late.append(item)
            else:
                waiter.set_result(verdict)

        # A prompt answer that says "late": one of the clocks jumped. Nothing was done, so asking again, now that the
        # clocks agree, is no blind retry.
        again = bool(late) and prompt and not self._jumped
        self._jumped = again
        for item in late:
            if again:
                self._queue.append(item)
            elif item[4] is not None:
                item[4].set_exception(StoreDown("the store's clock jumps"))

    def _undo(self, item: Item, verdict: Verdict) -> None:
        code, lease, plan, costs, _ = item
        if code == ADMIT and verdict[0] == -1:
            charged = [(i, verdict[4 + 3 * i], -costs[i]) for i in range(len(costs)) if verdict[4 + 3 * i] >= 0]
            self._queue.append((SETTLE, lease, plan, charged, None))  # the pump that calls us goes on with it

    def _failed(self, items: Sequence[Item], error: Exception) -> None:
        self._failures += 1
        reason = describe(error, self._timeout)
        self._abandon(items, reason, ran=not isinstance(error, Unsent))
        self._abandon_queue(reason)
        if self._failures >= FAILURES and self.up:
            self.up, self.reason = False, reason
            if self._probe is None:
                self._probe = self._loop.create_task(self._keep_probing())
            self._changed()
        elif self._kept:  # still closed: what is to be settled goes with the next call
            self._queue.extend(self._kept)
            self._kept.clear()

    def _abandon(self, items: Sequence[Item], reason: str, *, ran: bool) -> None:
        """ran: the operations may have run, or may run yet."""
        for item in items:
            code, waiter = item[0], item[4]
            if waiter is not None and not waiter.done():
                waiter.set_exception(StoreDown(reason))
            elif code == SETTLE:
                keep = only_releases(item) if ran else item
                if keep is not None:
                    self._kept.append(keep)

    def _abandon_queue(self, reason: str) -> None:
        items = list(self._queue)
        self._queue.clear()
        self._abandon(items, reason, ran=False)

    async def _keep_probing(self) -> None:
        prompt = 0
        while prompt < 2:
            await asyncio.sleep(uniform(0.8, 1.2) * PROBE_EVERY if prompt == 0 else 0)
            # The first may have to connect, which nobody waits for; the second must be as prompt as a request needs.
            prompt = prompt + 1 if await self._probe_once(PROBE_CONNECT if prompt == 0 else self._timeout) else 0
        self._probe = None
        self._recover()

    async def _probe_once(self, within: float) -> bool:
        try:
            answer = await self._exchange([(BEAT, self._me, _NO_PLAN, (self._key, self._beat_ttl), None)], within)
        except Exception as error:
            self.reason = describe(error, within)
            return False
        self.replicas = max(answer[0][0], 1)
        return True

    def _recover(self) -> None:
        self.up, self.reason, self._failures = True, "", 0
        self._queue.extend(self._kept)
        self._kept.clear()
        if self._queue and self._pump is None:
            self._pump = self._loop.create_task(self._run())
        self._changed()


def describe(error: Exception, timeout: float) -> str:
    """For a log line: what kind of failure, without addresses or secrets."""
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout * 1000:.0f} ms"
    inner = error.__cause__ if isinstance(error, Unsent) and error.__cause__ is not None else error
    return type(inner).__name__
